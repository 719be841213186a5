"""The benchmarks of replicates and executors: their estimates are what they say."""

import numpy as np
import pytest

from examples.benchmarks import executors, replicates

pytestmark = pytest.mark.documentation


def test_the_random_effects_estimate_is_unbiased():
    """Against Gauss-Hermite quadrature; 4.5 standard errors of the mean of 4000 estimates."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    intercept, spread = 0.6, 0.5
    logit = intercept + spread * nodes[:, None]
    terms = replicates.SUCCESSES * logit - replicates.N_TRIALS * np.logaddexp(0.0, logit)
    exact = np.sum(np.log(weights / weights.sum() @ np.exp(terms)))
    rng = np.random.default_rng(1)
    ratios = np.exp(
        [
            replicates.random_effects(
                intercept, spread, rng.standard_normal((60, replicates.N_GROUPS))
            )
            - exact
            for _ in range(4000)
        ]
    )
    assert abs(ratios.mean() - 1) < 4.5 * ratios.std() / np.sqrt(4000)


def test_they_run(capsys):
    executors.main(["--quick", "--milliseconds", "1", "--replicates", "2"])
    printed = capsys.readouterr().out
    assert "process pool" in printed and "**no**" not in printed
    model = replicates.random_effects_model(4, True, correlation=0.9)
    found = replicates.median(
        model, replicates.kmc.AdaptiveMetropolis, seeds=1, tune=120, n_draws=lambda n: 200
    )
    assert found[2] == 1 and 0 < found[0] < 1 and found[3] > 0


@pytest.mark.parametrize("computes", [True, False])
def test_the_slow_simulator_takes_its_time(computes):
    rng = np.random.default_rng(0)
    assert np.isfinite(executors.estimator(0.0, rng, seconds=0.001, computes=computes))
