"""Local random walks: the published covariance and densities, their twin in NumPy, the ratio."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_kmc.moves import local
from pymc_kmc.moves.base import Outcome
from pymc_kmc.moves.local import LINEAR, LocalDistribution, LocalRandomWalk, proposal_covariance
from pymc_kmc.moves.random_walk import RandomWalk
from tests.bananas import Banana
from tests.moves import evaluation

GOLDEN = Path(__file__).parents[2] / "golden" / "kamh_n100_d2.npz"
D = 3


def banana_points(n, bend=0.4):
    return Banana(1.0, bend).draws(n, np.random.default_rng(0), d=D)


def log_density(x, mean, covariance):
    """Log N(x; mean, covariance) by the move's own functions."""
    return local._log_normal_density(x - mean, local._factor(covariance, 1e-12))


def covariance_at(x, distribution):
    """A distribution's covariance at x for a scale of 1, standardised."""
    p = distribution
    inside = np.linalg.solve(p.basis, x)
    return local._covariance(inside, p.points, p.sigma, p.gamma2, p.nu2)


# The formula


def test_golden_covariance_and_log_densities():
    """Those of the original authors' implementation."""
    with np.load(GOLDEN) as file:
        golden = dict(file)
    parameters = [float(golden[key]) for key in ("kernel_sigma", "gamma2", "nu2")]
    Q = golden["Q"]
    covariances = np.array([proposal_covariance(q, golden["Z"], *parameters) for q in Q])
    np.testing.assert_allclose(covariances, golden["R"], rtol=1e-8)
    forward = [log_density(Q[i + 1], Q[i], covariances[i]) for i in range(len(Q) - 1)]
    backward = [log_density(Q[i], Q[i + 1], covariances[i + 1]) for i in range(len(Q) - 1)]
    np.testing.assert_allclose(forward, golden["logq_fwd"], rtol=1e-8)
    np.testing.assert_allclose(backward, golden["logq_bwd"], rtol=1e-8)


def covariance_twin(x, Z, sigma, gamma2, nu2):
    """Proposition 1, with the centring matrix written out."""
    n = len(Z)
    gradients = Z.T
    if sigma is not None:
        kernel = np.exp(-np.sum((x - Z) ** 2, axis=1) / sigma)
        gradients = -2.0 / sigma * kernel * (x - Z).T
    M, H = 2.0 * gradients, np.eye(n) - np.ones((n, n)) / n
    return gamma2 * np.eye(len(x)) + nu2 * M @ H @ M.T


@pytest.mark.parametrize("sigma", [0.3, 6.0, None])
@pytest.mark.parametrize("n", [1, 2, 77, 300])
def test_covariance_equals_its_numpy_twin(n, sigma):
    Z = banana_points(n)
    for x in (Z[0], np.array([0.5, -1.0, 0.2]), np.array([40.0, 0.0, 0.0])):
        covariance = proposal_covariance(x, Z, sigma, 0.04, 0.7)
        expected = covariance_twin(x, Z, sigma, 0.04, 0.7)
        np.testing.assert_allclose(covariance, expected, rtol=1e-10, atol=1e-12)


def test_without_points_only_the_isotropic_part_is_left():
    points = np.empty((D, 0))
    covariance = local._covariance(np.ones(D), points, 1.0, 0.04, 0.7)
    np.testing.assert_array_equal(covariance, 0.04 * np.eye(D))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1.0, 2.0]}, "x"),
        ({"x": np.zeros((2, D))}, "x must be one point"),
        ({"x": [1.0, np.nan, 0.0]}, "x"),
        ({"Z": [1.0, 2.0]}, "Z"),
        ({"sigma": 0.0}, "sigma=0.0 must be a number, positive and finite"),
        ({"gamma2": 0.0}, "gamma2=0.0 must be a number, positive and finite"),
        ({"nu2": -1.0}, "nu2=-1.0 must be a number, positive and finite"),
    ],
)
def test_bad_arguments_of_the_covariance(arguments, message):
    right = {"x": np.zeros(D), "Z": banana_points(5), "sigma": 1.0, "gamma2": 1.0, "nu2": 1.0}
    with pytest.raises(ValueError, match=message):
        proposal_covariance(**right | arguments)


# A proposal and its Hastings ratio


def test_log_ratio_is_that_of_the_proposal_densities():
    Z = banana_points(50)
    rng, parameters = np.random.default_rng(1), (4.0, 0.05, 0.3)
    points = np.ascontiguousarray(Z.T)
    ratios = []
    for x in Z[:20]:
        end, log_ratio = local._propose(x, rng.standard_normal(D), points, *parameters)
        there = multivariate_normal(x, covariance_twin(x, Z, *parameters)).logpdf(end)
        back = multivariate_normal(end, covariance_twin(end, Z, *parameters)).logpdf(x)
        assert log_ratio == pytest.approx(back - there, abs=1e-9)
        ratios.append(log_ratio)
    assert np.ptp(ratios) > 0.5


def test_proposals_have_the_stated_distribution():
    """20,000 proposals; mean and covariance within 4.5 standard errors."""
    Z, x, n = banana_points(50), np.array([1.0, 0.5, 0.0]), 20_000
    rng, points = np.random.default_rng(2), np.ascontiguousarray(Z.T)
    steps = [local._propose(x, rng.standard_normal(D), points, 4.0, 0.05, 0.3)[0] for _ in range(n)]
    steps = np.array(steps) - x
    expected = covariance_twin(x, Z, 4.0, 0.05, 0.3)
    variances = np.diag(expected)
    assert np.all(np.abs(steps.mean(axis=0)) < 4.5 * np.sqrt(variances / n))
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / n)
    assert np.all(np.abs(steps.T @ steps / n - expected) < 4.5 * errors)


def test_factor_survives_rounding():
    """A rank-one part 1e20 times the isotropic one."""
    direction = np.array([1.0, 1.0, 1.0]) / np.sqrt(3)
    factor = local._factor(np.eye(D) + 1e20 * np.outer(direction, direction), 1.0)
    assert np.all(np.isfinite(factor))
    assert np.all(np.diag(factor) >= 1.0)


# The distribution of a sub-sample


def test_the_linear_kernel_is_adaptive_metropolis():
    """One symmetric proposal for all places: 2.38^2 / d times the states' covariance."""
    states = banana_points(200) * [1.0, 50.0, 1e-3]
    distribution = LocalDistribution(states, "linear", 1e-6, np.random.default_rng(3))
    assert distribution.sigma == LINEAR
    for x in (states[0], 10.0 * states[1]):
        covariance = distribution.covariance(x, 1.0)
        expected = RandomWalk.OPTIMAL_SCALE**2 / D * np.cov(states.T, ddof=0)
        np.testing.assert_allclose(covariance, expected, rtol=1e-4)
    end, log_ratio = distribution.propose(states[0], 1.0, np.random.default_rng(4))
    assert log_ratio == pytest.approx(0.0, abs=1e-12)
    twice, _ = distribution.propose(states[0], 2.0, np.random.default_rng(4))
    np.testing.assert_allclose(twice - states[0], 2.0 * (end - states[0]), rtol=1e-3)


@pytest.mark.parametrize("has_basis", [False, True])
def test_a_subsamples_distribution_has_its_hastings_ratio(has_basis):
    """In the step's coordinates, whose basis changes both densities alike."""
    states, rng = banana_points(100) * [1.0, 5.0, 0.1], np.random.default_rng(15)
    basis = np.tril(rng.standard_normal((D, D))) + 2.0 * np.eye(D) if has_basis else None
    distribution = LocalDistribution(states, "gaussian", 0.3, rng, basis)
    for x in states[:5]:
        end, log_ratio = distribution.propose(x, 1.0, rng)
        there = multivariate_normal(x, distribution.covariance(x, 1.0)).logpdf(end)
        back = multivariate_normal(end, distribution.covariance(end, 1.0)).logpdf(x)
        assert log_ratio == pytest.approx(back - there, abs=1e-8)


def test_proposals_are_as_large_as_an_optimal_random_walks():
    states = banana_points(200)
    distribution = LocalDistribution(states, "gaussian", 1e-6, np.random.default_rng(5))
    traces = [np.trace(covariance_at(x, distribution)) for x in states]
    # Standardised coordinates: the trace of the optimal covariance is 2.38^2.
    assert np.mean(traces) == pytest.approx(RandomWalk.OPTIMAL_SCALE**2, rel=0.1)


def test_proposals_follow_the_banana():
    """On its left arm the covariance of x1 and x2 is negative, on its right arm positive."""
    states = banana_points(2000, bend=1.0)
    distribution = LocalDistribution(states, "gaussian", 0.1, np.random.default_rng(6))

    def correlation(x):
        covariance = covariance_at(x, distribution)
        return covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])

    assert correlation(np.array([1.0, 0.0, 0.0])) > 0.3
    assert correlation(np.array([-1.0, 0.0, 0.0])) < -0.3


@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
def test_units_do_not_matter(kernel):
    states, units = banana_points(100), np.array([1e3, 1.0, 1e-4])
    ends = []
    for factor in (np.ones(D), units):
        distribution = LocalDistribution(factor * states, kernel, 0.3, np.random.default_rng(7))
        end, log_ratio = distribution.propose(factor * states[0], 0.8, np.random.default_rng(8))
        ends.append(np.append(end / factor, log_ratio))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-8)


# The move


def test_a_scale_multiplies_what_is_learned_and_not_the_isotropic_part():
    distribution = LocalDistribution(banana_points(50), "gaussian", 0.3, np.random.default_rng(9))
    move = LocalRandomWalk(0.234)
    move.distribution = distribution
    current = evaluation(banana_points(50)[0])
    for scale in (0.5, 2.0):
        move.scale.scale = scale
        proposal = move.propose(current, None, np.random.default_rng(10))
        end, log_ratio = distribution.propose(current.position, scale, np.random.default_rng(10))
        np.testing.assert_array_equal(proposal.position, end)
        assert proposal.log_ratio == log_ratio != 0.0 and proposal.step_size == scale


def test_learns_the_scale_from_acceptance():
    """Too often accepted: too small a scale."""
    for rate, is_larger in ((0.9, True), (0.05, False)):
        move, state = LocalRandomWalk(0.234), evaluation(np.zeros(D))
        for _ in range(20):
            move.learn(Outcome(None, None, rate, state, state), None)
        assert (move.scale.scale > 1.0) == is_larger
