"""The noise's variance, from pairs of estimates."""

from copy import deepcopy

import numpy as np
import pytest

from pymc_kmc.model.log_density import Evaluation
from pymc_kmc.moves.noise_probe import NoiseVariance


def evaluation(estimate, position=0.0, parameters=b"a"):
    return Evaluation(estimate - 1.0, estimate, np.array([position]), (), parameters)


def test_half_the_mean_squared_difference_of_pairs():
    noise = NoiseVariance()
    assert np.isnan(noise.value) and np.isnan(noise.ideal_acceptance)
    for difference in (1.0, 2.0, 3.0):
        noise.learn(evaluation(0.5), evaluation(0.5 + difference))
    assert noise.n_pairs == 3
    assert noise.value == pytest.approx(0.5 * (1 + 4 + 9) / 3)
    noise.forget()
    assert np.isnan(noise.value)


@pytest.mark.parametrize(
    "second",
    [
        evaluation(1.0, position=0.1),
        evaluation(1.0, parameters=b"b"),
        evaluation(-np.inf),
        evaluation(np.nan),
    ],
)
def test_what_is_no_pair(second):
    noise = NoiseVariance()
    noise.learn(evaluation(0.0), second)
    assert noise.n_pairs == 0


def test_the_last_pairs_count():
    noise = NoiseVariance()
    for _ in range(100):
        noise.learn(evaluation(0.0), evaluation(10.0))
    for _ in range(400):
        noise.learn(evaluation(0.0), evaluation(2.0))
    assert noise.value == pytest.approx(2.0, rel=0.01)


def test_ideal_acceptance_is_that_of_perfect_proposals():
    """100,000 pairs of a kept and a new estimate: 4.5 standard errors."""
    noise, variance = NoiseVariance(), 1.7
    noise.count(evaluation(0.0))
    noise.learn(evaluation(0.0), evaluation(np.sqrt(2 * variance)))
    assert noise.value == pytest.approx(variance)
    rng, sd = np.random.default_rng(4), np.sqrt(variance)
    kept = 0.5 * variance + sd * rng.standard_normal(100_000)
    new = -0.5 * variance + sd * rng.standard_normal(100_000)
    rates = np.exp(np.minimum(0.0, new - kept))
    assert abs(rates.mean() - noise.ideal_acceptance) < 4.5 * rates.std() / np.sqrt(100_000)


def test_ideal_acceptance_is_measured_whatever_the_law_of_the_noise():
    """Differences of 10 in a tenth of the pairs: a variance of 5, and nine tenths accepted."""
    noise = NoiseVariance()
    for i in range(40):
        fresh = evaluation(-10.0 * (i % 10 == 0))
        noise.count(fresh)
        noise.compare(evaluation(0.0, position=i), fresh)
        noise.learn(evaluation(0.0), fresh)
    assert noise.value == pytest.approx(5.0) and noise.zero_share == 0.0
    assert noise.ideal_acceptance == pytest.approx(0.9, abs=1e-4)


def test_zeros_are_counted_and_never_accepted():
    noise = NoiseVariance()
    for i in range(40):
        fresh = evaluation(0.0 if i % 4 == 0 else -np.inf)
        noise.count(fresh)
        noise.compare(evaluation(0.0, position=i), fresh)
    assert noise.zero_share == pytest.approx(0.75)
    assert noise.ideal_acceptance == pytest.approx(0.25)


def test_a_chain_that_rests_compares_its_luck():
    """Pairs of fresh estimates say what it can't: .479 is that of a variance of 1."""
    noise, resting = NoiseVariance(), evaluation(-4.0)
    for _ in range(20):
        noise.count(evaluation(0.0))
        noise.compare(resting, evaluation(0.0))
        noise.learn(evaluation(0.0), evaluation(np.sqrt(2.0)))
    assert noise.ideal_acceptance == pytest.approx(0.4795, abs=1e-4)


def test_a_kept_estimate_counts_once_in_a_restored_chain():
    """Saving copies it: equal, but another object."""
    noise, kept = NoiseVariance(), evaluation(0.0)
    for state in (kept, deepcopy(kept), evaluation(0.5), evaluation(0.5, position=1.0)):
        noise.compare(state, evaluation(0.0))
    assert noise.n_comparisons == 4 and noise.n_kept == 3


def test_a_variance_that_is_expected_counts_as_eight_pairs():
    noise = NoiseVariance()
    noise.expect(1.0)
    assert noise.value == 1.0
    assert noise.ideal_acceptance == pytest.approx(0.4795, abs=1e-4)
    noise.learn(evaluation(0.0), evaluation(np.sqrt(20.0)))
    assert noise.value == pytest.approx((8 * 1.0 + 10.0) / 9)
    noise.forget()
    assert np.isnan(noise.value)
