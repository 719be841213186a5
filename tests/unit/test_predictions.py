"""Predictions and log likelihoods at the draws, without calls of black boxes that need none."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytest
import xarray as xr
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_kmc as kmc

QUIET = {"progressbar": False}
N_DRAWS = 20


class Decay:
    """A curve that counts its calls, and fails at amplitudes above `most`."""

    def __init__(self, most=np.inf):
        self.n_calls, self.most = 0, most

    def __call__(self, amplitude, rate):
        self.n_calls += 1
        if amplitude > self.most:
            raise ArithmeticError("too large")
        return amplitude * np.exp(-rate * np.arange(4.0))


def sampled(is_kept, **options):
    function = Decay(3.0 if "on_error" in options else np.inf)
    with pm.Model() as model:
        amplitude, rate = pm.LogNormal("amplitude"), pm.HalfNormal("rate")
        curve = kmc.BlackBox("decay", function, amplitude, rate, shape=4, **options)
        if is_kept:
            curve = pm.Deterministic("curve", curve)
        pm.Normal("y", curve, 0.5, observed=[1.0, 0.6, 0.4, 0.2])
        idata = pm.sample(
            step=kmc.AdaptiveMetropolis(),
            tune=30,
            draws=N_DRAWS,
            chains=2,
            cores=1,
            random_seed=1,
            compute_convergence_checks=False,
            **QUIET,
        )
    return model, idata, function


def n_distinct(idata):
    return len(np.unique(np.ravel(idata.posterior["rate"].values)))


def are_pymcs(found, model, idata):
    """Compare with PyMC's own predictions and log likelihoods."""
    predicted = pm.sample_posterior_predictive(idata, model=model, random_seed=2, **QUIET)
    exact = pm.compute_log_likelihood(idata, model=model, extend_inferencedata=False, **QUIET)
    np.testing.assert_array_equal(found[0], predicted.posterior_predictive["y"].values)
    np.testing.assert_allclose(found[1], exact["y"].values, rtol=1e-12)


def ours(model, idata, **options):
    predicted = kmc.sample_posterior_predictive(idata, model, random_seed=2, **options, **QUIET)
    known = kmc.compute_log_likelihood(idata, model, extend_inferencedata=False, **options, **QUIET)
    return predicted.posterior_predictive["y"].values, known["y"].values


@pytest.mark.parametrize("options", [{}, {"on_error": "reject"}])
def test_what_a_deterministic_has_kept_needs_no_call(options):
    model, idata, function = sampled(True, **options)
    before = function.n_calls
    found = ours(model, idata)
    assert function.n_calls == before
    are_pymcs(found, model, idata)


def test_a_store_has_the_draws(tmp_path):
    model, idata, function = sampled(False, store=tmp_path / "decay.db")
    before = function.n_calls
    found = ours(model, idata)
    assert function.n_calls == before
    are_pymcs(found, model, idata)


def test_else_each_draw_is_one_call_of_a_batch():
    model, idata, function = sampled(False)
    before = function.n_calls
    with ThreadPoolExecutor(2) as pool:
        found = ours(model, idata, executor=pool)
    assert function.n_calls == before + 2 * n_distinct(idata)
    assert n_distinct(idata) < 2 * N_DRAWS
    are_pymcs(found, model, idata)


def test_what_is_known_is_forgotten_afterwards():
    model, idata, function = sampled(True)
    ours(model, idata)
    (box,) = kmc.black_boxes(model)
    before = function.n_calls
    row = [np.asarray(idata.posterior[name].values[0, 3]) for name in ("amplitude", "rate")]
    box._cache.clear()
    box.evaluate(*row)
    assert function.n_calls == before + 1


@pytest.mark.parametrize("changed", ["times", "new_length", "length_alone", "frozen"])
def test_what_was_kept_with_other_data_is_computed_anew(changed):
    n_calls = 0

    def curve(rate, times, length):
        nonlocal n_calls
        n_calls += 1
        return length * np.exp(-rate * times)

    with pm.Model(coords={"time": [0, 1, 2], "other": range(2)}) as model:
        times = pm.Data("times", np.arange(3.0), dims="time")
        data = pm.Data("data", np.array([2.0, 1.0, 0.5]), dims="time")
        pm.Data("unrelated", np.zeros(2), dims="other")
        rate, length = pm.HalfNormal("rate"), model.dim_lengths["other"]
        mean = kmc.BlackBox("curve", curve, rate, times, length, shape=times.shape)
        pm.Normal("y", pm.Deterministic("mean", mean), 0.1, observed=data)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=10, draws=10, chains=1, random_seed=1, **QUIET)
        n_sampling = n_calls
        pm.set_data({"unrelated": np.ones(2)})
        ours(model, idata)
        assert n_calls == n_sampling
        if changed in ("times", "frozen"):
            pm.set_data({"times": np.arange(3.0) + 5.0})
        elif changed == "new_length":
            new = {"times": np.arange(4.0), "data": np.zeros(4)}
            pm.set_data(new, coords={"time": range(4)})
        else:
            pm.set_data({"unrelated": np.ones(3)}, coords={"other": range(3)})
    if changed == "frozen":
        model = freeze_dims_and_data(model)
    found = ours(model, idata)
    assert n_calls == n_sampling + 2 * n_distinct(idata)
    are_pymcs(found, model, idata)


def test_what_was_kept_with_data_that_may_have_changed_is_computed_anew():
    scale = pytensor.shared(1.0, name="scale")
    with pm.Model() as model:
        rate = pm.HalfNormal("rate")
        mean = pm.Deterministic("mean", kmc.BlackBox("box", lambda *values: values[0], rate, scale))
        pm.Normal("y", mean, 0.1, observed=1.0)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=10, draws=10, chains=1, random_seed=1, **QUIET)
    (box,) = kmc.black_boxes(model)
    before = box.n_evaluations
    found = ours(model, idata)
    assert box.n_evaluations == before + 2 * n_distinct(idata)
    are_pymcs(found, model, idata)


def test_a_box_of_a_box_is_known_too():
    function = Decay()
    with pm.Model() as model:
        rate = pm.HalfNormal("rate")
        twice = kmc.BlackBox("twice", lambda rate: 2.0 * rate, rate)
        curve = kmc.BlackBox("decay", function, 1.0, twice, shape=4)
        pm.Normal("y", curve, 0.5, observed=[1.0, 0.6, 0.4, 0.2])
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=10, draws=10, chains=1, random_seed=1, **QUIET)
    before = function.n_calls
    found = ours(model, idata)
    assert function.n_calls == before + 2 * n_distinct(idata)
    are_pymcs(found, model, idata)


def test_a_variable_that_is_missing_is_named():
    model, idata, _ = sampled(False)
    del idata.posterior["rate"]
    with pytest.raises(ValueError, match=r"idata lacks \['rate'\], which 'decay'"):
        kmc.sample_posterior_predictive(idata, model, **QUIET)
    with pytest.raises(TypeError, match="executor"):
        kmc.sample_posterior_predictive(idata, model, executor=1)


@pytest.mark.parametrize("takes_size", [False, True])
def test_simulators_make_a_new_data_set_at_each_draw(takes_size):
    def one(scale, rng):
        return rng.exponential(scale, 3)

    def many(scale, rng, size):
        return rng.exponential(scale, (size, 3))

    with pm.Model() as model:
        scale = pm.LogNormal("scale")
        pm.Normal("y", scale, 1.0, observed=1.0)
        kmc.ABCPotential(
            "simulated",
            many if takes_size else one,
            scale,
            observed=np.full(3, 0.5),
            epsilon=1.0,
        )
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=20, draws=300, chains=2, random_seed=1, **QUIET)
    found = [
        kmc.sample_posterior_predictive(idata, model, random_seed=1, **QUIET, **options)
        for options in ({}, {}, {} if takes_size else {"executor": ThreadPoolExecutor(2)})
    ]
    first = found[0].posterior_predictive["simulated"]
    assert first.dims == ("chain", "draw", "simulated_dim_0") and first.shape == (2, 300, 3)
    assert "y" in found[0].posterior_predictive
    for other in found[1:]:
        np.testing.assert_array_equal(first, other.posterior_predictive["simulated"])
    # Independent exponentials, whose scale is the draw's.
    ratios = np.ravel(first / idata.posterior["scale"])
    assert abs(ratios.mean() - 1.0) < 4.5 / np.sqrt(len(ratios))
    assert len(np.unique(ratios.round(9))) > 0.9 * len(ratios)
    as_dict = kmc.sample_posterior_predictive(
        idata, model, random_seed=1, return_inferencedata=False, **QUIET
    )
    np.testing.assert_array_equal(as_dict["simulated"], first)


def test_simulators_are_asked_for_by_name():
    with pm.Model() as model:
        scale = pm.LogNormal("scale")
        for name in ("first", "second"):
            kmc.ABCPotential(
                name,
                lambda scale, rng: rng.exponential(scale, 3),
                scale,
                observed=np.full(3, 0.5),
                epsilon=1.0,
            )
        pm.Normal("y", scale, 1.0, observed=1.0)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=20, draws=20, chains=1, random_seed=1, **QUIET)
    for names in (["first", "y"], ["y"], ["second"]):
        found = kmc.sample_posterior_predictive(idata, model, var_names=names, **QUIET)
        assert set(found.posterior_predictive.data_vars) == set(names)
        if names != ["y"]:
            assert found.posterior_predictive[names[0]].shape == (1, 20, 3)


def test_a_simulator_alone_and_one_that_fails():
    def simulator(scale, rng):
        if is_broken:
            raise ArithmeticError("no data")
        return rng.exponential(scale, 3)

    is_broken = False
    with pm.Model() as model:
        scale = pm.LogNormal("scale")
        kmc.ABCPotential("simulated", simulator, scale, observed=np.full(3, 0.5), epsilon=1.0)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=20, draws=20, chains=1, random_seed=1, **QUIET)
    found = kmc.sample_posterior_predictive(idata, model, predictions=True, **QUIET)
    assert found.predictions["simulated"].shape == (1, 20, 3)
    is_broken = True
    with pytest.raises(kmc.EstimatorError, match="'simulated' raised ArithmeticError: no data"):
        kmc.sample_posterior_predictive(idata, model, **QUIET)


@pytest.mark.parametrize("returned", ["dict", "dict of many", "pair of many", "lengths"])
def test_a_simulator_without_arrays_is_left_out(returned):
    def one(scale, rng):
        data = rng.exponential(scale, 3)
        return {"x": data} if returned == "dict" else data[: rng.integers(1, 4)]

    def many(scale, rng, size):
        data = rng.exponential(scale, (size, 3))
        return {"x": data} if returned == "dict of many" else (data, data)

    def summary(data):
        if returned == "lengths":
            return data.mean()
        if isinstance(data, dict):
            return data["x"]
        return data[0] if isinstance(data, tuple) else data  # observed, as an array of one

    simulator = many if returned.endswith("many") else one
    observed = {"x": np.full(3, 0.5)} if returned == "dict" else np.full(3, 0.5)
    with pm.Model() as model:
        scale = pm.LogNormal("scale")
        pm.Normal("y", scale, 1.0, observed=1.0)
        options = {"observed": observed, "epsilon": 1.0, "summary": summary}
        kmc.ABCPotential("simulated", simulator, scale, **options)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=20, draws=20, chains=1, random_seed=1, **QUIET)
    reasons = {"lengths": r"shapes \(\d,\) and", "pair of many": r"shape \(2, 1, 3\) where"}
    told = reasons.get(returned, "type dict, not an array")
    told = f"simulator of 'simulated' returned .* {told}.* give var_names="
    with pytest.warns(UserWarning, match=told), ThreadPoolExecutor(2) as pool:
        executor = None if simulator is many else pool
        found = kmc.sample_posterior_predictive(idata, model, executor=executor, **QUIET)
    assert set(found.posterior_predictive.data_vars) == {"y"}
    with pytest.raises(TypeError, match=told):
        kmc.sample_posterior_predictive(idata, model, var_names=["y", "simulated"], **QUIET)


def two_boxes():
    """Return a model of two boxes, of which a Deterministic clips one, its draws and functions."""
    functions, sampled_too = (Decay(), Decay()), {"tune": 10, "draws": 10, "chains": 1}
    with pm.Model() as model:
        rates = pm.HalfNormal("rate"), pm.HalfNormal("other")
        for name, function, rate in zip("yz", functions, rates, strict=True):
            curve = kmc.BlackBox(f"box of {name}", function, 1.0, rate, shape=4)
            pm.Deterministic(f"clipped_{name}", pm.math.switch(curve > 0.5, curve, 0.5))
            pm.Normal(name, curve, 0.5, observed=[1.0, 0.6, 0.4, 0.2])
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, random_seed=1, **sampled_too, **QUIET)
    return model, idata, functions


def test_only_boxes_of_what_is_asked_for_are_called_and_what_clips_them_is_no_output():
    model, idata, functions = two_boxes()
    before = [function.n_calls for function in functions]
    found = ours(model, idata, var_names=["y"])
    assert functions[0].n_calls == before[0] + 2 * n_distinct(idata)
    assert functions[1].n_calls == before[1]
    kmc.compute_log_likelihood(idata, model, var_names=[], extend_inferencedata=False, **QUIET)
    assert functions[1].n_calls == before[1]
    options = {"var_names": ["y"], "random_seed": 2} | QUIET
    predicted = pm.sample_posterior_predictive(idata, model=model, **options)
    np.testing.assert_array_equal(found[0], predicted.posterior_predictive["y"].values)
    before = list(model.observed_RVs)
    kmc.sample_posterior_predictive(idata, model, **QUIET)
    assert model.observed_RVs == before  # PyMC 5.28 adds Deterministics
    model.logp()


def test_a_box_without_free_variables_is_known():
    model, idata, _ = two_boxes()
    fixed = pm.do(model, {"rate": 0.5})
    options = {"var_names": ["y"], "random_seed": 2} | QUIET
    predicted = pm.sample_posterior_predictive(idata, model=fixed, **options)
    found = kmc.sample_posterior_predictive(idata, fixed, **options)
    assert found.posterior_predictive.equals(predicted.posterior_predictive)


def test_draws_that_differ_by_less_than_rounding_elsewhere_have_their_own_outputs():
    draws = 1e6 + 1e-5 * np.random.default_rng(3).standard_normal(30)
    with pm.Model():
        op = kmc.BlackBox("far", lambda x: (x - 1e6) * 1e5, pm.Normal("x", 1e6)).owner.op
    with op.knowing([draws]):
        found = [float(op.evaluate(draw)[0]) for draw in draws]
    np.testing.assert_array_equal(found, (draws - 1e6) * 1e5)


class Line:
    """A line that counts its calls and keeps the covariates that it saw."""

    def __init__(self):
        self.seen = []

    def __call__(self, x, slope, rng=None):
        self.seen.append(np.array(x))
        return slope * x if rng is None else slope * x + rng.standard_normal(len(x))


def of_covariates(line, covariates):
    """Return a model of a box of observed covariates."""
    with pm.Model() as model:
        x = pm.Normal("x", observed=covariates)
        slope = pm.Normal("slope")
        curve = pm.Deterministic("curve", kmc.BlackBox("line", line, x, slope, shape=3))
        pm.Normal("y", curve, 0.5, observed=[1.0, 2.0, 3.0])
        kmc.ABCPotential("z", line, x, slope, observed=[1.0, 2.0, 3.0], epsilon=9.0)
    return model


def short_run(model):
    options = {"tune": 10, "draws": N_DRAWS, "chains": 1, "random_seed": 1} | QUIET
    options |= {"compute_convergence_checks": False}
    return pm.sample(model=model, step=kmc.AdaptiveMetropolis(model=model), **options)


@pytest.mark.filterwarnings("ignore:Data in x contains missing values")
def test_observed_covariates_are_those_that_were_observed():
    """Also beside imputed ones: they were one random draw, the same for all draws."""
    line = Line()
    model = of_covariates(line, np.ma.masked_invalid([1.0, np.nan, 3.0]))
    idata = short_run(model)
    line.seen.clear()
    kmc.compute_log_likelihood(idata, model, **QUIET)
    assert not line.seen  # the Deterministic has them
    kmc.sample_posterior_predictive(idata, model, var_names=["z"], random_seed=1, **QUIET)
    seen = np.array(line.seen)
    imputed = idata.posterior["x_unobserved"].values.ravel()
    expected = np.column_stack([np.ones(N_DRAWS), imputed, np.full(N_DRAWS, 3.0)])
    np.testing.assert_array_equal(seen[-N_DRAWS:], expected)


def test_other_observed_covariates_are_not_those_of_the_draws():
    line = Line()
    idata = short_run(of_covariates(line, [1.0, 2.0, 3.0]))
    for covariates, n_calls in (([1.0, 2.0, 3.0], 0), ([1.0, 2.0, 4.0], N_DRAWS)):
        model = of_covariates(line, covariates)
        line.seen.clear()
        found = kmc.compute_log_likelihood(idata, model, extend_inferencedata=False, **QUIET)
        assert len(line.seen) <= n_calls and bool(line.seen) == bool(n_calls)
        exact = pm.compute_log_likelihood(idata, model=model, extend_inferencedata=False, **QUIET)
        np.testing.assert_allclose(found["y"].values, exact["y"].values, rtol=1e-12)
    # PyMC predicts covariates anew: of those that were observed nothing is asked for.
    line.seen.clear()
    kmc.sample_posterior_predictive(idata, model, var_names=["y"], random_seed=1, **QUIET)
    assert len(line.seen) == N_DRAWS


def test_draws_alone_are_enough():
    """PyMC takes the group of draws too; without constant data nothing is known to be unchanged."""
    model, idata, function = sampled(True)
    draws = idata.posterior
    data_set = draws.to_dataset() if hasattr(draws, "to_dataset") else draws
    function.n_calls = 0
    for given in (draws, data_set, idata):
        found = kmc.sample_posterior_predictive(given, model, random_seed=2, **QUIET)
        expected = pm.sample_posterior_predictive(given, model=model, random_seed=2, **QUIET)
        found, expected = found.posterior_predictive, expected.posterior_predictive
        np.testing.assert_array_equal(found["y"], expected["y"])


def test_draws_that_are_stacked():
    function = Decay()
    with pm.Model() as model:
        rate = pm.HalfNormal("rate")
        pm.Normal("y", kmc.BlackBox("decay", function, 1.0, rate, shape=4), 0.5, observed=[1.0] * 4)
        kmc.ABCPotential("z", lambda rate, rng: rng.normal(rate), rate, observed=0.5, epsilon=1.0)
        step = kmc.AdaptiveMetropolis()
        idata = pm.sample(step=step, tune=20, draws=N_DRAWS, chains=2, random_seed=1, **QUIET)
    draws = idata.posterior.to_dataset() if isinstance(idata, xr.DataTree) else idata.posterior
    stacked = draws.stack(sample=("chain", "draw"))
    with pytest.raises(ValueError, match=r"stacked along 'sample': .* sample_dims=\['sample'"):
        kmc.sample_posterior_predictive(stacked, model, **QUIET)
    with pytest.raises(ValueError, match=r"sample_dims=\['row'\] must be dimensions of the draws"):
        kmc.sample_posterior_predictive(draws, model, sample_dims=["row"], **QUIET)
    plain = kmc.sample_posterior_predictive(draws, model, random_seed=2, **QUIET)
    expected = plain.posterior_predictive
    function.n_calls = 0
    found = kmc.sample_posterior_predictive(
        stacked, model, sample_dims=["sample"], random_seed=2, **QUIET
    )
    assert function.n_calls == n_distinct(idata)
    for name, shape in (("y", (2 * N_DRAWS, 4)), ("z", (2 * N_DRAWS,))):
        values = found.posterior_predictive[name]
        assert values.shape == shape and values.dims[0] == "sample"
        np.testing.assert_array_equal(np.ravel(values), np.ravel(expected[name]))


@pytest.mark.parametrize("given", ["a", 3, None, [{"rate": 1.0}]])
def test_what_has_no_draws(given):
    model, _, _ = sampled(True)
    for predict in (kmc.sample_posterior_predictive, kmc.compute_log_likelihood):
        with pytest.raises(TypeError, match="idata=.*pm.sample returned"):
            predict(given, model, **QUIET)


def test_what_a_deterministic_with_named_dimensions_has_kept_needs_no_call():
    function = Decay()
    with pm.Model(coords={"time": range(4)}) as model:
        amplitude, rate = pmd.LogNormal("amplitude"), pmd.HalfNormal("rate")
        box = kmc.BlackBox("decay", function, amplitude, rate, shape=4)
        curve = pmd.Deterministic("curve", box, dims=("time",))
        pm.Normal("y", curve.values, 0.5, observed=[1.0, 0.6, 0.4, 0.2])
        options = {"chains": 1, "random_seed": 1, "compute_convergence_checks": False, **QUIET}
        idata = pm.sample(step=kmc.AdaptiveMetropolis(), tune=30, draws=N_DRAWS, **options)
    before = function.n_calls
    found = ours(model, idata)
    assert function.n_calls == before
    are_pymcs(found, model, idata)
