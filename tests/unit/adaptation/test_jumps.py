"""The scale that jumps are measured on."""

import numpy as np

from pymc_kmc.adaptation.jumps import Whitening


def test_jumps_between_independent_draws():
    rng = np.random.default_rng(2)
    root = rng.standard_normal((3, 3))
    states = rng.standard_normal((20_000, 3)) @ root
    whitening = Whitening(states)
    jumps = np.array(
        [whitening.squared_jumps(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
    )
    assert jumps.max() <= 3.0
    # The means of a chi-squared and of a product of two, capped: .858 and .611. One of 10,000 pairs
    # has a standard error below .01; six of them are off by .04 less often than once in 10,000.
    np.testing.assert_allclose(jumps.mean(axis=0), 3 * [0.858] + 3 * [0.611], atol=0.04)
    np.testing.assert_allclose(whitening.squared_jumps(states[0], states[:2])[0], 0.0, atol=1e-28)


def test_independence_is_judged_by_states_far_apart():
    """Whatever the distribution, and however slowly the chain moves."""
    rng = np.random.default_rng(3)
    n = 4000
    slow = np.repeat(rng.standard_normal(n // 10), 10)
    modes = rng.choice([-1.0, 1.0], n) + 0.1 * rng.standard_normal(n)
    states = np.column_stack([slow, modes])
    whitening = Whitening(states)
    among = whitening.squared_jumps(states, states[rng.permutation(n)]).mean(axis=0)
    found = whitening.independent_jumps(states)
    # 4000 pairs, and 8 times as many that depend on each other: within .1 at four sd.
    np.testing.assert_allclose(found, among, atol=0.1)
    assert found[2] > 0.5 and found[3] < 0.1


def test_independence_of_two_states():
    states = np.array([[0.0, 1.0], [1.0, 3.0]])
    whitening = Whitening(states)
    np.testing.assert_allclose(
        whitening.independent_jumps(states), whitening.squared_jumps(*states)
    )
