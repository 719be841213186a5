"""A corpus of bad arguments: each is refused by an error that names it, when it is given."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kmc as kmc
from pymc_kmc.model import log_density
from pymc_kmc.surrogates import (
    KernelExpFinite,
    KernelExpLite,
    LogDensityGP,
    select,
)
from tests.learned import learned_curve
from tests.steps import STEPS

with pm.Model() as OTHER:
    STRANGER = pm.Normal("stranger")
with pm.Model() as MODEL:
    X = pm.Normal("x", shape=2)
    SCALE = pm.HalfNormal("scale")
    SEEN = pm.Normal("seen", X, SCALE, observed=np.zeros(2))
VALUES = MODEL.value_vars
START = {"x": np.zeros(2), "scale_log__": np.zeros(())}
POINTS = np.random.default_rng(0).standard_normal((30, 2))
VALUED = POINTS, -(POINTS**2).sum(axis=1)


def refuses(make, argument, error):
    with pytest.raises(error, match=rf"\b{argument}\b"):
        make()


OF_EVERY_STEP = [
    ("model", "m", TypeError),
    ("model", 3, TypeError),
    ("model", pm.Model, TypeError),
    ("vars", "x", TypeError),
    ("vars", ["x"], TypeError),
    ("vars", [None], TypeError),
    ("vars", {X}, TypeError),
    ("vars", (variable for variable in [X]), TypeError),
    ("vars", [], ValueError),
    ("vars", [STRANGER], ValueError),
    ("vars", [OTHER.value_vars[0]], ValueError),
    ("vars", [SEEN], ValueError),
    ("vars", [X, X], ValueError),
    ("vars", [X, VALUES[0]], ValueError),
    ("initial_point", {}, ValueError),
    ("initial_point", 3, TypeError),
    ("initial_point", [0.0, 0.0], TypeError),
    ("initial_point", {"x": np.zeros(2), "scale": 1.0}, ValueError),
    ("initial_point", START | {"x": "a"}, ValueError),
    ("initial_point", START | {"x": 0.0}, ValueError),
    ("initial_point", START | {"x": np.zeros(3)}, ValueError),
    ("initial_point", START | {"x": None}, ValueError),
    ("compile_kwargs", "a", TypeError),
    ("compile_kwargs", {"foo": 1}, TypeError),
    ("compile_kwargs", {"mode": "NOPE"}, Exception),
    ("blocked", "no", ValueError),
    ("blocked", 0, ValueError),
    ("rng", "a", TypeError),
    ("rng", -1, ValueError),
    ("rng", np.random.RandomState(0), TypeError),
    ("tune", "no", ValueError),
    ("adaptation", "never", ValueError),
    ("adaptation", [1], ValueError),
    ("adaptation", True, ValueError),
]


@pytest.mark.parametrize("name", STEPS)
def test_of_every_step(name):
    """One test a step: they share the code."""
    for argument, value, error in OF_EVERY_STEP:
        refuses(lambda a=argument, v=value: STEPS[name](**{"model": MODEL, a: v}), argument, error)


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("variables", [[SCALE, SCALE], [SCALE, VALUES[1]]])
def test_one_variable_under_two_names(variables, blocked):
    with pytest.raises(ValueError, match="vars has .'scale_log__'. more than once"):
        kmc.AdaptiveMetropolis(variables, model=MODEL, blocked=blocked)


@pytest.mark.parametrize("prior", [pm.Flat, pm.HalfFlat])
@pytest.mark.parametrize("name", STEPS)
def test_flat_priors_that_nothing_depends_on(name, prior):
    with pm.Model() as model:
        x = prior("x", initval=1.0)
        pm.Normal("y", pm.Normal("z"), 1.0, observed=0.3)
        pm.Deterministic("twice", 2.0 * x)
    with pytest.raises(ValueError, match="'x' has a flat prior and nothing in the model depends"):
        STEPS[name](model=model)


def test_variables_without_values():
    with pm.Model() as model:
        x = pm.Normal("x", shape=0)
        pm.Normal("y")
    with pytest.raises(ValueError, match=r"vars \['x'\] have no values"):
        kmc.KMC([x], model=model)
    assert kmc.KMC(model=model, n_landmarks=10).n_dimensions == 1


NUMBERS = ["a", None, [1.0], np.ones(2), True, np.nan, np.inf, -1.0, 0.0]


def each(argument, values, error=ValueError):
    return [(argument, value, error) for value in values]


WITHOUT_NONE = [value for value in NUMBERS if value is not None]
SURROGATES = [
    *each("surrogate", [3, "a", object(), LogDensityGP, [LogDensityGP()]], TypeError),
    *each("surrogate", [LogDensityGP(), KernelExpLite(1.0, 1.0)]),
    *each("surrogate", [KernelExpLite(1.0, 1.0).fit(POINTS)]),
]
COUNTS = ["a", 0, -1, 1.5, True, None, [1]]
OF_A_STEP = {
    "AdaptiveMetropolis": [
        *each("covariance", ["a", [["a"]], [[1.0], [1.0, 2.0]], 1.0, np.eye(2), -np.eye(3)]),
        *each("covariance", [np.full((3, 3), np.nan), np.triu(np.ones((3, 3)))]),
        *each("scale", NUMBERS),
        *each("target_acceptance", [*WITHOUT_NONE, 1.0]),
    ],
    "KAMH": [
        *each("target_acceptance", [*WITHOUT_NONE, 1.0]),
        *each("gamma", NUMBERS),
        *each("n_points", [*COUNTS, 1]),
        *each("kernel", ["box", None, 3, ["gaussian"], np.ones(2)]),
        *each("tune", [False]),
    ],
    "GadRWM": each("update", ["a", None, ["additive"]]),
    "GadMALA": [
        *each("update", ["a", None, ["additive"]]),
        *each("variant", ["a", None, ["fast"]]),
    ],
    "KMC": [
        *each("n_landmarks", COUNTS),
        *SURROGATES,
        *each("tune", [False]),
        *each("learn", ["yes", None, 1, 0.0, [True]]),
    ],
    "KMCLite": [
        *SURROGATES,
        *each("n_points", COUNTS),
        *each("sigma", WITHOUT_NONE),
        *each("regularisation", WITHOUT_NONE),
        *each("penalty", ["ridge", None, ["rkhs"]]),
        *each("rank", ["a", 0, 1.5]),
        *each("tolerance", WITHOUT_NONE),
        *each("base", ["a", True, ["gaussian"]]),
        *each("values", ["no", 1, [True]]),
        *each("step_size", ["a", (1.0,), (2.0, 1.0), ("a", "b"), ("0.1", "0.2"), -1.0, {}]),
        *each("n_leapfrog", ["a", 0, (1.5, 2), (3, 2), [], (1, 2, 3)]),
        *each("target_acceptance", [*NUMBERS, 1.0]),
        *each("random_walk_probability", ["a", -0.1, 0.9, None, [0.1]]),
        *each("schedule", ["a", None, ["geometric"]]),
    ],
    "KMCFinite": [
        *each("n_features", COUNTS),
        *each("n_points", COUNTS),
        *each("kernel", ["box", None, ["gaussian"]]),
    ],
}


@pytest.mark.parametrize(
    ("name", "argument", "value", "error"),
    [(name, *case) for name, cases in OF_A_STEP.items() for case in cases],
)
def test_of_a_step(name, argument, value, error):
    refuses(lambda: getattr(kmc, name)(**{"model": MODEL, argument: value}), argument, error)


def estimator(x, rng):
    return -0.5 * np.sum(x**2) + rng.standard_normal()


def simulator(x, rng):
    return x + rng.standard_normal(2)


def solver(x):
    return x**2


def raising(data):
    raise KeyError("no such summary")


PARAMS = [
    *each("params", ["foo", None, {}, [X, "a"], estimator, OTHER], TypeError),
    *each("stranger", [STRANGER, 2 * STRANGER, OTHER.value_vars[0], 2 * OTHER.value_vars[0]]),
]
OF_ALL_NOISY = [
    ("model", "m", TypeError),
    ("name", 3, TypeError),
    ("name", "", TypeError),
    *PARAMS,
    *each("target_variance", [value for value in NUMBERS if value is not True]),
    *each("n_normals", ["a", 0, 1.5, [1]]),
    *each("correlation", ["a", -0.1, 1.0, [0.5]]),
    *each("timeout", ["a", 0, -1.0]),
    ("executor", 3, TypeError),
]
OF_SIMULATIONS = [
    *each("observed", [None, "a", [["a"], ["b"]], [[1.0], [1.0, 2.0]]], TypeError),
    *each("observed", [np.ma.masked_array([1.0, 2.0], [0, 1])], TypeError),
    *each("observed.*eval", [pm.Data("seen", [1.0, 2.0], model=pm.Model()), X], TypeError),
    *each("observed", [[], np.ones((0, 2)), [np.nan, 1.0], [np.inf, 1.0]]),
    *each("summary", ["a", 3], TypeError),
    *each("summary", [raising, lambda data: data + "a", lambda data: [], lambda data: [np.nan]]),
    *each("simulator", [None, "a", lambda x: x, lambda rng: rng], TypeError),
    *each("n_simulations", ["many", 0, 1.5, None, [1], np.ones(2)]),
]
OF_A_LIKELIHOOD = {
    "PseudoMarginalPotential": [
        *OF_ALL_NOISY,
        *each("n_replicates", ["many", 0, 1.5, None, [1], np.ones(2)]),
        *each("estimator", [None, "a", lambda x: x, lambda rng: rng], TypeError),
        *each("estimator", [lambda x, rng: "a", lambda x, rng: None, simulator], TypeError),
    ],
    "ABCPotential": [
        *OF_ALL_NOISY,
        *OF_SIMULATIONS,
        *each("kernel", ["box", None, 3, ["uniform"], np.ones(2)]),
        *each("epsilon", NUMBERS),
        *each("distance", ["a", 3], TypeError),
    ],
    "SyntheticLikelihoodPotential": [
        *OF_ALL_NOISY,
        *OF_SIMULATIONS,
        *each("density", ["exact", None, ["plugin"]]),
        *each("n_simulations", [5]),
    ],
    "BlackBox": [
        ("model", "m", TypeError),
        ("name", 3, TypeError),
        *PARAMS,
        *each("function", [None, "a", lambda: 1.0, lambda x, y: x], TypeError),
        *each("shape", ["a", -1, 1.5, (0,), [[2]], None]),
        *each("on_error", ["ignore", None, ["raise"]]),
        *each("vectorized", ["no", 1, None]),
        ("executor", 3, TypeError),
        *each("timeout", ["a", 0]),
    ],
}
FUNCTIONS = {"estimator": estimator, "simulator": simulator, "function": solver}
ARGUMENTS = {
    "PseudoMarginalPotential": {},
    "ABCPotential": {"observed": np.zeros(2), "epsilon": 1.0},
    "SyntheticLikelihoodPotential": {"observed": np.zeros(2)},
    "BlackBox": {"shape": 2},
}
FUNCTION_OF = {"PseudoMarginalPotential": "estimator", "BlackBox": "function"}


def likelihood(kind, argument, value):
    arguments = {"name": "l", "params": X, **ARGUMENTS[kind]}
    function = FUNCTION_OF.get(kind, "simulator")
    arguments[function] = FUNCTIONS[function]
    if argument == "timeout":
        arguments["executor"] = lambda: None
    arguments["params" if argument == "stranger" else argument] = value
    positional = [arguments.pop(key) for key in ("name", function, "params")]
    getattr(kmc, kind)(*positional, **{"model": MODEL} | arguments)


@pytest.mark.parametrize(
    ("kind", "argument", "value", "error"),
    [(kind, *case) for kind, cases in OF_A_LIKELIHOOD.items() for case in cases],
)
def test_of_a_likelihood(kind, argument, value, error):
    refuses(lambda: likelihood(kind, argument, value), argument, error)
    assert not MODEL.potentials


OF_OTHERS = [
    ("rng", lambda: KernelExpFinite(10, 1.0, 1.0, rng="a").fit(POINTS), TypeError),
    ("rng", lambda: LogDensityGP(rng="a").fit(POINTS, POINTS[:, 0]), TypeError),
    ("random_seed", lambda: select(POINTS, random_seed="a"), TypeError),
    ("X", lambda: select("lite", POINTS), ValueError),
    ("estimator='a", lambda: select(POINTS, "a"), ValueError),
    ("estimator=array.{,200}select", lambda: select(POINTS, POINTS), ValueError),
    *[
        ("warm_start", lambda value=value: select(POINTS, warm_start=value), error)
        for value, error in [
            (4.0, TypeError),
            ("ab", TypeError),
            ((1.0,), TypeError),
            ((None, 1.0), ValueError),
            (("a", 1.0), ValueError),
            ((-1.0, 1.0), ValueError),
        ]
    ],
    ("sigma", lambda: KernelExpLite("a", 1.0).fit(POINTS), ValueError),
    ("sigma", lambda: KernelExpLite(True, 1.0).fit(POINTS), ValueError),
    ("X", lambda: KernelExpLite(1.0, 1.0).fit("a"), ValueError),
    ("X", lambda: KernelExpLite(1.0, 1.0).fit(POINTS[0]), ValueError),
    *[
        ("score_weights", lambda value=value: LogDensityGP(score_weights=value).fit(*VALUED), error)
        for value, error in [
            (0.1, TypeError),
            ("a", TypeError),
            (None, TypeError),
            ([], ValueError),
            (["a"], ValueError),
            ([[0.0]], ValueError),
            ([np.nan], ValueError),
            ([-1.0], ValueError),
        ]
    ],
    *[
        ("bulk=.*finite", lambda value=value: LogDensityGP().fit(*VALUED, bulk=value), ValueError)
        for value in ["a", [1.0], True, np.nan, np.inf]
    ],
    ("model", lambda: kmc.estimate_noise("m"), TypeError),
    ("random_seed", lambda: kmc.estimate_noise(MODEL, random_seed="a"), TypeError),
    ("model", lambda: kmc.black_boxes("m"), TypeError),
    ("idata", lambda: kmc.diagnose("a"), ValueError),
]


OF_PARTIAL_POSTERIORS = [
    *each("build", [None, "a", 3], TypeError),
    *each("data", [None, "a", 3, [], np.ones(0)], (TypeError, ValueError)),
    *each("functional", [3, None, []], (TypeError, ValueError)),
    *each("first_size", [0, -1, "a", 1.5, None, 100, True], (TypeError, ValueError)),
    *each("alpha", ["a", 0, None, -1, np.nan, [1]], (TypeError, ValueError)),
    *each("n_replications", [0, "a", 1.5, None, True]),
    *each("sample", [3, "a"], TypeError),
    *each("executor", [3, "a"], TypeError),
    *each("random_seed", ["a", -1, 1.5], (TypeError, ValueError)),
    *each("progressbar", ["no", 3]),
]
OF_LEARN = [
    *each("model", ["m", 3, pm.Model], TypeError),
    *each("max_evaluations", [0, "a", 1.5, True]),
    *each("batch_size", [0, 1, "a", 1.5]),
    *each("starts", [0, "a", 1.5, None]),
    *each("tolerance", NUMBERS),
    *each("executor", [3, "a"], TypeError),
    *each("evaluations", [3, "a"], TypeError),
    *each("random_seed", ["a", -1, 1.5], (TypeError, ValueError)),
    *each("progressbar", ["no", 3]),
]
OF_MMD = [
    *each("x", ["a", 3, None, np.ones(0), np.full((3, 2), np.nan)]),
    *each("y", ["a", 3, None, np.ones((3, 5))]),
    *each("estimate", ["a", None, 3]),
    *each("degree", ["a", 0, 1.5, -1, True]),
    *each("kernel", [3, "a"], TypeError),
    *each("block_size", ["a", 0, 1.5, True]),
    *each("at", ["a", [0], [1.5], [1000]]),
]


@pytest.mark.parametrize(("argument", "value", "error"), OF_PARTIAL_POSTERIORS)
def test_of_partial_posteriors(argument, value, error):
    arguments = {"first_size": 8, "alpha": 0.5, "n_replications": 2}
    arguments |= {"build": lambda rows: MODEL, "data": np.arange(64.0), "functional": "x"}
    arguments[argument] = value
    positional = [arguments.pop(name) for name in ("build", "data", "functional")]
    refuses(lambda: kmc.partial_posteriors(*positional, **arguments), argument, error)


@pytest.mark.parametrize(("argument", "value", "error"), OF_LEARN)
def test_of_learn(argument, value, error):
    refuses(lambda: kmc.learn(**{"model": MODEL, argument: value}), argument, error)


@pytest.mark.parametrize(("argument", "value", "error"), OF_MMD)
def test_of_mmd(argument, value, error):
    arguments = {"x": POINTS, "y": POINTS + 1.0, argument: value}
    if argument == "block_size":
        arguments["estimate"] = "block"
    x, y = arguments.pop("x"), arguments.pop("y")
    refuses(lambda: kmc.mmd(x, y, **arguments), argument, (TypeError, ValueError))


@pytest.mark.parametrize("value", [None, "a", 3, xr.Dataset()])
@pytest.mark.parametrize("name", kmc.plots.__all__)
def test_of_plots(name, value):
    """The first argument is a run, or what has a surrogate or proposals."""
    named = {
        "plot_surrogate": "surrogate",
        "plot_proposals": "step|idata",
        "plot_emulator": "learned",
        "plot_trajectories": "step|source|surrogate|idata",
    }.get(name, "idata")
    arguments = (value, value) if name == "plot_proposals" else (value,)
    with pytest.raises((TypeError, ValueError), match=rf"\b({named})\b"):
        getattr(kmc.plots, name)(*arguments)


def test_a_covariance_is_checked_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(log_density, "compile_function", None)
    refuses(
        lambda: kmc.AdaptiveMetropolis(model=MODEL, covariance=np.eye(2)), "covariance", ValueError
    )


@pytest.mark.parametrize(("argument", "make", "error"), OF_OTHERS)
def test_of_others(argument, make, error):
    refuses(make, argument, error)


def test_help_is_readable():
    """No backslash where a line was meant to go on, no indentation left over."""
    for name in kmc.__all__:
        text = getattr(kmc, name).__doc__ or ""
        assert not text.startswith(("\\", " ")), name
        assert "\\\n" not in text, name


@pytest.mark.parametrize(
    ("value", "error"),
    [(0.5, TypeError), (3, TypeError), (None, TypeError), ("a", TypeError), ("12", TypeError)]
    + [([2.0], ValueError), (["a"], ValueError), ([0.0], ValueError), ([[0.5]], ValueError)],
)
def test_of_a_summary(value, error):
    with pytest.raises(error, match=r"quantiles=.* e\.g\. \(0\.05, 0\.95\)"):
        learned_curve().summary(value)
