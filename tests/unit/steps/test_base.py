"""What every step does, whatever its algorithm."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.moves.base import Move, MoveKind, Proposal
from tests.chains import column, run
from tests.steps import STEPS
from tests.targets import sample


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("blocked", [True, False])
def test_a_variable_given_twice_is_refused(name, blocked):
    with pm.Model():
        x, y = pm.Normal("x", 2.0, shape=2), pm.Normal("y")
        with pytest.raises(ValueError, match=r"vars has \['x'\] more than once"):
            STEPS[name](vars=[x, y, x], blocked=blocked)


# What each step's first moves are: before anything was learned.
FIRST_MOVES = {
    "AdaptiveMetropolis": MoveKind.RANDOM_WALK,
    "KAMH": MoveKind.RANDOM_WALK,
    "GadMALA": MoveKind.LANGEVIN,
    "GadRWM": MoveKind.RANDOM_WALK,
    "KMC": MoveKind.RANDOM_WALK,
    "KMCLite": MoveKind.RANDOM_WALK,
    "KMCFinite": MoveKind.RANDOM_WALK,
}


@pytest.mark.parametrize("name", STEPS)
def test_the_kind_of_every_move_is_reported(name):
    with pm.Model() as model:
        pm.Normal("x")
        step = STEPS[name](rng=1)
    _, statistics = run(step, model.initial_point(), 10)
    assert set(column(statistics, "kmc_move")) == {FIRST_MOVES[name]}


class ToTheMode(Move):
    """Proposes the best place there is."""

    kind = MoveKind.RANDOM_WALK

    def __init__(self, is_draw):
        self.is_draw = is_draw

    def propose(self, current, fitted, rng):
        return Proposal(np.zeros_like(current.position), self)


@pytest.mark.parametrize("is_draw", [True, False])
def test_what_is_no_draw_is_evaluated_and_never_accepted(is_draw):
    """However good it is; and it says nothing of how the chain moves."""
    with pm.Model():
        pm.Normal("x", shape=2)
        step = kmc.AdaptiveMetropolis(tune=False, rng=2)
    move = ToTheMode(is_draw)
    step._propose = lambda current: move.propose(current, None, None)
    point, statistics = run(step, {"x": np.full(2, 5.0)}, 20)
    np.testing.assert_array_equal(point["x"], [0.0, 0.0] if is_draw else [5.0, 5.0])
    assert np.all(column(statistics[1:], "kmc_n_evaluations") == 1)
    assert np.all(column(statistics, "acceptance_rate") == is_draw)
    assert statistics[-1]["kmc_recent_acceptance"] == is_draw
    assert statistics[-1]["kmc_steps_since_accept"] == 0


@pytest.mark.parametrize(("log_ratio", "n_evaluations"), [(0.0, 1), (-np.inf, 0)])
def test_a_ratio_of_zero_is_rejected_without_an_evaluation(log_ratio, n_evaluations):
    with pm.Model():
        pm.Normal("x", shape=2)
        step = kmc.AdaptiveMetropolis(tune=False, rng=3)
    proposal = Proposal(np.zeros(2), ToTheMode(True), log_ratio)
    step._propose = lambda current: proposal
    _, statistics = run(step, {"x": np.full(2, 5.0)}, 3)
    assert set(column(statistics[1:], "kmc_n_evaluations")) == {n_evaluations}
    assert column(statistics, "kmc_accepted").all() == (log_ratio == 0.0)


class ToNowhere(ToTheMode):
    """Proposes a place where the estimate is zero, from another such place."""

    def propose(self, current, fitted, rng):
        return Proposal(current.position + 1.0, self)


def test_from_one_estimate_of_zero_to_another_without_a_warning(recwarn):
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential("loglik", lambda x, rng: -np.inf, x)
        step = kmc.AdaptiveMetropolis(tune=False, rng=3)
    evaluate = step.target.evaluate

    def evaluate_as_numpy_does(position, noise):
        """A scalar of NumPy's warns where a float of Python's doesn't."""
        evaluation = evaluate(position, noise)
        return evaluation._replace(log_density=np.float64(evaluation.log_density))

    step.target.evaluate = evaluate_as_numpy_does
    step._propose = lambda current: ToNowhere(True).propose(current, None, None)
    _, statistics = run(step, model.initial_point(), 20)
    assert not column(statistics, "kmc_accepted").any()
    assert statistics[-1]["kmc_n_invalid"] == 0
    assert [str(warning.message) for warning in recwarn] == []


def interrupted(step, at):
    """Let a step be interrupted at its n-th proposal, inside of compiled code as numba does it."""
    propose, seen = step._propose, []

    def interrupt(current):
        seen.append(current)
        if len(seen) < at:
            return propose(current)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("returned a result with an exception set") from error

    step._propose = interrupt
    return step


def test_an_interrupt_of_compiled_code_keeps_the_draws():
    with pm.Model():
        pm.Normal("x")
        step = interrupted(kmc.AdaptiveMetropolis(), at=26)
        draws = sample(step, draws=100, tune=10)
    assert draws.posterior.sizes["draw"] == 15


def test_an_interrupt_of_the_last_fit_is_one(monkeypatch):
    """PyMC ends tuning outside of an iteration."""
    with pm.Model() as model:
        pm.Normal("x")
        step = kmc.AdaptiveMetropolis()
    step.set_rng(np.random.default_rng(0))
    step.step(model.initial_point())

    def fit():
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr(step, "_end_tuning", fit)
    with pytest.raises(KeyboardInterrupt):
        step.stop_tuning()


def test_other_errors_of_compiled_code_are_errors():
    with pm.Model() as model:
        pm.Normal("x")
        step = kmc.AdaptiveMetropolis()

    def fails(current):
        raise SystemError("broken")

    step._propose = fails
    with pytest.raises(SystemError, match="broken"):
        step.step(model.initial_point())


def test_a_step_has_one_chain_at_a_time():
    """Another thread's would be mixed up with it. Where the step was made doesn't matter."""
    with pm.Model() as model:
        pm.Normal("x")
        step = kmc.AdaptiveMetropolis()
    point = model.initial_point()
    step.set_rng(np.random.default_rng(0))
    step.step(point)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(step.set_rng, np.random.default_rng(1)).result()
        pool.submit(step.step, point).result()
        pool.submit(step.step, point).result()
    with pytest.raises(RuntimeError, match="AdaptiveMetropolis samples in another thread too"):
        step.step(point)


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_single_variables_beside_one_without_values(name):
    """PyMC gives each variable a step; one of none joins another's."""
    with pm.Model() as model:
        pm.Normal("none", shape=0)
        x, _, y = pm.Normal("x", shape=2), pm.Poisson("count", 1.0), pm.Normal("y")
        step = STEPS[name](blocked=False)
        assert [[v.name for v in each.vars] for each in step.methods] == [["x", "none"], ["y"]]
        idata = sample(STEPS[name]([x, model["none"], y], blocked=False), tune=20, draws=20)
    assert idata.posterior["none"].shape[2:] == (0,)
    assert np.ptp(idata.posterior["x"].values) > 0
