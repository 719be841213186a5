"""The regression behind LogDensityGP against brute force."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_kmc.surrogates.bayesian_regression import BayesianRegression

RNG = np.random.default_rng(1)
N = 25
FEATURES, KERNEL = RNG.standard_normal((N, 3)), RNG.standard_normal((N, 4))
VALUES = FEATURES @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(N) + 7.0
WEIGHTS = RNG.uniform(0.3, 2.0, N)
WEIGHTS /= WEIGHTS.mean()


def brute_force(ridge, kernel_ridge):
    """Largest log likelihood over s^2 of the weighted, centred values; a constant is left out."""
    root = np.sqrt(WEIGHTS)

    def centred(a):
        return ((a - WEIGHTS @ a / N).T * root).T

    F, P, y = centred(FEATURES), centred(KERNEL), centred(VALUES)
    covariance = np.eye(N) + F @ F.T / ridge + P @ P.T / kernel_ridge
    variance = y @ np.linalg.solve(covariance, y) / N
    return multivariate_normal.logpdf(y, cov=variance * covariance), variance


def test_evidence_is_the_marginal_likelihood():
    regression = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1, 3.0])
    fits = [
        regression.fit_with(KERNEL, np.array([kernel_ridge]), ridges=[ridge])
        for ridge in (0.1, 3.0)
        for kernel_ridge in (0.01, 5.0)
    ]
    expected = [brute_force(fit.ridge, fit.kernel_ridge) for fit in fits]
    np.testing.assert_allclose([fit.variance for fit in fits], [v for _, v in expected])
    differences = [fit.log_evidence - e for fit, (e, _) in zip(fits, expected, strict=True)]
    np.testing.assert_allclose(differences, differences[0])
    alone = regression.fit()
    assert alone.log_evidence - brute_force(alone.ridge, 1e12)[0] == pytest.approx(differences[0])


def test_the_best_of_the_grid_is_chosen_and_solves_the_ridge_problem():
    ridges, kernel_ridges = [0.01, 1.0, 100.0], np.array([0.01, 1.0, 100.0])
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, ridges).fit_with(KERNEL, kernel_ridges)
    best = max((brute_force(r, k)[0], r, k) for r in ridges for k in kernel_ridges)
    assert (fit.ridge, fit.kernel_ridge) == best[1:]
    F = np.hstack([FEATURES, KERNEL])
    F = F - WEIGHTS @ F / N
    gram = F.T * WEIGHTS @ F + np.diag([fit.ridge] * 3 + [fit.kernel_ridge] * 4)
    expected = np.linalg.solve(gram, F.T * WEIGHTS @ (VALUES - WEIGHTS @ VALUES / N))
    solution = np.append(fit.coefficients, fit.kernel_coefficients)
    np.testing.assert_allclose(solution, expected, rtol=1e-6)


def test_a_second_group_of_one_feature():
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1]).fit_with(KERNEL[:, :1], np.ones(1))
    both = np.hstack([FEATURES, KERNEL[:, :1]])
    centred = both - WEIGHTS @ both / N
    rhs = (centred.T * WEIGHTS) @ (VALUES - WEIGHTS @ VALUES / N)
    expected = np.linalg.solve((centred.T * WEIGHTS) @ centred + np.diag([0.1] * 3 + [1.0]), rhs)
    np.testing.assert_allclose(np.append(fit.coefficients, fit.kernel_coefficients), expected)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_cannot_be_factorised_is_a_fit_of_no_evidence():
    fit = BayesianRegression(np.full((N, 2), np.inf), VALUES, WEIGHTS, [1.0]).fit_with(KERNEL)
    assert fit.log_evidence == -np.inf
    assert np.isfinite(fit.coefficients).all()


def test_the_constant_is_the_one_of_the_largest_likelihood():
    """Found by the generalised least squares of the values' own covariance, not by centring."""
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.3]).fit_with(KERNEL, np.array([2.0]))
    F = np.hstack([FEATURES, KERNEL])
    F = F - WEIGHTS @ F / N
    covariance = np.diag(1 / WEIGHTS) + F * ([1 / 0.3] * 3 + [1 / 2.0] * 4) @ F.T
    inverse = np.linalg.inv(covariance)
    constant = inverse.sum(axis=0) @ VALUES / inverse.sum()
    variance = (VALUES - constant) @ inverse @ (VALUES - constant) / N
    assert fit.variance == pytest.approx(variance)
    # The weights' determinant is the constant that is left out.
    expected = multivariate_normal(np.full(N, constant), variance * covariance).logpdf(VALUES)
    left_out = 0.5 * np.log(WEIGHTS).sum() - 0.5 * N * (1 + np.log(2 * np.pi))
    assert fit.log_evidence == pytest.approx(expected - left_out)


def test_scale_of_the_weights_and_level_of_the_values_do_not_matter():
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [0.1]).fit_with(KERNEL)
    moved = BayesianRegression(FEATURES + 3.0, VALUES - 1e4, 50.0 * WEIGHTS, [0.1])
    for value, other in zip(fit, moved.fit_with(KERNEL - 2.0), strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-6)


def test_evidence_rewards_what_is_there_and_nothing_else():
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((300, 2)), rng.standard_normal((300, 4))
    noise, ridges = rng.standard_normal(300), 10.0 ** np.arange(-3.0, 3.0)
    absent = BayesianRegression(first, first[:, 0] + noise, np.ones(300), ridges)
    present = BayesianRegression(first, 2.0 * second[:, 1] + noise, np.ones(300), ridges)
    assert absent.fit_with(second).log_evidence < absent.fit().log_evidence + 0.1
    found = present.fit_with(second)
    assert found.log_evidence > present.fit().log_evidence + 50.0
    assert found.variance == pytest.approx(1.0, abs=0.35)  # four standard errors


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_second_group_that_overflows_is_a_fit_of_no_evidence(bad):
    features = KERNEL.copy()
    features[0, 0] = bad
    fit = BayesianRegression(FEATURES, VALUES, WEIGHTS, [1e-3, 1.0]).fit_with(features)
    assert fit.log_evidence == -np.inf


def test_ridges_below_the_rounding_errors_are_no_candidates():
    """Values that the second group explains, the better the smaller its ridge."""
    rng = np.random.default_rng(9)
    features = 1e6 * rng.standard_normal((40, 2))
    values = features @ [1.0, -2.0]
    regression = BayesianRegression(rng.standard_normal((40, 3)), values, np.ones(40), [1.0])
    for smallest, expected in [(1e-6, 1e2), (1.0, 1.0)]:
        fit = regression.fit_with(features, np.array([smallest, 1e2]))
        assert fit.kernel_ridge == expected


def test_constant_values_have_a_finite_fit():
    fit = BayesianRegression(FEATURES, np.full(N, 3.0), WEIGHTS, [0.1]).fit_with(KERNEL)
    assert np.isfinite(fit.log_evidence)
    np.testing.assert_allclose(fit.coefficients, 0.0, atol=1e-12)
    np.testing.assert_allclose(fit.kernel_coefficients, 0.0, atol=1e-12)
