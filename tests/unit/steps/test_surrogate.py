"""The random walk's probability depends on the state: the balance of the mixture of moves."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.steps.surrogate import RANDOM_WALK
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, LogDensityGP

# Given surrogates of a standard normal: too narrow, and in the wrong place.
CENTRE, WIDTH = 0.7, 0.4
STEPS = {
    "KMC": (kmc.KMC, {}),
    "KMCLite": (kmc.KMCLite, {"random_walk_probability": 0.03}),
    "KMCFinite": (kmc.KMCFinite, {"random_walk_probability": 0.03}),
}


def narrow_surrogate(name):
    if name == "KMC":
        X = np.linspace(-2.0, 3.0, 80)[:, None]
        values = -0.5 * ((X[:, 0] - CENTRE) / WIDTH) ** 2
        return LogDensityGP(20, radial=False, rng=0).fit(X, values)
    X = CENTRE + WIDTH * np.random.default_rng(0).standard_normal((100, 1))
    if name == "KMCLite":
        return KernelExpLite(1.0, 100.0, base="gaussian").fit(X)
    return KernelExpFinite(50, 1.0, 1.0, base="gaussian", rng=0).fit(X)


def frozen_step(name, is_broken=False):
    step_class, options = STEPS[name]
    if is_broken:
        step_class = type("WithoutCorrection", (Uncorrected, step_class), {})
    with pm.Model():
        pm.Normal("x", shape=1)
        step = step_class(tune=False, surrogate=narrow_surrogate(name), rng=5, **options)
    step.step({"x": np.array([CENTRE])})
    return step


class Uncorrected:
    """Forgets that the moves' probabilities depend on the state."""

    def _log_correction(self, proposal, current, evaluation):
        return 0.0


def balance(step, n):
    """Errors, in standard errors, of E g(x') h(x) - E h(x') g(x) from exact draws x; and moves."""
    x = np.random.default_rng(6).standard_normal(n)
    step.set_rng = None  # a new chain would reset what was learned
    ends, moves = np.empty(n), np.empty(n, dtype=int)
    for i in range(n):
        point, (statistics,) = step.step({"x": np.array([x[i]])})
        ends[i], moves[i] = point["x"][0], statistics["kmc_move"]

    def functions(x):
        return np.array([np.ones(n), np.tanh(x), x > 1.5, x < -0.5, np.abs(x) < 0.5])

    before, after = functions(x), functions(ends)
    scores = []
    for i in range(5):
        for j in range(i):
            difference = before[i] * after[j] - before[j] * after[i]
            scores.append(difference.mean() / (difference.std() / np.sqrt(n) + 1e-12))
    return np.abs(scores).max(), x, moves


@pytest.mark.parametrize("name", STEPS)
def test_the_mixture_is_in_detailed_balance(name):
    """Ten comparisons of 15,000 independent pairs at 4.5 standard errors: false alarm 7e-5."""
    worst, x, moves = balance(frozen_step(name), 15_000)
    assert worst < 4.5
    at_centre = np.abs(x - CENTRE) < 0.3
    share = [np.mean(moves[group] == RANDOM_WALK) for group in (x < -1, at_centre)]
    assert share[0] > 0.5 > 0.1 > share[1]


@pytest.mark.parametrize("name", STEPS)
def test_the_mixtures_balance_can_fail(name):
    worst, _, _ = balance(frozen_step(name, is_broken=True), 15_000)
    assert worst > 9


@pytest.mark.parametrize("name", ["KMCLite", "KMCFinite"])
def test_no_random_walks_where_none_are_wanted(name):
    """As in the paper: whatever the log weight."""
    step_class, _ = STEPS[name]
    with pm.Model():
        pm.Normal("x", shape=1)
        step = step_class(
            tune=False, surrogate=narrow_surrogate(name), rng=6, random_walk_probability=0.0
        )
    moves = set()
    for x in np.r_[CENTRE, np.linspace(-3.0, 3.0, 200)]:
        _, (statistics,) = step.step({"x": np.array([x])})
        moves.add(statistics["kmc_move"])
    assert RANDOM_WALK not in moves
