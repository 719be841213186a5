"""Arguments of KMC lite and finite, and a surrogate that is given."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation.fit_to_scores import FitToScores
from pymc_kmc.moves.base import MoveKind, OneOf
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite
from tests.chains import ONE_CHAIN, column, run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": False}, "tune=False.*fitted"),
        ({"base": "student"}, "base='student'"),
        ({"schedule": "daily"}, "schedule='daily'"),
        ({"schedule": "online", "values": True}, "values=True needs schedule='geometric'"),
        ({"target_acceptance": 1.0}, "target_acceptance must be between 0 and 1, got 1.0"),
        ({"random_walk_probability": 0.9}, "random_walk_probability must be between"),
        ({"sigma": -1.0}, "sigma=-1.0 must be a number, positive and finite"),
        ({"regularisation": 0.0}, "regularisation=0.0 must be a number, positive and finite"),
        ({"n_points": 0}, "n_points=0"),
        ({"penalty": "lasso"}, "penalty='lasso'"),
        ({"step_size": (0.3, 0.1)}, "step_size must be two numbers"),
        ({"n_leapfrog": (1, 2.5)}, "n_leapfrog must be two whole numbers"),
        ({"n_leapfrog": (0, 5)}, "n_leapfrog must be"),
        ({"adaptation": "never"}, "adaptation='never' is unknown; pass 'tuning' or 'vanishing'"),
        ({"surrogate": KernelExpLite(1.0, 1.0)}, "not fitted"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match=message):
            kmc.KMCLite(**options)


@pytest.mark.parametrize("step_class", [kmc.KMCLite, kmc.KMCFinite])
def test_a_surrogate_of_another_dimension(step_class):
    surrogate = KernelExpLite(4.0, 1.0).fit(np.random.default_rng(0).normal(size=(20, 3)))
    with pm.Model():
        pm.Normal("x", shape=2)
        with pytest.raises(ValueError, match="3 coordinates.*2 unconstrained values"):
            step_class(surrogate=surrogate)


@pytest.mark.parametrize("step_class", [kmc.KMCLite, kmc.KMCFinite])
def test_a_given_surrogate_is_used_as_it_is(step_class):
    rng = np.random.default_rng(1)
    surrogate = KernelExpFinite(100, 8.0, 1e-3, base="gaussian", rng=2)
    surrogate.fit(rng.standard_normal((300, 2)))
    with pm.Model():
        pm.Normal("x", shape=2)
        options = {"step_size": (0.3, 0.6), "n_leapfrog": (3, 6), "tune": False}
        step = step_class(surrogate=surrogate, random_walk_probability=0.0, **options)
        idata = pm.sample(step=step, tune=0, draws=300, random_seed=3, **ONE_CHAIN)
    statistics = idata.sample_stats
    assert (statistics["kmc_move"] == MoveKind.LONG_TRAJECTORY).all()
    assert (statistics["kmc_n_fits"] == 0).all()
    assert ((statistics["n_steps"] >= 3) & (statistics["n_steps"] <= 6)).all()
    assert ((statistics["step_size"] >= 0.3) & (statistics["step_size"] <= 0.6)).all()
    assert statistics["acceptance_rate"].mean() > 0.7


def test_energy_is_the_hamiltonian():
    """Its mean is that of the potential plus d / 2."""
    with pm.Model():
        pm.Normal("x", shape=4)
        step = kmc.KMCLite(n_points=200)
        idata = pm.sample(step=step, tune=300, draws=3000, random_seed=4, **ONE_CHAIN)
    excess = (idata.sample_stats["energy"] + idata.sample_stats["lp"]).mean()
    assert float(excess) == pytest.approx(2.0, abs=0.2)


def test_moves_are_random_walks_first_and_trajectories_of_two_lengths_then(monkeypatch):
    """Random walks report the energy of a momentum too."""
    monkeypatch.setattr(OneOf, "SMALLEST", 0.2)  # short ones are rare on a good surrogate
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KMCLite(n_points=100, rng=5)
    point, first = run(step, model.initial_point(), 40)
    assert set(column(first, "kmc_move")) == {MoveKind.RANDOM_WALK}
    assert step.adapted.fits.n_fits == 1
    _, statistics = run(step, point, 300)
    moves, n_steps = column(statistics, "kmc_move"), column(statistics, "n_steps")
    kinds = MoveKind.RANDOM_WALK, MoveKind.LONG_TRAJECTORY, MoveKind.SHORT_TRAJECTORY
    assert set(moves) == set(kinds)
    walks, long, short = (n_steps[moves == kind] for kind in kinds)
    assert np.all(walks == 0) and 1 <= short.min() < short.mean() < long.mean()
    assert np.isfinite(column(first + statistics, "energy")).all()


@pytest.mark.parametrize(("schedule", "most"), [("online", 10), ("geometric", 30)])
def test_fits_are_bounded_by_iterations(schedule, most, monkeypatch):
    """The updates of the online schedule are beside few fits, not beside as many again."""
    fits = []

    def fit(self, history, last, rng):
        fits.append(len(history))

    monkeypatch.setattr(FitToScores, "fit", fit)
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        step = kmc.KMCFinite(schedule=schedule, n_features=20, rng=1)
    run(step, model.initial_point(), 1000)
    assert 5 <= len(fits) <= most
