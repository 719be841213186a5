"""The scale that jumps are measured on."""

import numpy as np

from pymc_kmc.adaptation.jumps import Whitening


def test_jumps_have_mean_one_between_independent_draws():
    rng = np.random.default_rng(2)
    root = rng.standard_normal((3, 3))
    states = rng.standard_normal((20_000, 3)) @ root
    whitening = Whitening(states)
    jumps = np.array(
        [whitening.squared_jumps(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
    )
    assert jumps.max() <= 3.0
    assert np.all((jumps.mean(axis=0) > 0.5) & (jumps.mean(axis=0) <= 1.05))
    np.testing.assert_allclose(whitening.squared_jumps(states[0], states[:2])[0], 0.0, atol=1e-28)
