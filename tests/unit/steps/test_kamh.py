"""KAMH: the published covariance and densities, its twin in NumPy, sub-samples, arguments."""

from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

import pymc_kmc as kmc
from pymc_kmc.adaptation.random_walk import RandomWalk
from pymc_kmc.adaptation.schedules import vanishing_weight
from pymc_kmc.steps import kamh
from pymc_kmc.steps.kamh import FIRST, LINEAR, LocalProposal, proposal_covariance

GOLDEN = Path(__file__).parents[2] / "golden" / "kamh_n100_d2.npz"
D = 3


def banana_points(n, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, D))
    X[:, 1] += 0.4 * X[:, 0] ** 2
    return X


def log_density(x, mean, covariance):
    """Log N(x; mean, covariance) by the step's own functions."""
    return kamh._log_normal_density(x - mean, kamh._factor(covariance, 1e-12))


def covariance_at(x, proposal):
    """A proposal's covariance at x for a scale of 1, standardised."""
    p = proposal
    return kamh._covariance(x / p.units, p.points, p.sigma, p.gamma2, p.nu2)


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
    covariance = kamh._covariance(np.ones(D), points, 1.0, 0.04, 0.7)
    np.testing.assert_array_equal(covariance, 0.04 * np.eye(D))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1.0, 2.0]}, "x"),
        ({"x": np.zeros((2, D))}, "x must be one point"),
        ({"x": [1.0, np.nan, 0.0]}, "x"),
        ({"Z": [1.0, 2.0]}, "Z"),
        ({"sigma": 0.0}, "sigma=0.0 must be positive"),
        ({"gamma2": 0.0}, "gamma2=0.0 must be positive"),
        ({"nu2": -1.0}, "nu2=-1.0 must be positive"),
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
        end, log_ratio = kamh._propose(x, rng.standard_normal(D), points, *parameters)
        there = multivariate_normal(x, covariance_twin(x, Z, *parameters)).logpdf(end)
        back = multivariate_normal(end, covariance_twin(end, Z, *parameters)).logpdf(x)
        assert log_ratio == pytest.approx(back - there, abs=1e-9)
        ratios.append(log_ratio)
    assert np.ptp(ratios) > 0.5


def test_proposals_have_the_stated_distribution():
    """20,000 proposals; mean and covariance within 4.5 standard errors."""
    Z, x, n = banana_points(50), np.array([1.0, 0.5, 0.0]), 20_000
    rng, points = np.random.default_rng(2), np.ascontiguousarray(Z.T)
    steps = [kamh._propose(x, rng.standard_normal(D), points, 4.0, 0.05, 0.3)[0] for _ in range(n)]
    steps = np.array(steps) - x
    expected = covariance_twin(x, Z, 4.0, 0.05, 0.3)
    variances = np.diag(expected)
    assert np.all(np.abs(steps.mean(axis=0)) < 4.5 * np.sqrt(variances / n))
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / n)
    assert np.all(np.abs(steps.T @ steps / n - expected) < 4.5 * errors)


def test_factor_survives_rounding():
    """A rank-one part 1e20 times the isotropic one."""
    direction = np.array([1.0, 1.0, 1.0]) / np.sqrt(3)
    factor = kamh._factor(np.eye(D) + 1e20 * np.outer(direction, direction), 1.0)
    assert np.all(np.isfinite(factor))
    assert np.all(np.diag(factor) >= 1.0)


# The proposal of a sub-sample


def test_the_linear_kernel_is_adaptive_metropolis():
    """One symmetric proposal for all places: 2.38^2 / d times the states' covariance."""
    states = banana_points(200) * [1.0, 50.0, 1e-3]
    proposal = LocalProposal(states, "linear", 1e-6, np.random.default_rng(3))
    assert proposal.sigma == LINEAR
    for x in (states[0], 10.0 * states[1]):
        covariance = covariance_at(x, proposal) * np.outer(proposal.units, proposal.units)
        expected = RandomWalk.OPTIMAL_SCALE**2 / D * np.cov(states.T, ddof=0)
        np.testing.assert_allclose(covariance, expected, rtol=1e-4)
    end, log_ratio = proposal.propose(states[0], 1.0, np.random.default_rng(4))
    assert log_ratio == pytest.approx(0.0, abs=1e-12)
    twice, _ = proposal.propose(states[0], 2.0, np.random.default_rng(4))
    np.testing.assert_allclose(twice - states[0], 2.0 * (end - states[0]), rtol=1e-3)


def test_a_subsamples_proposal_has_its_hastings_ratio():
    """In the step's coordinates, whose units change both densities alike."""
    states, rng = banana_points(100) * [1.0, 5.0, 0.1], np.random.default_rng(15)
    proposal = LocalProposal(states, "gaussian", 0.3, rng)
    units = np.outer(proposal.units, proposal.units)
    for x in states[:5]:
        end, log_ratio = proposal.propose(x, 1.0, rng)
        there = multivariate_normal(x, units * covariance_at(x, proposal)).logpdf(end)
        back = multivariate_normal(end, units * covariance_at(end, proposal)).logpdf(x)
        assert log_ratio == pytest.approx(back - there, abs=1e-8)


def test_proposals_are_as_large_as_an_optimal_random_walks():
    states = banana_points(200)
    proposal = LocalProposal(states, "gaussian", 1e-6, np.random.default_rng(5))
    traces = [np.trace(covariance_at(x, proposal)) for x in states]
    # Standardised coordinates: the trace of the optimal covariance is 2.38^2.
    assert np.mean(traces) == pytest.approx(RandomWalk.OPTIMAL_SCALE**2, rel=0.1)


def test_proposals_follow_the_banana():
    """On its left arm the covariance of x1 and x2 is negative, on its right arm positive."""
    states = banana_points(2000)
    states[:, 1] += 0.6 * states[:, 0] ** 2
    proposal = LocalProposal(states, "gaussian", 0.1, np.random.default_rng(6))

    def correlation(x):
        covariance = covariance_at(x, proposal)
        return covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])

    assert correlation(np.array([1.0, 1.0, 0.0])) > 0.3
    assert correlation(np.array([-1.0, 1.0, 0.0])) < -0.3


@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
def test_units_do_not_matter(kernel):
    states, units = banana_points(100), np.array([1e3, 1.0, 1e-4])
    ends = []
    for factor in (np.ones(D), units):
        proposal = LocalProposal(factor * states, kernel, 0.3, np.random.default_rng(7))
        end, log_ratio = proposal.propose(factor * states[0], 0.8, np.random.default_rng(8))
        ends.append(np.append(end / factor, log_ratio))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-8)


# Sub-samples of the history


def walk(step, n, point):
    statistics = []
    for _ in range(n):
        point, (s,) = step.step(point)
        statistics.append(s)
    return point, statistics


def test_subsamples_are_renewed_ever_more_seldom():
    """The first as soon as the history allows, then with probability 1 / sqrt(t + 1).

    The number of renewals in 4000 iterations is within 4.5 standard deviations of its mean, 117.
    """
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KAMH(rng=10)
    point, statistics = walk(step, 4000, model.initial_point())
    renewals = np.array([s["kmc_n_subsamples"] for s in statistics])
    assert np.flatnonzero(renewals)[0] == FIRST * 2
    probabilities = vanishing_weight(np.arange(FIRST * 2, 4000))
    sd = np.sqrt(np.sum(probabilities * (1 - probabilities)))
    assert abs(renewals[-1] - 1 - probabilities.sum()) < 4.5 * sd
    step.stop_tuning()
    _, statistics = walk(step, 500, point)
    assert statistics[-1]["kmc_n_subsamples"] == step.learned.n_subsamples
    assert statistics[0]["kmc_n_subsamples"] == statistics[-1]["kmc_n_subsamples"]
    assert len({s["kmc_scale"] for s in statistics}) == 1


def test_subsamples_are_of_distinct_states():
    with pm.Model():
        pm.Normal("x", shape=1)
        step = kmc.KAMH(n_points=1000, rng=11)
    walk(step, 500, {"x": np.zeros(1)})
    states = step.learned.history.recent(1.0)
    points = step.learned.proposal.points.T
    assert len(np.unique(points, axis=0)) == len(points)
    assert len(points) < 0.6 * len(states)


def test_short_tuning_ends_with_a_subsample():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KAMH(rng=14)
    point, _ = walk(step, 2 * FIRST - 1, model.initial_point())
    assert step.learned.proposal is None
    step.stop_tuning()
    _, statistics = walk(step, 50, point)
    assert statistics[-1]["kmc_n_subsamples"] == 1


def test_a_chain_that_sat_still_goes_on_with_the_random_walk():
    def only_the_start(x):
        return pm.math.where(pm.math.eq(x, 0.0).all(), 0.0, -np.inf)

    with pm.Model():
        x = pm.Flat("x", shape=2)
        pm.Potential("only_the_start", only_the_start(x))
        step = kmc.KAMH(rng=12)
    _, statistics = walk(step, 200, {"x": np.zeros(2)})
    step.stop_tuning()
    assert step.learned.proposal is None
    assert statistics[-1]["kmc_n_subsamples"] == 0


def test_drives_the_scale_to_the_acceptance_rate():
    """With the probability that is at most 1; the mean of 3000 is within .04."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        for target in (None, 0.4):
            step = kmc.KAMH(target_acceptance=target, rng=13)
            point, _ = walk(step, 2000, model.initial_point())
            _, statistics = walk(step, 3000, point)
            rate = np.mean([s["acceptance_rate"] for s in statistics])
            assert rate == pytest.approx(target or RandomWalk.TARGET_ACCEPTANCE, abs=0.04)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "matern"}, "kernel='matern' is unknown; pass 'gaussian' or 'linear'"),
        ({"n_points": 0}, "n_points=0 must be an integer of at least 1"),
        ({"n_points": 1}, "n_points=1 has no spread; pass at least 2"),
        ({"gamma": 0.0}, "gamma=0.0 must be positive"),
        ({"target_acceptance": 1.0}, "target_acceptance must be between 0 and 1, got 1.0"),
        ({"tune": False}, "tune=False.*AdaptiveMetropolis"),
        ({"adaptation": "never"}, "adaptation must be 'tuning' or 'vanishing'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match=message):
            kmc.KAMH(**options)
