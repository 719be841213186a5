"""Extras: kept with the accepted evaluation, whatever runs, stores or averages evaluations."""

from concurrent.futures import ThreadPoolExecutor

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.extras import chosen
from tests.estimates import TOLERANCE, z_score_of_draws
from tests.targets import sample

VALUES = (0.5, 1.5)  # of a box's data


def estimator(x, rng):
    z = x + rng.standard_normal()
    return -0.5 * (z - 1.0) ** 2, {"pair": [x, z], "z": z}


def model_of(estimator=estimator, **options):
    with pm.Model(coords={"what": ["x", "z"]}) as model:
        options = {"extras": {"pair": "what", "z": ()}} | options
        kmc.PseudoMarginalPotential("y", estimator, pm.Normal("x"), **options)
    return model


def box(x):
    return [x, 2 * x], {"pair": [x, 0.0], "z": x**2}


def model_of_box(function=box, **options):
    with pm.Model(coords={"what": ["x", "z"]}) as model:
        options = {"extras": {"pair": "what", "z": ()}} | options
        mean = kmc.BlackBox("y", function, pm.Normal("x"), shape=2, **options)
        pm.Normal("data", mean, 1.0, observed=VALUES)
    return model


def simulator(x, rng):
    z = x + rng.standard_normal()
    return z, {"pair": [x, z], "z": z}


def model_of_simulator(simulator=simulator, **options):
    with pm.Model(coords={"what": ["x", "z"]}) as model:
        options = {"extras": {"pair": "what", "z": ()}, "n_simulations": 3} | options
        kmc.ABCPotential("y", simulator, pm.Normal("x"), observed=1.0, epsilon=1.0, **options)
    return model


MODELS = [model_of, model_of_box, model_of_simulator]


def check(idata, model):
    """Extras are those of the evaluations at the draws: x is the draw, z is of the same call."""
    found = kmc.extras(idata, model)
    assert found["pair"].dims == ("chain", "draw", "what")
    assert list(found["what"].values) == ["x", "z"]
    np.testing.assert_array_equal(found["pair"].sel(what="x"), idata.posterior["x"])
    if model.potentials:
        np.testing.assert_array_equal(found["pair"].sel(what="z"), found["z"])
    return found


@pytest.mark.parametrize("make", MODELS)
def test_they_are_of_the_accepted_evaluation(make):
    model = make()
    with model:
        idata = sample(kmc.AdaptiveMetropolis(), chains=2)
    check(idata, model)


@pytest.mark.parametrize("cores", [1, 2])
def test_with_learning_before_the_chains_and_in_processes(cores):
    model = model_of_box()
    with model:
        idata = sample(kmc.KMC(), chains=2, cores=cores)
    check(idata, model)


@pytest.mark.parametrize("make", [model_of, model_of_simulator])
@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2)])
def test_averages_and_executors(make, executor, tmp_path):
    """Neither the executor nor the store changes extras, and the store has them."""
    number = "n_replicates" if make is model_of else "n_simulations"
    found = []
    for where in ({}, {"executor": executor, "store": tmp_path / "a.db"}):
        model = make(**{number: 4}, **where)
        with model:
            found += [check(sample(kmc.AdaptiveMetropolis()), model)]
    np.testing.assert_array_equal(found[0]["z"], found[1]["z"])


@pytest.mark.parametrize("make", MODELS)
def test_a_store_has_them_and_one_without_them_counts_as_missing(make, tmp_path):
    functions = {model_of: estimator, model_of_box: box, model_of_simulator: simulator}
    function, n, found = functions[make], [0], []

    def counted(*args, **kwargs):
        n[0] += 1
        return function(*args, **kwargs)

    def bare(*args, **kwargs):
        return counted(*args, **kwargs)[0]

    def renamed(*args, **kwargs):
        value, extras = counted(*args, **kwargs)
        return value, {"new": extras["z"], "pair": extras["pair"]}

    store, calls = tmp_path / "a.db", []
    extras = {"pair": "what", "z": ()}
    other = {"pair": "what", "new": ()}
    for f, kept in [
        (bare, None),
        (counted, extras),
        (counted, extras),
        (bare, None),
        (renamed, other),
    ]:
        n[0] = 0
        model = make(f, extras=kept, store=store)
        with model:
            idata = sample(kmc.AdaptiveMetropolis())
        calls += [n[0]]
        found += [idata.posterior["x"].values]
        if kept is extras:
            check(idata, model)
    assert calls[1] > 50  # evaluated again, as they were stored without
    assert calls[2] == calls[3] == 0  # a function without extras finds values stored with them
    assert calls[4] > 50
    assert all(np.array_equal(x, found[0]) for x in found)


def test_beside_other_steps():
    """What another step has moved is evaluated again, under the same seed."""

    def of_both(x, y, rng):
        noise = rng.standard_normal()
        return -0.5 * (x + y - 1) ** 2 + noise - 0.5, {"all": [x, y, noise]}

    with pm.Model():
        x, y = pm.Normal("x"), pm.Normal("y")
        kmc.PseudoMarginalPotential("z", of_both, x, y, extras={"all": 3})
        idata = sample([pm.Slice([y]), kmc.AdaptiveMetropolis([x])], draws=200)
    found = kmc.extras(idata)["all"].values[0]
    np.testing.assert_array_equal(found[:, 0], idata.posterior["x"].values[0])
    np.testing.assert_array_equal(found[:, 1], idata.posterior["y"].values[0])
    stayed = ~idata.sample_stats["kmc_accepted"].values[0]
    assert stayed[1:].any()
    assert np.array_equal(found[1:, 2][stayed[1:]], found[:-1, 2][stayed[1:]])


@pytest.mark.parametrize("gradient_step", [kmc.GadMALA, kmc.GadRWM])
def test_beside_steps_that_keep_none(gradient_step):
    """They are another step's of this package, or said to be missing: never NaN."""
    with pm.Model():
        x, w = pm.Normal("x"), pm.Normal("w")
        box = kmc.BlackBox("b", lambda x: (-0.5 * x**2, {"e": 2 * x}), x, extras={"e": ()})
        pm.Potential("y", box)
        last = gradient_step([w])
        idata = sample([kmc.AdaptiveMetropolis([x]), last])
        without = sample([pm.Metropolis([x]), last], draws=20, tune=20)
    np.testing.assert_array_equal(kmc.extras(idata)["e"], 2 * idata.posterior["x"])
    with pytest.raises(ValueError, match="no extras.*other than GadMALA and GadRWM"):
        kmc.extras(without)


def test_two_steps_of_this_package_report_the_last_ones():
    def of_both(x, y, rng):
        return rng.standard_normal(), {"all": [x, y]}

    with pm.Model():
        x, y = pm.Normal("x"), pm.Normal("y")
        kmc.PseudoMarginalPotential("z", of_both, x, y, extras={"all": (2,)})
        idata = sample([kmc.AdaptiveMetropolis([x]), kmc.AdaptiveMetropolis([y])])
    found = kmc.extras(idata)["all"].values[0]
    np.testing.assert_array_equal(found[:, 0], idata.posterior["x"].values[0])
    np.testing.assert_array_equal(found[:, 1], idata.posterior["y"].values[0])


def test_many_points_of_a_vectorized_box_that_may_fail():
    def many(x):
        values = np.stack([x, 2 * x], axis=1)
        values[x < -1] = np.nan
        return values, {"pair": values[:, :2] * [1, 0], "z": x**2}

    model = model_of_box(many, vectorized=True, on_error="reject")
    with model:
        idata = sample(kmc.AdaptiveMetropolis())
    found = check(idata, model)
    np.testing.assert_allclose(found["z"], idata.posterior["x"] ** 2)
    (op,) = kmc.black_boxes(model)
    op.reasons.clear()
    with pytest.warns(UserWarning, match="cut out of the prior"):
        outputs, succeeded = op.evaluate_many([np.array([0.5, -2.0, 1.0])])
    np.testing.assert_array_equal(succeeded, [True, False, True])
    np.testing.assert_array_equal(outputs[[0, 2], 1], [1.0, 2.0])


def test_data_sets_made_at_once():
    def many(x, rng, size):
        z = x + rng.standard_normal(size)
        return z, {"pair": np.stack([np.full(size, x), z], axis=1), "z": z}

    model = model_of_simulator(many)
    with model:
        idata = sample(kmc.AdaptiveMetropolis())
    check(idata, model)


def test_a_replicate_is_chosen_by_its_weight():
    log_weights = np.log([0.5, 0.3, 0.0, 0.2], where=[1, 1, 0, 1], out=np.full(4, -np.inf))
    rng = np.random.default_rng(0)
    n = 20_000
    indices = [chosen(log_weights, rng.integers(2**63, size=4)) for _ in range(n)]
    shares = np.bincount(indices, minlength=4) / n
    assert shares[2] == 0
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.0, 0.2], atol=TOLERANCE * 0.5 / np.sqrt(n))


@pytest.mark.exactness
@pytest.mark.parametrize("n_replicates", [1, pytest.param(4, marks=pytest.mark.one_line)])
def test_latent_values_are_exact_draws(n_replicates):
    """x ~ N(0, 1), z ~ N(x, 1), data 1 ~ N(z, 1): z has the posterior N(2/3, 2/3)."""
    model = model_of(n_replicates=n_replicates)
    with model:
        idata = sample(kmc.AdaptiveMetropolis(), tune=2000, draws=20_000)
    z = kmc.extras(idata)["z"].values
    assert abs(z_score_of_draws(z, 2 / 3)) < TOLERANCE
    assert abs(z_score_of_draws((z - 2 / 3) ** 2, 2 / 3)) < TOLERANCE


@pytest.mark.one_line
def test_the_check_of_latent_values_can_fail(monkeypatch):
    """The first replicate, whatever its weight, is found out."""
    module = "pymc_kmc.likelihoods.noisy_log_likelihood.chosen"
    monkeypatch.setattr(module, lambda weights, noise: 0)
    with model_of(n_replicates=4):
        idata = sample(kmc.AdaptiveMetropolis(), tune=2000, draws=20_000)
    z = kmc.extras(idata)["z"].values
    assert abs(z_score_of_draws(z, 2 / 3)) > 1.5 * TOLERANCE


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (0.0, r"'y' must return its value and a dict of \['pair', 'z'\].*returned 0.0"),
        ((0.0, {"pair": [0, 0]}), r"must return the extras \['pair', 'z'\].*returned \['pair'\]"),
        ((0.0, {"pair": [0, 0, 0], "z": 1}), r"extra 'pair' .* shape \(2,\).*shape \(3,\)"),
        ((0.0, {"pair": ["a", "b"], "z": 1}), "extra 'pair' as real numbers"),
        ((0.0, {"pair": [0, 0], "z": None}), "extra 'z' as real numbers"),
    ],
)
@pytest.mark.parametrize("make", MODELS)
def test_wrong_extras_are_refused_when_the_model_is_built(make, returned, message):
    with pytest.raises(TypeError, match=message):
        make(lambda *args, **kwargs: returned)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(
    ("extras", "error", "message"),
    [
        ([1], TypeError, "extras of the .* 'y' must be a dict of shapes"),
        ({}, TypeError, "must be a dict of shapes"),
        ({"z": 0}, ValueError, r"extras\['z'\] of the .* 'y' has the shape 0"),
        ({"z": "nowhere"}, ValueError, "one of the model's dims"),
        ({1: ()}, TypeError, "must map names to shapes"),
        ({"z": 1.5}, TypeError, "must map names to shapes"),
        ({"what": "what"}, ValueError, "has the name 'what', which is a dimension of the model"),
        ({"draw": 3}, ValueError, "has the name 'draw', which is a dimension of every result"),
    ],
)
def test_wrong_arguments(make, extras, error, message):
    with pytest.raises(error, match=message):
        make(extras=extras)


def test_two_extras_of_one_name_are_refused_before_sampling():
    with pm.Model():
        x = pm.Normal("x")
        for name in "ab":
            kmc.PseudoMarginalPotential(name, lambda x, rng: (0.0, {"z": x}), x, extras={"z": ()})
        with pytest.raises(ValueError, match="both have the extra 'z'"):
            kmc.AdaptiveMetropolis()


def test_errors_while_sampling_name_the_extra():
    def changing(x, rng):
        return 0.0, {"pair": [x, 1.0][: 2 if abs(x) < 1 else 1], "z": x}

    with model_of(changing), pytest.raises(kmc.EstimatorError, match="(?s)extra 'pair'.*PCG64"):
        sample(kmc.AdaptiveMetropolis(), draws=500)


# In the result


def test_loo_of_kept_log_likelihoods_is_the_exact_models(tmp_path):
    data, n = np.random.default_rng(1).normal(1.0, 1.0, 30), [0]

    def pointwise(x):
        n[0] += 1
        terms = -0.5 * (data - x) ** 2 - 0.5 * np.log(2 * np.pi)
        return terms.sum(), {"pointwise": terms}

    with pm.Model(coords={"i": range(30)}) as model:
        x = pm.Normal("x")
        pm.Potential("y", kmc.BlackBox("f", pointwise, x, extras={"pointwise": "i"}))
        idata = sample(kmc.AdaptiveMetropolis(), chains=2, tune=500, draws=500)
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x, 1.0, observed=data)
        exact = pm.compute_log_likelihood(idata.copy(), progressbar=False)
    n_sampling = n[0]
    idata.to_netcdf(tmp_path / "idata.nc")
    loaded = az.from_netcdf(tmp_path / "idata.nc")
    kept = kmc.with_extras(loaded, model, log_likelihood={"y": "pointwise"})
    assert n[0] == n_sampling
    assert getattr(loaded, "log_likelihood", None) is None
    assert kept.log_likelihood["y"].dims == ("chain", "draw", "i")
    np.testing.assert_allclose(kept.log_likelihood["y"], exact.log_likelihood["y"])
    found, expected = (az.loo(each, var_name="y") for each in (kept, exact))
    name = "elpd_loo" if hasattr(found, "elpd_loo") else "elpd"
    assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9)
    with pytest.raises(ValueError, match="has a group 'log_likelihood' already"):
        kmc.with_extras(kept, log_likelihood="pointwise")
    with pytest.raises(ValueError, match=r"no extras \['nothing'\], only \['pointwise'\]"):
        kmc.with_extras(idata, log_likelihood="nothing")


def test_coordinates_are_those_drawn_at():
    """The model's, which `pymc.set_data` changes, are taken where the result has none."""
    with pm.Model(coords={"time": [5, 6, 7], "of": ["x"]}) as model:
        data = pm.Data("data", np.arange(3.0), dims="time")
        x, extras = pm.Normal("x"), {"curve": "time", "point": "of"}

        def function(x, data):
            return -(x**2), {"curve": x * data, "point": [x]}

        pm.Potential("y", kmc.BlackBox("f", function, x, data, extras=extras))
        idata = sample(kmc.AdaptiveMetropolis())
    for coords in ({"time": [8, 9, 10]}, {"time": [8, 9]}):
        pm.set_data({"data": np.zeros(len(coords["time"]))}, coords=coords, model=model)
        found = kmc.extras(idata, model)
        np.testing.assert_array_equal(found["time"], [5, 6, 7])
        assert list(found["of"].values) == ["x"]
    del idata["constant_data"]
    assert "time" not in kmc.extras(idata, model).coords
    kept = kmc.with_extras(idata, model, log_likelihood={"y": "curve"})
    assert kept.log_likelihood["y"].dims == ("chain", "draw", "time")


def test_a_multitrace_and_a_run_without_extras():
    with model_of():
        trace = sample(kmc.AdaptiveMetropolis(), return_inferencedata=False)
    np.testing.assert_array_equal(kmc.extras(trace)["pair"][..., 0].values[0], trace["x"])
    with pm.Model():
        pm.Normal("x")
        idata = sample(kmc.AdaptiveMetropolis())
    with pytest.raises(ValueError, match="idata has no extras"):
        kmc.extras(idata)


def test_extras_that_are_nan_are_named():
    """They aren't missing: another step would find the same."""
    with pm.Model():
        x = pm.Normal("x")
        box = kmc.BlackBox("b", lambda x: (-0.5 * x**2, {"e": np.nan}), x, extras={"e": ()})
        pm.Potential("y", box)
        idata = sample(kmc.AdaptiveMetropolis(), draws=20, tune=20)
    with pytest.raises(ValueError, match=r"extras \['e'\] .* NaN at every draw: .*function"):
        kmc.extras(idata)
