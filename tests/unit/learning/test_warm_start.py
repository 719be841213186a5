"""What was learned under one prior, or of some data, is the start under another."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.learned import OBSERVED, TIMES, learned_curve, on_grid

QUIET = {"progressbar": False}


def model(calls, prior=(0.0, 1.0), observed=OBSERVED, sigma=0.1, times=TIMES):
    def decay(size, rate):
        calls.append((size, rate))
        return size * np.exp(-rate * times)

    with pm.Model() as model:
        size, rate = pm.LogNormal("size", *prior), pm.LogNormal("rate", 0, 1)
        mean = kmc.BlackBox("curve", decay, size, rate, shape=(len(times),))
        pm.Normal("y", mean, sigma, observed=observed)
    calls.clear()
    return model


def moments(log_weights):
    """Means and standard deviations on the grid of the first model, its weights times others."""
    X, weights = on_grid()
    weights = weights * np.exp(log_weights(X) - log_weights(X).max())
    weights /= weights.sum()
    mean = weights @ X
    return mean, np.sqrt(weights @ (X - mean) ** 2)


def of_prior(X):
    return 0.5 * X[:, 0] ** 2 - 0.5 * ((X[:, 0] - 1.4) / 0.05) ** 2


CHANGED = OBSERVED + 0.02


def of_data(X):
    curves = np.exp(X[:, :1] - np.exp(X[:, 1:]) * TIMES)
    return 0.5 * ((curves - OBSERVED) ** 2 - (curves - CHANGED) ** 2).sum(axis=1) / 0.01


@pytest.mark.exactness
@pytest.mark.parametrize(
    ("changes", "log_weights"),
    [({"prior": (1.4, 0.05)}, of_prior), ({"observed": CHANGED}, of_data)],
)
def test_another_prior_or_other_data_cost_no_evaluation(changes, log_weights):
    calls, first = [], learned_curve()
    changed = model(calls, **changes)
    learned = kmc.learn(changed, evaluations=first, **QUIET)
    assert learned.has_converged and not learned.rounds
    # The best place, which tells whether the function is the same.
    assert learned.n_evaluations == 0 and len(calls) == 1
    mean, sd = moments(log_weights)
    X = learned.positions
    np.testing.assert_array_less(np.abs(X.mean(axis=0) - mean) / sd, 0.15)
    np.testing.assert_allclose(X.std(axis=0), sd, rtol=0.1)
    table, (size, rate) = learned.summary(), np.exp(X.mean(axis=0))
    np.testing.assert_allclose(table["50%"], [size, rate], rtol=0.02)
    with changed:
        idata = pm.sample(step=kmc.KMC(learned), tune=50, draws=300, chains=2, cores=1, **QUIET)
    draws = np.log([np.ravel(idata.posterior[name]) for name in ("size", "rate")])
    np.testing.assert_array_less(np.abs(draws.mean(axis=1) - mean) / sd, 0.3)


@pytest.mark.parametrize("changes", [{}, {"observed": CHANGED}])
def test_modes_are_those_of_the_model(changes):
    """Those of the earlier one stay if log densities are the same."""
    first, changed = learned_curve(), model([], **changes)
    assert first.modes
    learned = kmc.learn(changed, evaluations=first, **QUIET)
    density = changed.compile_logp()
    for mode in learned.modes:
        point = dict(zip(learned.evaluations.names, mode.x, strict=True))
        np.testing.assert_allclose(mode.log_density, density(point), rtol=1e-6)
    assert bool(learned.modes) == (not changes)
    assert ("4 searches" in repr(learned)) == (not changes)


@pytest.mark.exactness
def test_a_posterior_elsewhere_is_evaluated():
    calls, first = [], learned_curve()
    changed = model(calls, observed=5.0 * np.exp(-0.2 * TIMES))
    learned = kmc.learn(changed, evaluations=first, **QUIET)
    assert learned.has_converged and learned.n_evaluations > 0
    mean, sd = learned.positions.mean(axis=0), learned.positions.std(axis=0)
    np.testing.assert_array_less(np.abs(mean - np.log([5.0, 0.2])) / sd, 1.0)


@pytest.mark.filterwarnings("ignore:Learning ended")
def test_a_smaller_error_than_earlier_evaluations_show_is_learned():
    first = learned_curve()
    learned = kmc.learn(model([]), evaluations=first, tolerance=1e-4, max_evaluations=80, **QUIET)
    assert learned.n_evaluations > 0


def test_other_constants_of_the_function_are_told():
    with pytest.raises(ValueError, match="another model.*Learn anew"):
        kmc.learn(model([], times=TIMES + 0.1), evaluations=learned_curve(), **QUIET)


@pytest.mark.parametrize(
    "changes",
    [
        {"prior": (1.4, 0.05)},
        {"observed": CHANGED},
        {"sigma": 0.2},
        {"times": TIMES[:4], "observed": OBSERVED[:4]},
    ],
)
def test_chains_refuse_another_models_posterior(changes):
    with model([], **changes), pytest.raises(ValueError, match=r"kmc\.learn\(evaluations=learned"):
        kmc.KMC(learned_curve())
