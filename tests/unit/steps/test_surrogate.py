"""Steps on a given surrogate: the balance of their moves, and surrogates of every kind."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation import transitions
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, LogDensityGP
from pymc_kmc.surrogates.protocol import NotFittedError
from tests.balance import balance_errors
from tests.chains import ONE_CHAIN, iterate
from tests.estimates import TOLERANCE, worst_moment
from tests.surrogates import OnlyDensityAndGradient

# Given surrogates of a standard normal: too narrow, and in the wrong place.
CENTRE, WIDTH = 0.7, 0.4
STEPS = {
    "KMC": (kmc.KMC, {}),
    "KMCLite": (kmc.KMCLite, {"random_walk_probability": 0.03}),
    "KMCFinite": (kmc.KMCFinite, {"random_walk_probability": 0.03}),
}
# Pairs by which a step that is wrong is found out, 7 standard errors or more: 5000 of KMC show 5.8.
N_PAIRS = {"KMC": 10_000, "KMCLite": 5000, "KMCFinite": 5000}


def narrow_surrogate(name):
    if name == "KMC":
        X = np.linspace(-2.0, 3.0, 80)[:, None]
        values = -0.5 * ((X[:, 0] - CENTRE) / WIDTH) ** 2
        return LogDensityGP(20, rng=0).fit(X, values)
    X = CENTRE + WIDTH * np.random.default_rng(0).standard_normal((100, 1))
    if name == "KMCLite":
        return KernelExpLite(1.0, 100.0, base="gaussian").fit(X)
    return KernelExpFinite(50, 1.0, 1.0, base="gaussian", rng=0).fit(X)


class Uncorrected:
    """Forgets that the moves' probabilities depend on the state."""

    def _propose(self, current):
        return super()._propose(current)._replace(choice=None)


def frozen_step(name, is_broken=False, **more_options):
    step_class, options = STEPS[name]
    if is_broken:
        step_class = type("WithoutCorrection", (Uncorrected, step_class), {})
    with pm.Model():
        pm.Normal("x", shape=1)
        step = step_class(
            tune=False, surrogate=narrow_surrogate(name), rng=5, **options | more_options
        )
    step.step({"x": np.array([CENTRE])})
    return step


def balance(step, n):
    """The largest error of the balance, in standard errors, from exact draws; these, and moves."""
    x = np.random.default_rng(6).standard_normal(n)
    step.set_rng = None  # a new chain would reset what was learned
    ends, moves = np.empty(n), np.empty(n, dtype=int)
    for i in range(n):
        point, (statistics,) = step.step({"x": x[i : i + 1]})
        ends[i], moves[i] = point["x"][0], statistics["kmc_move"]

    def functions(x):
        return [np.tanh(x), x > 1.5, x < -0.5, np.abs(x) < 0.5]

    errors = balance_errors(functions(x), functions(ends))
    return np.abs(errors).max(), x, moves


@pytest.mark.parametrize("name", STEPS)
def test_the_mixture_is_in_detailed_balance(name):
    """Ten comparisons of independent pairs at 4.5 standard errors: false alarm 7e-5."""
    worst, x, moves = balance(frozen_step(name), N_PAIRS[name])
    assert worst < TOLERANCE
    at_centre = np.abs(x - CENTRE) < 0.3
    share = [np.mean(moves[group] == MoveKind.RANDOM_WALK) for group in (x < -1, at_centre)]
    assert share[0] > 0.5 > 0.1 > share[1]


@pytest.mark.parametrize("name", STEPS)
def test_the_mixtures_balance_can_fail(name):
    """With as many pairs."""
    worst, _, _ = balance(frozen_step(name, is_broken=True), N_PAIRS[name])
    assert worst > 7


@pytest.mark.parametrize("name", ["KMCLite", "KMCFinite"])
def test_no_random_walks_where_none_are_wanted(name):
    """As in the paper: whatever the log weight."""
    step = frozen_step(name, random_walk_probability=0.0)
    moves = set()
    for x in np.r_[CENTRE, np.linspace(-3.0, 3.0, 200)]:
        _, (statistics,) = step.step({"x": np.array([x])})
        moves.add(statistics["kmc_move"])
    assert MoveKind.RANDOM_WALK not in moves
    assert moves <= {MoveKind.LONG_TRAJECTORY, MoveKind.SHORT_TRAJECTORY}


# Surrogates of every kind, a user's own among them, drive every step

MEAN, SD = np.array([1.0, -2.0]), np.array([1.0, 0.5])
DRAWS = MEAN + SD * np.random.default_rng(0).standard_normal((200, 2))


class Gaussian:
    """A user's own: no more than steps ask of a surrogate, and not quite right."""

    n_features_in_ = 2

    def log_density(self, X):
        return -0.5 * np.sum(((X - MEAN - 0.3) / (1.2 * SD)) ** 2, axis=-1)

    def gradient(self, X):
        return -(X - MEAN - 0.3) / (1.2 * SD) ** 2


SURROGATES = {
    "own": Gaussian,
    "LogDensityGP": lambda: LogDensityGP(20, rng=0).fit(DRAWS, Gaussian().log_density(DRAWS)),
    "KernelExpLite": lambda: KernelExpLite(8.0, 1.0, base="gaussian").fit(DRAWS),
    "KernelExpFinite": lambda: KernelExpFinite(50, 8.0, 1e-2, base="gaussian", rng=0).fit(DRAWS),
}


@pytest.mark.usefixtures("with_short_sequences")
@pytest.mark.parametrize("step_class", [kmc.KMC, kmc.KMCLite, kmc.KMCFinite])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_any_surrogate_drives_any_step(surrogate, step_class):
    """Means and squares within 4.5 Monte-Carlo errors: 4 comparisons, false alarm 4e-4 a case."""
    n_draws = 400 if surrogate == "own" else 1000
    with pm.Model():
        pm.Normal("x", MEAN, SD, shape=2)
        step = step_class(surrogate=SURROGATES[surrogate]())
        idata = pm.sample(step=step, tune=100, draws=n_draws, random_seed=3, **ONE_CHAIN)
    statistics = idata.sample_stats
    assert (statistics["kmc_n_fits"] == 0).all()
    moves = statistics["kmc_move"].values
    on_the_surrogate = ~np.isin(moves, [MoveKind.RANDOM_WALK, MoveKind.TEMPERED_TRANSITION])
    assert on_the_surrogate.mean() > 0.3
    assert statistics["acceptance_rate"].values[on_the_surrogate].mean() > 0.5
    z = (idata.posterior["x"].values - MEAN) / SD
    assert max(worst_moment(z[..., i], 0.0, 1.0) for i in range(2)) < TOLERANCE


@pytest.mark.usefixtures("with_short_sequences")
@pytest.mark.parametrize("step_class", [kmc.KMC, kmc.KMCLite, kmc.KMCFinite])
def test_a_users_own_makes_the_draws_of_the_compiled_one(step_class, monkeypatch):
    """The same surrogate, with what can be compiled and without, at the same cost."""
    monkeypatch.setattr(transitions, "_gradient_cost", lambda parameters, d: 4000)
    surrogate, chains = SURROGATES["KernelExpLite"](), []
    for given in (surrogate, OnlyDensityAndGradient(surrogate)):
        with pm.Model():
            pm.Normal("x", MEAN, SD, shape=2)
            step = step_class(surrogate=given, tune=False, rng=4)
        chains.append([point["x"] for point, _ in iterate(step, {"x": DRAWS[0]}, 8)])
    assert len(np.unique(chains[0], axis=0)) > 3
    # Rounding errors of what was learned grow along trajectories.
    np.testing.assert_allclose(chains[1], chains[0], rtol=0, atol=1e-4)


# What a step shows of its surrogate


@pytest.fixture(scope="module", params=[kmc.KMC, kmc.KMCLite])
def sampled(request):
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x**2, 0.5)
        step = request.param()
        idata = pm.sample(
            step=step, tune=150, draws=50, random_seed=1, discard_tuned_samples=False, **ONE_CHAIN
        )
    return idata, step


def test_the_surrogate_is_a_function_of_the_steps_coordinates(sampled):
    """Up to a constant it is what trajectories follow; its gradient is that of its values."""
    _, step = sampled
    surrogate, fitted = step.surrogate_, step.adapted.fitted
    X = np.random.default_rng(0).normal(size=(5, 2))
    found = surrogate.log_density(X)
    places = fitted.warp.forward(X)
    expected = np.array([fitted.hamiltonian.log_density(y) for y in places])
    expected -= fitted.warp.log_volume(X)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-7)
    for i, h in enumerate(1e-3 * np.eye(2)):
        slopes = (surrogate.log_density(X + h) - surrogate.log_density(X - h)) / 2e-3
        np.testing.assert_allclose(surrogate.gradient(X)[:, i], slopes, atol=1e-3, rtol=1e-3)
    with pm.Model():
        pm.Normal("x")
        pm.Normal("y")
        assert kmc.KMC(surrogate=surrogate, tune=False).surrogate_ is surrogate


def test_evaluations_are_those_of_tuning(sampled):
    idata, step = sampled
    X, values = step.history_
    n = int(idata.warmup_sample_stats["kmc_n_evaluations"].sum())
    # The first iteration pays for the start too, which isn't learned from.
    assert n - 6 <= len(values) <= n
    expected = pm.logp(pm.Normal.dist(), X[:, 0]).eval()
    expected += pm.logp(pm.Normal.dist(X[:, 0] ** 2, 0.5), X[:, 1]).eval()
    np.testing.assert_allclose(values, expected)


def test_prediction_errors(sampled):
    """They are known from the first fit on; those of accepted proposals make sense."""
    idata, step = sampled
    errors = idata.warmup_sample_stats["kmc_prediction_error"].values[0]
    n_fits = idata.warmup_sample_stats["kmc_n_fits"].values[0]
    assert np.isnan(errors[n_fits == 0]).all()
    assert np.isfinite(errors[n_fits > 0]).mean() > 0.9
    surrogate = step.surrogate_
    X = np.column_stack([idata.posterior[name].values[0] for name in "xy"])
    values = idata.sample_stats["lp"].values[0] - surrogate.log_density(X)
    moved = idata.sample_stats["kmc_accepted"].values[0]
    found = idata.sample_stats["kmc_prediction_error"].values[0]
    shifts = (found - values)[moved]
    np.testing.assert_allclose(shifts, shifts[0], atol=1e-6)


def test_nothing_is_shown_before_it_is_learned():
    with pm.Model():
        pm.Normal("x")
        step = kmc.KMC()
    with pytest.raises(NotFittedError, match="cores=1"):
        step.surrogate_  # noqa: B018
    assert step.history_[0].shape == (0, 1)
