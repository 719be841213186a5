"""Simulated data sets and their summary statistics, for likelihoods made of simulations.

A simulator makes one data set in a call; with ``size=`` it makes `size` data sets along a first
axis, which go through the summary and the distance together. A simulation fails if its result, a
summary or a distance, is NaN or infinite. Its weight in an estimate is 0.
"""

import inspect
import warnings
from abc import ABC, abstractmethod

import numpy as np
from pytensor.graph.basic import Variable

from pymc_kmc.likelihoods.checks import WrongResult, check_callable, check_n_replicates
from pymc_kmc.likelihoods.executors import Failure
from pymc_kmc.likelihoods.extras import apart
from pymc_kmc.likelihoods.noise_schemes import choose_noise
from pymc_kmc.likelihoods.replicates import Replicates

# Equal data sets at the initial point that make a simulator seem constant: two may both lack a rare
# event.
ALL_EQUAL = 10
# Share of failed simulations that is reported. If fewer fail, the likelihood changes by a factor
# of .95 to 1.
MANY_FAILURES = 0.05
# Failed simulations of a chain before a warning: their share then has a relative standard error
# of a third.
ENOUGH_FAILURES = 10
# Consequence of failed simulations and remedy, for warnings and `diagnose`.
MEANING_OF_FAILURES = (
    "They count as infinitely far from the data: the likelihood of parameters has the share of "
    "simulations that succeed there as a factor. If failures are the simulator's fault and no part "
    "of the model, mend it."
)


class NotAnArray(TypeError):
    """Simulated data don't make one array; the message goes on after the simulator's name."""


class Summaries:
    """Simulates data for a replicate and returns their summary statistics, by default the data.

    `is_joint` says that the simulator takes ``size=``; the observed summary then has a first axis
    of length 1. `shape` is that of one data set's summary. Raises a TypeError if the observed
    summary isn't a real array, a ValueError if it is empty or not finite, or `summary` raises.
    """

    def __init__(self, name, simulator, summary, observed, is_joint, extras=None):
        if summary is not None and not callable(summary):
            raise TypeError(
                f"summary of {name!r} must be callable, summary(data), got {summary!r} of type "
                f"{type(summary).__name__}."
            )
        self.name = name
        self.simulator, self.extras = simulator, extras
        self.summary = summary
        self.is_joint = is_joint
        try:
            check_data(observed)
            data = np.asarray(observed)[None] if is_joint else observed
            self.observed = self._of_observed(data)
        except TypeError as error:
            raise TypeError(f"observed of {name!r} {error}.") from None
        if is_joint and self.observed.shape[:1] != (1,):
            raise TypeError(
                f"observed of {name!r}, as an array of one data set, has a summary of shape "
                f"{self.observed.shape}. The simulator takes size=: summary gets all data sets "
                "together, along the first axis, and must keep that axis."
            )
        if self.observed.size == 0:
            raise ValueError(
                f"observed of {name!r} {'is' if summary is None else 'has a summary that is'} "
                f"empty, of shape {self.observed.shape}. Give the data that simulated ones are "
                "compared with."
            )
        if not np.all(np.isfinite(self.observed)):
            raise ValueError(
                f"observed of {name!r} {self._have} NaN or infinite values. Leave them out, in the "
                "simulated data too, or give a summary that does."
            )
        self.shape = self.observed.shape[1:] if is_joint else self.observed.shape

    @property
    def _have(self):
        return "has" if self.summary is None else "has a summary with"

    def __call__(self, *arguments, **random):
        return self.with_extras(*arguments, **random)[0]

    def data(self, *arguments, **random):
        """Return simulated data as floats; raise a NotAnArray if `summary` alone can read them."""
        if self.summary is None:
            return self(*arguments, **random)
        data, _ = self._simulated(arguments, random)
        try:
            array = as_floats(data, "is")
        except TypeError:
            raise NotAnArray(
                f"returned a data set of type {type(data).__name__}, not an array of real numbers"
            ) from None
        first = self._first(random)
        if array.shape[: len(first)] != first:  # a tuple of arrays, for example
            raise NotAnArray(f"returned data of shape {array.shape} where size={first[0]}")
        return array

    def with_extras(self, *arguments, **random):
        """Return summaries of simulated data, and raveled extras, None without any."""
        data, extras = self._simulated(arguments, random)
        try:
            summary = self._summarise(data)
        except TypeError as error:
            raise WrongResult(f"returned a data set that {error}.") from None
        first = self._first(random)
        expected = (*first, *self.shape)
        if summary.shape != expected:
            of = "size data sets like observed" if self.is_joint else "as of observed"
            via = "" if self.summary is None else " after summary"
            raise WrongResult(
                f"returned data that have shape {summary.shape}{via}, where {expected} is needed, "
                f"{of}."
            )
        return summary, extras

    def _simulated(self, arguments, random):
        """Return simulated data, and raveled extras; raise a WrongResult if there are no data."""
        found = self.simulator(*arguments, **random)
        data, extras = apart(self.extras, found, *self._first(random))
        try:
            check_data(data)
        except TypeError as error:
            raise WrongResult(f"returned a data set that {error}.") from None
        return data, extras

    def _first(self, random):
        """Return the shape before that of a data set: the number of data sets, or nothing."""
        return (random["size"],) if self.is_joint else ()

    def _of_observed(self, data):
        """Return the summary of the observed data; raise a ValueError if `summary` raises."""
        if self.summary is None:
            return self._summarise(data)
        try:
            summary = self.summary(data)
        except Exception as error:
            raise ValueError(
                f"summary of {self.name!r} raised {type(error).__name__} where it got observed"
                f"{', as an array of one data set' * self.is_joint}: {error}"
            ) from error
        return as_floats(summary, "has as its summary")

    def warn_if_constant(self, noise, values):
        """Warn if data sets simulated from different noise have the same summary."""
        rows = noise.draw(ALL_EQUAL, np.random.default_rng(1))
        simulate = Replicates(self, noise).here
        for some in (rows[:2], rows):
            summaries = simulate(some, values)
            if isinstance(summaries, Failure):
                return
            if not all(np.array_equal(summary, summaries[0]) for summary in summaries):
                return
        warnings.warn(
            f"The simulator of {self.name!r} returned the same "
            f"{'data' if self.summary is None else 'summary'} {ALL_EQUAL} times at the model's "
            "initial point, with different random numbers. Everything random in it must come from "
            "rng= (u= with n_normals); if nothing is random, write a pm.Potential or a "
            "kmc.BlackBox.",
            UserWarning,
            stacklevel=4,
        )

    def _summarise(self, data):
        """Return a summary as floats; a TypeError's message ends a sentence about the data."""
        if self.summary is None:
            return as_floats(data, "is")
        return as_floats(self.summary(data), "has as its summary")


class Combination(ABC):
    """Makes the log estimate of results of simulations, and counts a chain's failed ones.

    `n_simulations` and `n_failed` count since :meth:`forget`.
    """

    n_simulations: int
    n_failed: int

    def __init__(self, name):
        self.name = name
        self.forget()

    def __call__(self, results):
        """Return the log estimate of n results, a distance or a summary for each simulation."""
        results = np.asarray(results)
        succeeded = np.isfinite(results.reshape(len(results), -1)).all(axis=1)
        self.n_simulations += len(results)
        self.n_failed += len(results) - int(succeeded.sum())
        return self.log_estimate(results, succeeded)

    @abstractmethod
    def log_estimate(self, results, succeeded):
        """Return the log estimate of results (n, ...), of which bool (n,) succeeded."""

    def forget(self):
        """Drop the record of the last chain."""
        self.n_simulations = self.n_failed = 0

    @property
    def has_many_failures(self):
        return is_notable(self.n_failed, self.n_simulations)

    def failures(self):
        """Return a sentence if a notable share of simulations failed, else an empty string."""
        if not self.has_many_failures:
            return ""
        return (
            f"{self.n_failed} of {self.n_simulations} simulations for {self.name!r} failed, with "
            "NaN or infinite results."
        )

    def explain(self):
        """Return why a chain may not move, or an empty string."""
        return self.failures()

    def warn(self):
        """Return a warning if many simulations failed, else an empty string."""
        if self.n_failed < ENOUGH_FAILURES or not self.has_many_failures:
            return ""
        return f"{self.failures()} {MEANING_OF_FAILURES}"


def is_notable(n_failed, n):
    return 0 < n_failed >= MANY_FAILURES * n


def check_data(data):
    """Raise a TypeError if `data` is None, masked or a tensor."""
    if data is None:
        raise TypeError("is None")
    if isinstance(data, Variable):
        raise TypeError(f"is the tensor {data}: give its value, data.eval(), an array of numbers")
    if is_masked(data):
        raise TypeError("is a masked array: leave the masked values out, observed and simulated")


def as_floats(value, verb):
    """Return `value` as an array of floats, or raise a TypeError that begins with `verb`."""
    if value is None or is_masked(value):
        raise TypeError(f"{verb} {'None' if value is None else 'a masked array'}")
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal lengths
        raise TypeError(f"{verb} {value!r}, not an array") from None
    if array.dtype.kind not in "buif":
        raise TypeError(f"{verb} of type {array.dtype}, not real numbers")
    return array.astype(np.float64)


def as_one_array(data_sets):
    """Return data sets, arrays, along a first axis; raise a NotAnArray if their shapes differ."""
    found = []
    for data in data_sets:
        found.append(data)
        if data.shape != found[0].shape:
            raise NotAnArray(f"returned data sets of shapes {found[0].shape} and {data.shape}")
    return np.stack(found)


def is_masked(value):
    return isinstance(value, np.ma.MaskedArray)


def noise_of_simulator(
    name, simulator, n_params, n_simulations, n_normals, correlation, executor, timeout
):
    """Return the Noise of a simulator, joint if it takes ``size=``.

    Raises a TypeError if the simulator can't be called, a ValueError if an argument is invalid.
    """
    check_n_replicates(name, n_simulations, "n_simulations")
    is_joint = makes_many(simulator, n_params)
    options = {"n_normals": n_normals, "correlation": correlation}
    if is_joint:
        for argument, value in (options | {"executor": executor, "timeout": timeout}).items():
            if value is not None:
                raise ValueError(
                    f"{argument} of {name!r} needs a simulator that makes one data set a call; "
                    "this one takes size= and makes all of them in one call, with one generator. "
                    f"Leave out {argument}=, or size from the simulator's arguments."
                )
    noise = choose_noise(name, n_simulations, "n_simulations", is_joint=is_joint, **options)
    check_callable(name, "simulator", simulator, n_params, noise)
    return noise


def makes_many(simulator, n_params):
    """Return whether a simulator takes ``size`` besides its `n_params` parameters."""
    try:
        parameters = inspect.signature(simulator).parameters.values()
    except (TypeError, ValueError):  # not callable, or a compiled callable without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    its_own = [p.name for p in parameters if p.kind in positional][:n_params]
    return "size" in {p.name for p in parameters} - set(its_own)
