"""Public problems are as their papers define them, and true draws are at no distance."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from scipy.integrate import dblquad
from scipy.stats import jf_skew_t, norm

from examples.benchmarks import public
from examples.benchmarks import public_problems as problems
from examples.benchmarks.metrics import c2st, gskl, mmtv

pytestmark = [pytest.mark.documentation, pytest.mark.one_line]

#: Of infbench's mixture in ten dimensions: the first weights, and its mean's first coordinates.
LUMPY_WEIGHTS = 0.0146850166317741, 0.0210712135961372
LUMPY_MEAN = 0.575645571086825, 0.587907852780412, 0.391842624703786


def standard(n, d, seed=0):
    """Normal draws whose sample mean and covariance are 0 and 1."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    x -= x.mean(axis=0)
    return x @ np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False).reshape(d, d))).T


@pytest.mark.parametrize(("shift", "distance"), [(0.0, 0.0), (2**0.5, 1.0), (0.5, 0.125)])
def test_gskl_is_the_papers(shift, distance):
    assert np.isclose(gskl(standard(50, 1) + shift, standard(60, 1, 1)), distance)
    assert np.isclose(gskl(standard(50, 3) + shift, standard(60, 3, 1)), distance)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_what_overlaps_and_what_can_be_told(shift):
    x, y, rng = standard(5000, 2), standard(20_000, 2, 1), np.random.default_rng(0)
    x[:, 0] += shift
    overlap = 2.0 * norm.cdf(0.5 * shift) - 1.0
    assert mmtv(x, y) == pytest.approx(0.5 * overlap, abs=0.02)
    # The best classifier's accuracy, with 10,000 places to be tried at.
    assert c2st(x, y, rng) == pytest.approx(0.5 + 0.5 * overlap, abs=0.02)


def test_neighbours_tell_what_has_the_same_moments():
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], (4000, 2)) + 0.1 * rng.standard_normal((4000, 2))
    assert c2st(x, np.sqrt(1.01) * standard(4000, 2), rng) > 0.9
    # A chain that stays where it is: repeats are one draw, and aren't recognised.
    assert c2st(np.repeat(standard(500, 2), 20, axis=0), standard(4000, 2, 1), rng) < 0.55


def test_the_mixture_is_infbenchs():
    weights, means, variances = problems.lumpy_components()
    assert np.allclose(weights[:2], LUMPY_WEIGHTS, atol=1e-12)
    assert np.allclose((weights @ means)[:3], LUMPY_MEAN, atol=1e-12)
    assert np.allclose(np.sort(variances), np.linspace(0.2, 0.6, 10) ** 2)
    draws = problems.lumpy_draws(100_000, np.random.default_rng(0))
    assert np.allclose(draws.mean(axis=0), weights @ means, atol=0.01)
    second = weights @ (variances + means**2)
    assert np.allclose((draws**2).mean(axis=0), second, atol=0.015)


def test_draws_of_the_bananas_have_their_moments():
    def density(y, x):
        return np.exp(-((x * x - y) ** 2) - (x - 1) ** 2 / 100 - (x * x + y * y) / 18)

    def integral(power):
        def integrand(y, x):
            return np.array([1.0, x, y, x * x])[power] * density(y, x)

        return dblquad(integrand, -5, 5, -8, 30, epsabs=1e-5)[0]

    draws = problems.rosenbrock_draws(200_000, np.random.default_rng(0))
    whole, *moments = (integral(power) for power in range(4))
    for x, y in (draws[:, :2].T, draws[:, 2:4].T):
        found = [x.mean(), y.mean(), np.mean(x**2)]
        assert np.allclose(found, np.array(moments) / whole, atol=0.02)
    assert np.allclose(draws[:, 4:].var(axis=0), 0.9, atol=0.02)


def test_draws_of_the_moons_explain_the_observation():
    draws = problems.moons_draws(20_000, np.random.default_rng(0))
    assert np.abs(draws).max() < 1.0
    shift = np.column_stack([-np.abs(draws.sum(axis=1)), draws[:, 1] - draws[:, 0]]) / np.sqrt(2.0)
    place = problems.MOONS_OBSERVED - shift - [0.25, 0.0]
    radius = np.linalg.norm(place, axis=1)
    assert np.allclose([radius.mean(), radius.std()], [0.1, 0.01], atol=5e-4)
    assert abs(np.arctan2(*place.T[::-1])).max() < np.pi / 2
    assert abs(np.mean(draws.sum(axis=1) > 0) - 0.5) < 0.02


def test_responses_are_those_that_an_observer_gives():
    w_s, w_m, mean, sd, lapse = theta = np.array([0.1, 0.05, 0.7, 0.14, 0.04])
    rng, grid = np.random.default_rng(0), np.linspace(0.01, 2.5, 500)
    for stimulus, expected in zip(
        problems.STIMULI, problems.response_probabilities(theta), strict=True
    ):
        measured = stimulus * (1.0 + w_s * rng.standard_normal(5000))
        weights = norm.pdf(measured[:, None], grid, w_s * grid) * norm.pdf(grid, mean, sd)
        estimated = weights @ grid / weights.sum(axis=1)
        responses = estimated * (1.0 + w_m * rng.standard_normal(5000))
        found = np.histogram(responses, problems.EDGES)[0] / 5000 * (1 - lapse) + lapse / 100
        assert expected.sum() == pytest.approx(1.0)
        assert np.abs(np.cumsum(found - expected)).max() < 0.03


def test_scores_are_the_skew_t_s_derivatives_and_vanish_at_its_fit():
    data, fitted = problems.observed_g_and_k()
    x = data[:50]
    values, scores = problems.skew_t(fitted, x)
    assert np.allclose(values, jf_skew_t.logpdf(x, *fitted))
    for shift, score in zip(1e-6 * np.eye(4), scores.T, strict=True):
        change = problems.skew_t(fitted + shift, x)[0] - problems.skew_t(fitted - shift, x)[0]
        assert np.allclose(score, 0.5e6 * change, atol=1e-6)
    assert np.allclose(problems.gk_scores(data), 0.0, atol=0.1)


def test_simulations_of_g_and_k_have_the_likelihood_of_quadrature():
    """The estimate's standard deviation is .15 nats with 400 simulations, its bias .05."""
    data = problems.observed_g_and_k()[0]
    scores = problems.gk_scores(
        problems.gk_simulator(problems.GK_TRUE, np.random.default_rng(0), 400)
    )
    covariance, away = np.cov(scores.T), problems.gk_scores(data) - scores.mean(axis=0)
    found = -0.5 * away @ np.linalg.solve(covariance, away)
    found -= 0.5 * np.linalg.slogdet(covariance)[1]
    assert found == pytest.approx(problems.gk_log_likelihood(problems.GK_TRUE), abs=0.75)
    draws = problems.gk_draws(500, np.random.default_rng(0))
    assert (np.abs(draws.mean(axis=0) - problems.GK_TRUE) < 4.0 * draws.std(axis=0)).all()


def test_wood_s_statistics():
    counts = problems.ricker_counts(problems.RICKER_TRUE, np.random.default_rng(0), 3)
    found = problems.ricker_summaries(counts, counts[0])
    x = counts[0] - counts[0].mean()
    assert found.shape == (3, 13)
    assert np.allclose(found[0, :2], [np.mean(x**2), np.sum(x[1:] * x[:-1]) / 49])
    assert np.allclose(found[0, 6:9], [1.0, 0.0, 0.0], atol=1e-6)
    assert np.allclose(found[:, 11:], np.column_stack([counts.mean(1), (counts == 0).sum(1)]))


def test_the_command_makes_each_run_once(tmp_path, capsys, monkeypatch):
    command = ["--quick", "--targets", "gaussian-linear", "--folder", str(tmp_path)]
    public.main(command)
    assert "| gaussian-linear | learn |" in capsys.readouterr().out
    assert imread(tmp_path / "quick" / "public.png").std() > 0.0
    kept = pd.read_csv(tmp_path / "quick" / "public.csv").set_index("method")
    assert 50 * 40 <= kept["evaluations"]["learn"] <= 50 * 1.2 * public.QUICK_MOST
    assert kept["evaluations"]["learn+KMC"] <= 50 * 1.2 * public.QUICK_BUDGET
    assert kept["mmtv"].max() < 0.5 and kept["c2st"].max() < 1.0
    monkeypatch.setattr(public, "run", pytest.fail)  # a second time there is nothing to run
    public.main(command)
