"""One level of a path: a model of a subset, its run, its functional and its diagnostics."""

import reprlib
from time import perf_counter
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from pymc.backends.base import MultiTrace
from pytensor.gradient import DisconnectedInputError, NullTypeGradError

from pymc_kmc.notebook import element_names
from pymc_kmc.steps import KMC


def draws_of(result, name):
    """Return a variable's draws (chains, draws, ...) of InferenceData, a DataTree or a dict."""
    posterior = getattr(result, "posterior", result)
    if name not in posterior:
        raise ValueError(f"The draws have no variable {name!r}, they have {sorted(posterior)}.")
    draws = posterior[name]
    if hasattr(draws, "transpose") and hasattr(draws, "dims"):
        draws = draws.transpose("chain", "draw", ...).values
    return np.asarray(draws)


class Functional:
    """An expectation of the posterior, as a vector with labels.

    `functional` is a function of the draws, or names of variables, for their elements' mean and sd.
    """

    def __init__(self, functional):
        self.names = None
        self.function = functional
        if isinstance(functional, str):
            self.names = (functional,)
        elif not callable(functional):
            try:
                self.names = tuple(functional)
            except TypeError:
                self.names = ()
            if not self.names or not all(isinstance(name, str) for name in self.names):
                raise TypeError(
                    "functional must be a function of the draws, or names of variables, got "
                    f"{functional!r} of type {type(functional).__name__}."
                )

    def __call__(self, result):
        """Return the value (k,), its shape as users see it, and a list of k labels."""
        if self.names is None:
            name = getattr(self.function, "__name__", "functional")
            value = _as_numbers(self.function(result), name)
            name = "functional" if name == "<lambda>" else name
            return value.ravel(), value.shape, element_names(name, value.shape)
        values, labels = [], []
        for name in self.names:
            draws = draws_of(result, name)
            for what, moment in (
                ("mean", draws.mean(axis=(0, 1))),
                ("sd", draws.std(axis=(0, 1))),
            ):
                values.append(np.ravel(moment))
                labels += [f"{what} of {element}" for element in element_names(name, moment.shape)]
        value = np.concatenate(values).astype(float)
        if not value.size:
            raise ValueError(
                f"functional={self.names!r} has no elements: name variables that have some in "
                "every subset's model."
            )
        return value, value.shape, labels


def _as_numbers(returned, name):
    """Return what a functional has returned as floats; an error unless there are some."""
    told = f"The functional {name!r} must return a number or an array of numbers, it returned"
    try:
        value = np.asarray(returned, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{told} {reprlib.repr(returned)}: {error}.") from error
    if returned is None:
        raise TypeError(f"{told} None: does it end with a return?")
    if not value.size:
        raise ValueError(f"{told} an array of shape {value.shape}, which has none.")
    return value


# Defaults of pm.sample. Monte-Carlo error adds a share 1 / ESS to a path's variance, negligible
# with several hundred effective draws.
DRAWS, TUNE, CHAINS = 500, 500, 2
# Elements of a model's free variables whose R-hat and ESS are computed: each takes milliseconds.
MOST_CHECKED = 20
# What a step has evaluated before its chains, for all of them.
LEARNING = "kmc_n_learning_evaluations"
# Fewest draws of a chain (half a single one) for R-hat and ESS.
FEWEST_DRAWS = 4


class SubsetRun(NamedTuple):
    """The result of a run on one subset.

    Attributes
    ----------
    value : ndarray, shape (k,)
        The functional; its `shape` and `labels` are those of :class:`Functional`.
    variables : tuple of str
        Names of the model's free variables.
    evaluations, divergences : int
        Evaluations of the likelihood or its gradient, with tuning's; divergent draws, without.
    seconds : float
        Time for building, sampling and the functional.
    r_hat, ess : float
        Largest and smallest over the first elements of the free variables. NaN: too few draws.
    spread : ndarray, shape (at most 20,)
        Interquartile ranges of these elements.
    """

    value: np.ndarray
    shape: tuple
    labels: list
    variables: tuple
    evaluations: int
    seconds: float
    r_hat: float
    ess: float
    divergences: int
    spread: np.ndarray


class Sampler:
    """Samples a model according to the argument `sample` of :func:`partial_posteriors`."""

    def __init__(self, sample=None):
        if not (sample is None or isinstance(sample, dict) or callable(sample)):
            raise TypeError(
                "sample must be None, a dictionary of arguments of pm.sample, or a function "
                f"sample(model, random_seed), got {sample!r} of type {type(sample).__name__}."
            )
        if isinstance(sample, dict):
            own = {"random_seed", "progressbar", "model", "return_inferencedata"} & set(sample)
            if own:
                raise ValueError(
                    f"sample has {sorted(own)}, which partial_posteriors sets itself. Use its own "
                    "random_seed and progressbar."
                )
            if not callable(sample.get("step", pm.NUTS)):
                raise TypeError(
                    f"sample['step'] is {sample['step']!r}, but every subset has a model of its "
                    "own. Give the class, or a function without arguments that makes the step or "
                    "the list of steps: {'step': kmc.KMC}."
                )
        self.sample = sample

    def __call__(self, model, random_seed):
        if callable(self.sample):
            return self.sample(model, random_seed)
        settings = {
            "draws": DRAWS,
            "tune": TUNE,
            "chains": CHAINS,
            "cores": 1,
            "quiet": True,
            "compute_convergence_checks": False,
            # The statistics of tuning have the number of its evaluations.
            "discard_tuned_samples": False,
        }
        settings |= self.sample or {}
        with model:
            if "step" in settings:
                settings["step"] = settings["step"]()
            elif not _has_gradient(model) and not model.discrete_value_vars:
                settings["step"] = KMC()
            return pm.sample(random_seed=random_seed, progressbar=False, **settings)


def _has_gradient(model):
    try:
        model.dlogp()
    except (NotImplementedError, NullTypeGradError, DisconnectedInputError):
        return False
    return True


def run_level(build, sample, functional, subset, random_seed):
    """Build a level's model, sample it, evaluate the functional; return a :class:`SubsetRun`."""
    begin = perf_counter()
    model = build(subset)
    if not isinstance(model, pm.Model):
        raise TypeError(f"build must return a PyMC model, it returned {type(model).__name__}.")
    result = sample(model, random_seed)
    if isinstance(result, MultiTrace):
        raise TypeError(
            "sample returned a MultiTrace: leave out return_inferencedata=False, or return a "
            "dictionary of draws."
        )
    found = functional(result)
    variables = tuple(variable.name for variable in model.free_RVs)
    r_hat, ess, spread = _checked(result, variables)
    evaluations, divergences = _statistics(result)
    seconds = perf_counter() - begin
    return SubsetRun(*found, variables, evaluations, seconds, r_hat, ess, divergences, spread)


def _statistics(result):
    declared = getattr(getattr(result, "posterior", None), "attrs", {}).get("n_evaluations")
    if declared is not None and not declared >= 1:
        raise ValueError(
            f"posterior.attrs['n_evaluations'] is {declared!r}, but must be 1 or more: leave it out"
            " where nothing is evaluated, and draws are counted."
        )
    evaluations = divergences = 0
    for group in ("warmup_sample_stats", "sample_stats"):
        statistics = getattr(result, group, None)
        if statistics is None:
            continue
        evaluations += _evaluations(statistics)
        if group == "sample_stats" and "diverging" in statistics:
            divergences = int(statistics["diverging"].sum())
        if group == "sample_stats" and LEARNING in statistics:
            evaluations += int(statistics[LEARNING].values.max(axis=(0, 1)).sum())
    if not evaluations:
        posterior = getattr(result, "posterior", result)
        draws = draws_of(result, next(iter(posterior)))
        evaluations = draws.shape[0] * draws.shape[1]
    return int(evaluations if declared is None else declared), divergences


def _evaluations(statistics):
    """Return a step's evaluations: its own count, its leapfrog steps, or one a draw."""
    for name in ("kmc_n_evaluations", "n_steps"):
        if name in statistics:
            return int(np.nansum(statistics[name].values))
    return int(statistics.sizes["chain"] * statistics.sizes["draw"])


def _checked(result, variables):
    """Return R-hat, ESS and interquartile ranges of the first elements of the free variables."""
    posterior = getattr(result, "posterior", result)
    elements: list[Any] = []
    for name in variables:
        if name in posterior:
            draws = draws_of(result, name)
            flat = draws.reshape(*draws.shape[:2], -1)
            elements += [flat[..., k] for k in range(min(flat.shape[2], MOST_CHECKED))]
    elements = elements[:MOST_CHECKED]
    if not elements:
        return np.nan, np.nan, np.array([])
    spread = np.array([np.subtract(*np.percentile(each, [75, 25])) for each in elements])
    r_hats, esss = zip(*map(_convergence, elements), strict=True)
    # An element that can't be checked (a discrete variable that has one value) says nothing.
    known = [r_hat for r_hat in r_hats if not np.isnan(r_hat)]
    effective = [ess for ess in esss if not np.isnan(ess)]
    return max(known, default=np.nan), min(effective, default=np.nan), spread


def _convergence(draws):
    if len(draws) == 1:
        half = draws.shape[1] // 2
        draws = draws[:, : 2 * half].reshape(2, half)
    if draws.shape[1] < FEWEST_DRAWS:
        return np.nan, np.nan
    if not np.isfinite(draws).all():
        return np.inf, 0.0
    if np.ptp(draws) == 0.0:
        # A continuous variable that never moves is a chain that is stuck.
        return (np.nan, np.nan) if draws.dtype.kind in "iub" else (np.inf, 0.0)
    r_hat = float(az.rhat(np.asarray(draws, dtype=float)))
    return np.inf if np.isnan(r_hat) else r_hat, float(az.ess(np.asarray(draws, dtype=float)))
