"""BlackBox: what the function gets, what is checked when, and what becomes of a failure."""

import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_kmc as kmc
from tests.targets import sample, target_of

two_threads = partial(ThreadPoolExecutor, 2)
one_process = partial(ProcessPoolExecutor, 1, mp_context=multiprocessing.get_context("fork"))
# Log densities here are evaluated a few times: compiling would take longer.
MODES = [pytensor.config.mode, "FAST_COMPILE"]  # as users compile, and without a compiler


def line(slope):
    """Three points on a line through 0; impossible above 2 and not finite below -2."""
    if slope > 2:
        raise ZeroDivisionError("too steep")
    if slope < -2:
        return [slope, np.nan, np.inf]
    return slope * np.arange(3.0)


def model_of(function=line, *, shape=3, potential=False, **options):
    """A model of one variable with a black box, and the black box's Op."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 2, initval=0.5)
        value = kmc.BlackBox("f", function, x, shape=shape, **options)
        if potential:
            pm.Potential("likelihood", value.sum())
        else:
            pm.Normal("y", value, 1.0, observed=np.zeros(shape))
    (op,) = kmc.black_boxes(model)
    return model, op


def log_density(model, **compile_kwargs):
    function = model.compile_logp(**compile_kwargs)
    return lambda x: float(function({"x": np.array(x)}))


# What the function gets and returns


def test_parameters_arrive_on_their_natural_scale_with_their_shapes():
    seen = []

    def function(scale, matrix, expression, number):
        seen.append((scale, matrix, expression, number))
        matrix[:] = np.nan  # it may write into its arguments
        return 0.0

    with pm.Model() as model:
        scale = pm.HalfNormal("scale", initval=3.0)
        matrix = pm.Normal("matrix", shape=(2, 3))
        value = kmc.BlackBox("f", function, scale, matrix, 2 * scale, 300)
        pm.Potential("p", value)
    point = model.initial_point()
    point["matrix"] = np.arange(6.0).reshape(2, 3)
    assert np.isfinite(model.compile_logp()(point))
    assert len(seen) == 3
    for scale, matrix, expression, number in seen:
        assert np.shape(scale) == () and scale == pytest.approx(3.0)
        assert matrix.shape == (2, 3)
        assert expression == pytest.approx(6.0)
        assert number * 1000 == 300_000  # not a short integer


@pytest.mark.parametrize(("shape", "expected"), [((), 2.0), (2, [2.0, 4.0]), ((1, 2), [[2, 4]])])
def test_the_tensor_has_the_value_and_the_shape(shape, expected):
    with pm.Model():
        x = pm.Normal("x")
        value = kmc.BlackBox("f", lambda x: (np.asarray(expected) * x).tolist(), x, shape=shape)
    assert value.type.shape == np.shape(expected)
    assert value.dtype == "float64"
    np.testing.assert_allclose(value.eval({x: 1.0}), expected)


def test_it_feeds_another():
    with pm.Model() as model:
        x = pm.Normal("x", initval=1.0)
        first = kmc.BlackBox("first", lambda x: [x, 2 * x], x, shape=2, on_error="reject")
        second = kmc.BlackBox("second", np.sum, first, on_error="reject")
        pm.Potential("p", second)
    names = [box.name for box in kmc.black_boxes(model)]
    assert names == ["first", "second"]
    terms = model.point_logps({"x": np.array(2.0)})
    assert terms["p"] == pytest.approx(6.0)
    assert terms["first_succeeded"] == terms["second_succeeded"] == 0


def test_two_uses_in_one_log_density_are_one_call():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 2)
        value = kmc.BlackBox("f", line, x, shape=3)
        pm.Normal("y", value, 1.0, observed=np.zeros(3))
        pm.Potential("p", value.sum())
        pm.Deterministic("sum", value.sum())
    (op,) = kmc.black_boxes(model)
    density, deterministic = log_density(model), pm.compile([x], model["sum"])
    before = op.n_evaluations
    density(1.5)
    assert op.n_evaluations == before + 1
    # Another function, and a way back after a few proposals.
    assert deterministic(1.5) == 4.5
    for x in (1.4, 1.3, 1.5):
        density(x)
    assert op.n_evaluations == before + 3


def test_what_is_remembered_is_not_written_into():
    _, op = model_of()
    first, _ = op.evaluate(1.0)
    first[:] = 7.0
    np.testing.assert_array_equal(op.evaluate(1.0)[0], [0, 1, 2])


# Lengths that go with the data

FIRST, SECOND = np.linspace(0, 1, 7), np.linspace(0, 2, 12)


def proportional(slope, x):
    if slope > 5:
        raise ZeroDivisionError("too steep")
    return slope * x


def data_model(function=proportional, **options):
    """The box's length is that of the data, 7 at first."""
    with pm.Model(coords={"obs": np.arange(7)}) as model:
        x, y = pm.Data("x", FIRST, dims="obs"), pm.Data("y", 3 * FIRST, dims="obs")
        slope = pm.Normal("slope", 0, 10)
        options = {"shape": x.shape} | options
        mean = kmc.BlackBox("mean", function, slope, x, **options)
        pm.Normal("like", mean, 0.5, observed=y, dims="obs")
    return model


def renew(model):
    pm.set_data({"x": SECOND, "y": -4 * SECOND}, model, coords={"obs": np.arange(12)})


def rows(slopes, X):
    return slopes[:, None] * X


@pytest.mark.parametrize(
    "options",
    [{}, {"on_error": "reject"}, {"function": rows, "vectorized": True}, {"executor": two_threads}],
    ids=["plain", "reject", "vectorized", "executor"],
)
def test_the_length_goes_with_the_data(options):
    model = data_model(**options)
    density = model.compile_logp()
    for x, slope in ((FIRST, 3.0), (SECOND, -4.0)):
        if x is SECOND:
            renew(model)
        for value in (slope, 1.5):
            expected = -0.5 * (value / 10) ** 2 - np.log(10) - 0.5 * np.log(2 * np.pi)
            residuals = (value - slope) * x / 0.5
            expected += np.sum(-0.5 * residuals**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi))
            assert density({"slope": np.array(value)}) == pytest.approx(expected)
    if "on_error" in options:
        with pytest.warns(
            UserWarning, match=r"too steep\nParameters: slope=6., x=.*, shape=\[12\]"
        ):
            assert density({"slope": np.array(6.0)}) == -np.inf
    (op,) = kmc.black_boxes(model)
    assert repr(op).startswith("<BlackBox 'mean' of slope, x, shape (None,): ")


def test_the_data_may_be_empty_when_the_model_is_built():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(0))
        slope = pm.Normal("slope")
        pm.Potential(
            "p", kmc.BlackBox("b", proportional, slope, x, shape=x.shape, on_error="reject").sum()
        )
    density = model.compile_logp()
    empty = density({"slope": np.array(0.5)})
    model.set_data("x", np.ones(3))
    assert density({"slope": np.array(0.5)}) == pytest.approx(empty + 1.5)
    with pytest.warns(UserWarning, match="too steep"):
        assert density({"slope": np.array(6.0)}) == -np.inf


@pytest.mark.parametrize("learn", [pytest.param(True, marks=pytest.mark.one_line), False])
def test_draws_given_new_data(learn):
    """The posterior is normal; a false alarm in 1e5 draws of 500 that are nearly independent."""
    model = data_model()
    renew(model)
    with model:
        idata = sample(kmc.KMC() if learn else kmc.KMC(learn=False), draws=500, tune=300)
    precision = np.sum(SECOND**2) / 0.25 + 0.01
    mean, sd = -4 * np.sum(SECOND**2) / 0.25 / precision, precision**-0.5
    draws = idata.posterior["slope"].values
    assert abs(draws.mean() - mean) < 4.4 * sd / 200**0.5
    assert draws.std() == pytest.approx(sd, rel=0.25)


def test_lengths_are_numbers_or_tensors():
    with pm.Model() as model:
        x = pm.Data("x", FIRST)
        a = pm.Normal("a", shape=7)
        for shape in ((x.shape[0], 2), [x.shape[0], np.int64(2)]):
            value = kmc.BlackBox("f", lambda a, x: np.outer(x, [1, 2]), a, x, shape=shape)
            assert value.type.shape == (None, 2)
        assert kmc.BlackBox("g", lambda a: a, a, shape=a.shape).type.shape == (7,)
        assert kmc.BlackBox("h", lambda a: a, a, shape=pt.constant(7)).type.shape == (7,)
        pm.Potential("p", value.sum())
    pm.set_data({"x": SECOND}, model)
    assert model.compile_logp()(model.initial_point()) == pytest.approx(
        3 * SECOND.sum() - 3.5 * np.log(2 * np.pi)
    )


def test_a_length_other_than_the_datas_is_told():
    with pytest.raises(TypeError, match=r"shape \(7,\); it returned an array of shape \(3,\)"):
        data_model(lambda slope, x: slope * x[:3])


@pytest.mark.parametrize(
    ("function", "options", "expected", "returned"),
    [(lambda slope, x: slope * FIRST, {}, 12, 7), (proportional, {"shape": 7}, 7, 12)],
    ids=["symbolic", "fixed"],
)
def test_a_length_other_than_the_new_datas_is_told(function, options, expected, returned):
    model = data_model(function, **options)
    renew(model)
    message = rf"shape \({expected},\); it returned an array of shape \({returned},\)"
    with pytest.raises(kmc.BlackBoxError, match=message):
        model.compile_logp()({"slope": np.array(1.0)})


# Checks when the model is built


def returning(value):
    return lambda x: value


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3.0, r"function of 'f' must be callable, function\(\*param_values\), got 3.0"),
        (lambda: 0.0, "can't be called as function"),
        (lambda x, y: 0.0, "can't be called as function"),
        (returning(np.zeros(2)), r"shape \(3,\); it returned an array of shape \(2,\)"),
        (returning(0.0), r"shape \(3,\); it returned an array of shape \(\)"),
        (returning(None), "it returned None of type NoneType"),
        (returning([1j, 0, 0]), "an array of complex128"),
        (returning(["a", "b", "c"]), "an array of <U1"),
        (returning([[1], [1, 2], []]), "entries of different lengths"),
        (returning(np.ma.array([1.0, 2, 3], mask=True)), "a masked value"),
    ],
)
def test_wrong_type_or_shape_is_found_when_the_model_is_built(function, message):
    for on_error in ("raise", "reject"):
        with pytest.raises(TypeError, match=message):
            model_of(function, on_error=on_error)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": 0}, ValueError, "shape of 'f' must be .* got 0"),
        ({"shape": (2, -1)}, ValueError, r"shape of 'f' must be .* got \(2, -1\)"),
        ({"shape": "3"}, ValueError, "shape of 'f' must be .* got '3'"),
        ({"shape": (None,)}, ValueError, r"x.shape of an x = pm.Data.* got \(None,\)"),
        ({"shape": pt.dscalar()}, ValueError, "shape of 'f' must be .* got"),
        ({"shape": pt.lvector()}, ValueError, "shape of 'f' must be .* got"),
        ({"on_error": "ignore"}, ValueError, "on_error='ignore' is unknown"),
        ({"vectorized": "no"}, ValueError, "vectorized='no' must be True or False"),
        ({"timeout": 5}, ValueError, "timeout=5 needs executor="),
        ({"timeout": -5, "executor": two_threads}, ValueError, "timeout must be a positive"),
        ({"executor": 4}, TypeError, "executor must have the interface"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pm.Model():
        x = pm.Normal("x")
        with pytest.raises(error, match=message):
            kmc.BlackBox("f", line, x, **({"shape": 3} | arguments))


@pytest.mark.parametrize("on_error", ["raise", "reject"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_it_must_be_finite_at_the_initial_point(value, on_error):
    message = r"'f' isn't finite at the model's initial point, where x=0.5.*initval="
    with pytest.raises(ValueError, match=message):
        model_of(returning([0.0, value, 0.0]), on_error=on_error)


@pytest.mark.parametrize("on_error", ["raise", "reject"])
def test_an_error_at_the_initial_point_comes_at_once(on_error):
    def fails(x):
        raise OSError("no such solver")

    with pytest.raises(
        kmc.BlackBoxError, match="raised OSError: no such solver\nParameters: x=0.5"
    ):
        model_of(fails, on_error=on_error)


def test_a_function_that_is_not_deterministic_is_refused():
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="different values when it was called twice.*PseudoMarg"):
        model_of(lambda x: x + rng.standard_normal(3))
    with pytest.raises(ValueError, match="different values"):
        results = iter([np.zeros(3), np.full(3, np.nan)])
        model_of(lambda x: next(results))


def test_rounding_is_warned_about():
    results = iter([np.ones(3), np.ones(3) + 1e-12])
    with pytest.warns(UserWarning, match="slightly different values.*differ by 1e-12"):
        model_of(lambda x: next(results))


# Failures


@pytest.mark.parametrize("mode", MODES)
def test_an_error_carries_the_parameters(mode):
    model, _ = model_of()
    density = log_density(model, mode=mode)
    assert np.isfinite(density(2.0))
    with pytest.raises(kmc.BlackBoxError) as info:
        density(2.25)
    message = str(info.value)
    assert "'f' raised ZeroDivisionError: too steep\nParameters: x=2.25" in message
    assert 'raise ZeroDivisionError("too steep")' in message  # the frame in the user's code
    with pytest.raises(kmc.BlackBoxError, match=r"2 of 3 values .* nan first, at \[1\].\nPara.*-3"):
        density(-3.0)


def test_minus_infinity_is_a_log_density():
    model, op = model_of(lambda x: 0.0 if x < 1 else -np.inf, shape=(), potential=True)
    assert log_density(model)(2.0) == -np.inf
    assert op.n_rejected == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite(value):
    model, _ = model_of(lambda x: 0.0 if x < 1 else value, shape=(), potential=True)
    remedy = "on_error='reject' rejects points where the function fails"
    with pytest.raises(kmc.BlackBoxError, match=f"returned {value}.\nParameters: x=2.\n.*{remedy}"):
        log_density(model)(2.0)


@pytest.mark.parametrize("potential", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_rejection_is_a_log_density_of_minus_infinity(mode, potential):
    model, _ = model_of(on_error="reject", potential=potential)
    without, _ = model_of(potential=potential)
    density = log_density(model, mode=mode)
    assert density(1.5) == pytest.approx(log_density(without)(1.5))
    with pytest.warns(UserWarning):
        assert density(2.25) == density(-3.0) == -np.inf
    assert density(1.5) == pytest.approx(log_density(without)(1.5))


def test_rejections_are_counted_kept_and_warned_about_once():
    model, op = model_of(on_error="reject")
    density = log_density(model)
    with pytest.warns(UserWarning, match="'f' raised ZeroDivisionError: too steep\nParameters: x="):
        density(2.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (2.5, 2.5, -3.0):  # one is remembered
            density(x)
    assert op.n_rejected == 3
    assert op.reasons == {"ZeroDivisionError": 2, "not finite": 1}
    assert [float(rejection.parameters["x"]) for rejection in op.rejections] == [2.25, 2.5, -3]
    assert "raised ZeroDivisionError" in op.rejections[0].reason
    assert repr(op) == (
        f"<BlackBox 'f' of x, shape (3,): {op.n_evaluations} evaluations in this process, "
        "3 rejected, ZeroDivisionError: 2, not finite: 1>"
    )


def test_the_wrong_shape_later_is_a_failure():
    """As of a solver that stopped early."""

    def function(x):
        return np.zeros(3 if x < 1 else 2)

    model, op = model_of(function, on_error="reject")
    with pytest.warns(UserWarning, match=r"must return real numbers of shape \(3,\)"):
        assert log_density(model)(2.0) == -np.inf
    assert op.reasons == {"wrong result": 1}
    with pytest.raises(kmc.BlackBoxError, match="it returned an array of shape"):
        log_density(model_of(function)[0])(2.0)


def test_a_step_of_this_package_says_what_was_rejected(caplog):
    with model_of(on_error="reject")[0], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = sample(kmc.AdaptiveMetropolis(), draws=200, tune=200)
    assert (np.abs(idata.posterior["x"]) <= 2).all()
    messages = [r.getMessage() for r in caplog.records if "black box 'f' failed" in r.getMessage()]
    assert len(messages) == 1
    n_rejected, n_points = map(
        int, messages[0].split("failed at ")[1].split(" points")[0].split(" of ")
    )
    # At the first iteration after tuning, with what the chain itself has evaluated.
    assert 0 < n_rejected < n_points <= 202 + 4  # the first scale


# Drawn forward


def test_prior_and_posterior_predictive():
    with pytest.warns(UserWarning), model_of(on_error="reject")[0] as model:
        pm.Deterministic("f", model["y"].owner.inputs[2])
        prior = pm.sample_prior_predictive(100, random_seed=1)
        assert not np.isnan(prior.prior["x"]).any()
        x = prior.prior["x"].values[0]
        failed = np.abs(x) > 2
        assert 0 < failed.sum() < 100
        succeeded = prior.prior_predictive["f_succeeded"].values[0]
        np.testing.assert_array_equal(succeeded, ~failed)
        np.testing.assert_array_equal(
            np.isnan(prior.prior_predictive["y"].values[0]).all(-1), failed
        )
        idata = sample(kmc.AdaptiveMetropolis(), draws=60)
        predictive = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1)
    y, x = predictive.posterior_predictive["y"].values, idata.posterior["x"].values
    assert (predictive.posterior_predictive["f_succeeded"] == 1).all()
    residuals = y - x[..., None] * np.arange(3)
    assert abs(residuals.mean()) < 4 / residuals.size**0.5
    assert residuals.std() == pytest.approx(1, abs=0.3)


# Gradients


def test_steps_with_gradients_are_refused():
    for on_error in ("raise", "reject"):
        with model_of(on_error=on_error)[0]:
            with pytest.raises(NotImplementedError, match=r"'f' has no gradient.*\(x\).*kmc.KMC"):
                pm.NUTS()
            with pytest.raises(TypeError, match="'f' has no gradient"):
                kmc.GadMALA()


# Batches, executors, time limits


def lines(slopes):
    slopes = np.asarray(slopes)
    if (slopes > 2).any():
        raise ZeroDivisionError("too steep")
    values = slopes[:, None] * np.arange(3.0)
    values[slopes < -2, 1] = np.nan
    return values


WAYS = {
    "here": {"function": line},
    "threads": {"function": line, "executor": two_threads},
    "processes": {"function": line, "executor": one_process},
    "vectorized": {"function": lines, "vectorized": True},
    "vectorized in threads": {"function": lines, "vectorized": True, "executor": two_threads},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch(way):
    points = np.array([0.5, 2.5, -1.0, -3.0, 1.0])
    good = np.array([True, False, True, False, True])
    _, op = model_of(on_error="reject", **WAYS[way])
    before = op.n_evaluations
    with pytest.warns(UserWarning):
        outputs, succeeded = op.evaluate_many([points])
    np.testing.assert_array_equal(succeeded, good)
    np.testing.assert_allclose(outputs[good], points[good, None] * np.arange(3))
    assert np.isnan(outputs[~good]).all()
    assert op.n_evaluations == before + 5
    assert op.reasons == {"ZeroDivisionError": 1, "not finite": 1}
    assert op.evaluate_many([np.empty(0)])[0].shape == (0, 3)
    # One at a time: what the chain sees.
    np.testing.assert_allclose(op.evaluate(1.0)[0], np.arange(3))
    assert not op.evaluate(2.5)[1]
    _, op = model_of(**WAYS[way])
    with pytest.raises(kmc.BlackBoxError, match="ZeroDivisionError.*\nParameters: x=2.5\n"):
        op.evaluate_many([points])


def test_a_vectorized_function_is_called_once_a_batch():
    sizes = []

    def function(slopes):
        sizes.append(len(slopes))
        return lines(slopes)

    _, op = model_of(function, vectorized=True)
    op.evaluate_many([np.linspace(-1, 1, 7)])
    op.evaluate(0.25)
    assert sizes == [1, 1, 7, 1]


def test_a_vectorized_function_has_the_leading_axis():
    with pytest.raises(TypeError, match=r"shape \(1, 3\); it returned an array of shape \(3,\)"):
        model_of(lambda slopes: slopes[0] * np.arange(3), vectorized=True)


@pytest.mark.parametrize("inputs", [[], [np.zeros(2), np.zeros(2)], [np.array(1.0)]])
def test_wrong_inputs_of_a_batch(inputs):
    _, op = model_of()
    with pytest.raises(ValueError, match="inputs of 'f' must have an array"):
        op.evaluate_many(inputs)


def test_parameters_have_the_models_types_whatever_is_given():
    seen = []

    def function(x, n):
        seen.append((x.dtype, n.dtype))
        return x**-1 * n

    with pm.Model():
        params = pm.Normal("x", initval=1.0), pm.Poisson("n", 2)
        op = kmc.BlackBox("f", function, *params).owner.op
    np.testing.assert_allclose(op.evaluate_many([[1, 2], [4.0, 3.0]])[0], [4, 1.5])
    assert op.evaluate(4, 2.0)[0] == 0.5
    assert set(seen) == {(np.dtype("float64"), np.dtype("int64"))}
    for count in (1.5, np.nan):
        with pytest.raises(ValueError, match="'n' of 'f' takes whole numbers"):
            op.evaluate_many([[1.0], [count]])
    with pytest.raises(ValueError, match=r"takes values of \['x', 'n'\], got 1"):
        op.evaluate(1.0)


def hang(x):
    if x > 1:
        time.sleep(60)
    return np.zeros(3)


def test_a_hanging_evaluation_is_stopped():
    model, _ = model_of(hang, executor=one_process, timeout=0.5)
    density = log_density(model)
    begin = time.monotonic()
    message = r"'f' was stopped: it took longer than timeout=0.5 seconds.\nParameters: x=1.5"
    with pytest.raises(kmc.BlackBoxError, match=message):
        density(1.5)
    assert time.monotonic() - begin < 20
    assert np.isfinite(density(0.0))  # on a new pool


def test_a_hanging_evaluation_is_rejected_and_the_others_are_made():
    _, op = model_of(hang, executor=one_process, timeout=0.5, on_error="reject")
    with pytest.warns(UserWarning, match="was stopped"):
        _, succeeded = op.evaluate_many([np.array([0.0, 2.0, 0.5])])
    assert succeeded.tolist() == [True, False, True]
    assert op.reasons == {"timeout": 1}


def test_each_point_of_a_batch_has_the_time_limit():
    def function(x):
        time.sleep(0.2)
        return np.zeros(3)

    _, op = model_of(function, executor=one_process, timeout=0.6)
    assert op.evaluate_many([np.linspace(0, 1, 5)])[1].all()


def deadly(x):
    if x > 1:
        os._exit(1)
    return np.full(3, x)


def test_parameters_that_end_their_worker_are_rejected_and_no_others():
    """Where a worker dies none of the others' parameters is to blame."""
    points = np.array([0.5, 2.0, -1.0, 3.0, 1.0])
    _, op = model_of(deadly, executor=one_process, on_error="reject")
    with pytest.warns(UserWarning, match="'f' got no result of its executor(.|\n)*x=2"):
        outputs, succeeded = op.evaluate_many([points])
    assert succeeded.tolist() == [True, False, True, False, True]
    assert outputs[succeeded, 0].tolist() == points[succeeded].tolist()
    assert op.reasons == {"worker died": 2}
    _, op = model_of(deadly, executor=one_process)
    with pytest.raises(kmc.BlackBoxError, match="twice with none beside it(.|\n)*x=3"):
        op.evaluate(3.0)


def one_process_that_never_starts():
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), os._exit, (1,))


def test_a_fault_of_the_machine_is_not_a_rejection():
    """A pool in which nothing runs says nothing about the parameters, nor does a given one."""
    given = one_process()
    for pool, remedy in ((one_process_that_never_starts, ""), (given, "executor=lambda: .* anew")):
        _, op = model_of(deadly, executor=pool, on_error="reject")
        with pytest.raises(kmc.BlackBoxError, match=f"no result of its exec.*{remedy}(.|\n)*x=2"):
            op.evaluate(2.0)
        assert op.n_rejected == 0


# Finding them


def test_they_are_found_wherever_they_are():
    with pm.Model() as model:
        x = pm.Normal("x")
        boxes = {name: kmc.BlackBox(name, line, x, shape=3) for name in "dcba"}
        kmc.BlackBox("unused", line, x, shape=3)
        pm.Normal("z", boxes["a"].sum(), 1.0)
        pm.Normal("y", pt.exp(boxes["b"]), 1.0, observed=np.zeros(3))
        pm.Potential("p", boxes["c"].sum())
        pm.Deterministic("e", boxes["d"])
        assert [box.name for box in kmc.black_boxes()] == ["a", "b", "c", "d"]
    assert [box.name for box in kmc.black_boxes(model)] == ["a", "b", "c", "d"]
    assert kmc.black_boxes(model)[0].function is line


def test_the_target_knows_those_that_reject():
    with pm.Model() as model:
        x = pm.Normal("x")
        for name, on_error in (("a", "raise"), ("b", "reject")):
            pm.Potential(f"p{name}", kmc.BlackBox(name, line, x, shape=3, on_error=on_error).sum())
    target = target_of(model)
    assert [op.name for op in target.rejecting] == ["b"]
    with pytest.warns(UserWarning):
        op = target.rejecting[0]
        op.evaluate(3.0)
        op.evaluate(1.0)
    assert target.rejections() == [("b", 2, 1)]


@pytest.mark.parametrize("learn", [True, False])
def test_a_stated_length_other_than_new_datas_is_told(learn):
    model = data_model(shape=7)
    renew(model)
    shapes = r"'mean' must return .* shape \(7,\); it returned an array of shape \(12,\)"
    with pytest.raises(kmc.BlackBoxError, match=shapes), model:
        if learn:
            kmc.learn(model, progressbar=False)
        sample(kmc.KMC(), draws=1, tune=1)
