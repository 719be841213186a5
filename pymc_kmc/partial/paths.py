"""Runs of replications on rows of the data, here or on an executor; errors and interrupts."""

import traceback
from time import sleep
from typing import NamedTuple

import numpy as np

from pymc_kmc.likelihoods.executors import (
    MOST_DEATHS,
    ExecutorError,
    LazyExecutor,
    Shipped,
    cancel,
    explain,
    has_result,
    noticed_interrupts,
    picklable,
)
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.partial.levels import run_level

# Replications submitted to an executor at once: their subsets are in memory.
MOST_WAITING = 32
# Seconds between polls of the executor's futures.
LOOK_EVERY = 0.01


class Replication(NamedTuple):
    """Everything random about one replication.

    `sizes` are those of its T + 1 subsets, `permutation` the seed of their rows, `seeds` the runs'.
    """

    sizes: list
    permutation: np.random.SeedSequence
    seeds: list

    def subset(self, data, n_data):
        """Return the rows of the largest subset in random order; it begins with the others."""
        rng = np.random.default_rng(self.permutation)
        indices = rng.choice(n_data, self.sizes[-1], replace=False)
        return take(data, indices)


class PathFailure(NamedTuple):
    """The exception that a level raised; `frames` is another process's traceback, as text."""

    level: int
    error: Exception
    frames: str = ""

    def __reduce__(self):
        frames = "".join(traceback.format_tb(self.error.__traceback__)[1:])
        return PathFailure, (self.level, picklable(self.error), self.frames or frames)


class RunPath(Shipped):
    """Runs the levels of a replication."""

    def __init__(self, build, sample, functional):
        super().__init__((build, sample, functional))

    def __call__(self, subset, sizes, seeds):
        """Return a list of :class:`~.levels.SubsetRun`, or a :class:`PathFailure`."""
        runs = []
        with single_threaded_blas():
            for level, (size, seed) in enumerate(zip(sizes, seeds, strict=True)):
                try:
                    runs.append(run_level(*self.content, take(subset, slice(size)), seed))
                except Exception as error:
                    return PathFailure(level, error)
        return runs


def follow(plans, run_path, subset_of, executor=None, report=lambda runs: None):
    """Return the runs of the replications by number: of those that ended, after an interrupt.

    `subset_of` returns a plan's largest subset. `executor`, or a function that returns one, runs
    the replications; None runs them here. `report` is called with the runs of each ended
    replication. Raises a KeyboardInterrupt if none has ended.
    """
    paths = {}

    def keep(index, outcome):
        if isinstance(outcome, PathFailure):
            raise failure(index, plans[index], outcome)
        paths[index] = outcome
        report(outcome)

    with noticed_interrupts() as interrupted:
        try:
            if executor is None:
                for index, plan in enumerate(plans):
                    outcome = run_path(subset_of(plan), plan.sizes, plan.seeds)
                    # pm.sample takes an interrupt for a wish for fewer draws.
                    if interrupted:
                        break
                    keep(index, outcome)
            else:
                _on_executor(plans, run_path, subset_of, LazyExecutor(executor), keep)
        except KeyboardInterrupt:
            interrupted.append(True)
        if interrupted and not paths:
            raise KeyboardInterrupt("no replication has ended: there is no estimate yet.")
    return paths


def _on_executor(plans, run_path, subset_of, executor, keep):
    """Run all replications, those lost with a dying worker again if that can be."""
    waiting, todo, n_deaths = {}, list(enumerate(plans))[::-1], 0
    try:
        while waiting or todo:
            while todo and len(waiting) < MOST_WAITING:
                index, plan = todo.pop()
                waiting[index] = _submitted(executor, run_path, plan, subset_of(plan))
            ended = [index for index, future in waiting.items() if future.done()]
            for index in ended:
                try:
                    outcome = waiting[index].result()
                except Exception as error:
                    n_deaths += 1
                    if n_deaths > MOST_DEATHS or not executor.is_replaced(error):
                        raise ExecutorError(explain(error, executor.is_made)) from error
                    executor.forget()
                    for lost in [each for each in waiting if not has_result(waiting[each])]:
                        del waiting[lost]
                        todo.append((lost, plans[lost]))
                    break
                n_deaths = 0
                del waiting[index]
                keep(index, outcome)
            if not ended:
                sleep(LOOK_EVERY)
    except BaseException:
        # An interrupt too leaves busy workers.
        cancel(waiting.values())
        executor.forget()
        raise


def _submitted(executor, run_path, plan, subset):
    try:
        return executor.submit(run_path, subset, plan.sizes, plan.seeds)
    except Exception as error:
        raise ExecutorError(explain(error, executor.is_made)) from error


def failure(index, plan, outcome):
    """Return the exception that a level raised, with notes on the place."""
    size = plan.sizes[outcome.level]
    error = outcome.error
    error.add_note(
        f"In partial_posteriors: replication {index}, level {outcome.level}, a subset of {size} "
        f"data, random_seed={plan.seeds[outcome.level]}."
    )
    if outcome.level == 0:
        error.add_note(
            f"If {size} data are too few for this model (an improper posterior, no valid start), "
            "give a larger first_size."
        )
    if outcome.frames:
        error.add_note(f"Where it was raised, in another process:\n{outcome.frames}")
    return error


def n_rows(data):
    """Return the number of data; raise a TypeError without rows, a ValueError if parts differ."""
    if isinstance(data, tuple | dict):
        parts = data.values() if isinstance(data, dict) else data
        numbers = [n_rows(part) for part in parts]
        if not numbers:
            raise ValueError("data is empty: it needs at least one array.")
        if len(set(numbers)) > 1:
            raise ValueError(
                f"The parts of data have {numbers} rows: all must have the same number of rows."
            )
        return numbers[0]
    shape = getattr(data, "shape", ())
    if not shape:
        raise TypeError(
            "data must be an array or a data frame with one row a datum, or a tuple or dictionary "
            f"of such, got {type(data).__name__}. Use numpy.asarray for a list."
        )
    if shape[0] == 0:
        raise ValueError("data has no rows.")
    return int(shape[0])


def take(data, rows):
    """Return some rows: a copy in the order of an array of indices, or those of a slice."""
    if isinstance(data, dict):
        return {name: take(part, rows) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(take(part, rows) for part in data)
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    # A memory map hands out memory maps of its own file: a subset is an array. Other kinds stay as
    # they are: a masked array has its mask, a record array its names.
    return np.asarray(data[rows]) if isinstance(data, np.memmap) else data[rows]
