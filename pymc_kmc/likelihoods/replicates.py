r"""Independent replicates of an estimate: where they run, and how many there should be.

N replicates cost N times as much as one and make the estimate's variance about N times smaller. For
the plain pseudo-marginal method a variance of the log estimate between 1 and 2 or so makes the most
of a given number of replicates (Doucet, Pitt, Deligiannidis and Kohn, 2015: 1 to 2.9, depending on
how good the proposals would be without noise; Sherlock, Thiery, Roberts and Rosenthal, 2015: 3.3
for random walks in many dimensions), provided that an estimate's cost is proportional to N.

Replicates may run on an executor. Which random numbers each of them gets doesn't depend on where it
runs, so that the draws are the same.

References
----------
Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of Markov
chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
pseudo-marginal random walk Metropolis algorithms. *Annals of Statistics* 43, 238-275.
"""

import os
import pickle
import traceback
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from hashlib import sha256
from time import monotonic
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from pymc_kmc.likelihoods.noise import JointSeeds

__all__ = [
    "ExecutorError",
    "Failure",
    "JointReplicates",
    "Replicates",
    "choose_n_replicates",
    "log_mean_exp",
]

# An estimate is at most so many tasks of an executor: a task costs some 0.1 to 1 ms.
MOST_TASKS = 64
# Estimates that a variance is computed from: its relative standard deviation is .29, to which the
# efficiency is not sensitive.
N_ESTIMATES = 25
# A number of replicates stays if the variance is so many times the target, or as many times less.
NEAR_ENOUGH = 1.6
# In one round the number grows or shrinks by at most this factor, and there are so many rounds.
LARGEST_FACTOR, MOST_ROUNDS = 16, 6
MOST_REPLICATES = 10_000


class ExecutorError(RuntimeError):
    """An executor could not run what it was given."""


class Failure(NamedTuple):
    """What a replicate raised.

    Attributes
    ----------
    index : int or slice
        Of the replicate, or of all that were made in one call.
    error : Exception
    frames : str
        Where it was raised, as text: a traceback does not travel between processes.
    """

    index: int | slice
    error: Exception
    frames: str


def log_mean_exp(log_estimates):
    """Return the log of the mean of exp(log_estimates), of shape (n,).

    A NaN or +inf among them is the result.
    """
    if len(log_estimates) == 1:
        return log_estimates[0]
    log_estimates = np.asarray(log_estimates)
    largest = log_estimates.max()
    if not np.isfinite(largest):
        return float(largest)
    return float(largest + np.log(np.mean(np.exp(log_estimates - largest))))


class Replicates:
    """Runs a task once for every row of noise, here or on an executor.

    Parameters
    ----------
    task : callable
        ``task(*arguments, **random)`` with `random` from the noise's ``inputs``.
    noise : Seeds or Normals
    executor : concurrent.futures.Executor or callable, optional
        Or what returns one: it is then called once in each process that needs it.
    timeout : float, optional
        Seconds that the executor has for all of them.
    """

    def __init__(self, task, noise, executor=None, timeout=None):
        if executor is not None and not (hasattr(executor, "submit") or callable(executor)):
            raise TypeError(
                "executor must have the interface of concurrent.futures.Executor, or be a function "
                f"that returns one, got {executor!r} of type {type(executor).__name__}."
            )
        if timeout is not None and (executor is None or not 0 < timeout < np.inf):
            raise ValueError(
                f"timeout must be a positive number of seconds, and needs executor=, got {timeout}."
            )
        self.task = task
        self.noise = noise
        self.timeout = timeout
        self._remote = RemoteRows(task, noise)
        self._executor = None if executor is None else LazyExecutor(executor)

    def __call__(self, rows, arguments):
        """Return the list of results, or the first :class:`Failure`.

        Parameters
        ----------
        rows : ndarray, shape (n,) or (n, size)
            The noise.
        arguments : list
            The task's other arguments.

        Raises
        ------
        ExecutorError
            If there is no result for another reason than the task's own exception.
        """
        if self._executor is None:
            return self.here(rows, arguments)
        size = -(-len(rows) // MOST_TASKS)
        futures, results = [], []
        try:
            for first in range(0, len(rows), size):
                futures.append(
                    self._executor.submit(self._remote, rows[first : first + size], arguments)
                )
            deadline = None if self.timeout is None else monotonic() + self.timeout
            for future in futures:
                seconds = None if deadline is None else max(0.0, deadline - monotonic())
                part = future.result(seconds)
                if isinstance(part, Failure):
                    return part._replace(index=len(results) + part.index)
                results += part
        except FutureTimeout:
            raise ExecutorError(
                f"they took longer than timeout={self.timeout:g} seconds."
            ) from None
        except (BrokenExecutor, CancelledError, OSError, RuntimeError, pickle.PicklingError) as e:
            self._executor.forget()
            raise ExecutorError(f"{type(e).__name__}: {e}") from e
        finally:
            for future in futures:
                future.cancel()
        return results

    def here(self, rows, arguments):
        """Do it in this process, one row after the other."""
        return run_rows(self.task, self.noise, rows, arguments)


class JointReplicates(Replicates):
    """Runs a task once for all rows of noise together.

    Parameters
    ----------
    task : callable
        ``task(*arguments, rng=, size=)`` returns a sequence of `size` results.
    """

    def __init__(self, task):
        super().__init__(task, JointSeeds())

    def here(self, rows, arguments):
        """Do it in this process, in one call."""
        results = run_rows(self.task, self.noise, [rows], arguments)
        if isinstance(results, Failure):
            return results._replace(index=slice(None))
        return results[0]


def run_rows(task, noise, rows, arguments):
    """Return the task's results for all rows of noise, or a :class:`Failure`."""
    results = []
    for index, row in enumerate(rows):
        # [()] makes numbers of 0-d arrays; the copies protect the chain from a task that writes.
        values = [value.copy()[()] for value in arguments]
        try:
            results.append(task(*values, **noise.inputs(row)))
        except Exception as error:
            # Without the frames of this function and of the task's own wrapper.
            return Failure(index, error, "".join(traceback.format_tb(error.__traceback__)[2:]))
    return results


class RemoteRows:
    """:func:`run_rows` for another process, closures and lambdas included."""

    def __init__(self, task, noise):
        self.task, self.noise = task, noise
        self._payload = None

    def __call__(self, rows, arguments):
        results = run_rows(self.task, self.noise, rows, arguments)
        if isinstance(results, Failure):
            return results._replace(error=picklable(results.error))
        return results

    def __reduce__(self):
        if self._payload is None:
            self._payload = cloudpickle.dumps((self.task, self.noise))
        return load_rows, (Payload(self._payload),)


class Payload:
    """Bytes that are compared by their digest."""

    def __init__(self, content):
        self.content = content
        self.digest = sha256(content).digest()

    def __eq__(self, other):
        return self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@cache
def load_rows(payload):
    """Return the :class:`RemoteRows` of a payload, made once a process."""
    return RemoteRows(*pickle.loads(payload.content))


def picklable(error):
    """Return `error`, or what can be said of it if it doesn't travel between processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class LazyExecutor:
    """An executor for whichever process this object finds itself in.

    Threads and connections of a pool don't survive a fork, and pools can't be pickled: what
    travels is the function that makes one, or an executor that can be pickled.
    """

    def __init__(self, executor):
        self._made = self._make = self._process = None
        if hasattr(executor, "submit"):
            self._made, self._process = executor, os.getpid()
        else:
            self._make = executor

    def submit(self, *task):
        if self._process != os.getpid():
            self._made = None
        if self._made is None:
            if self._make is None:
                raise RuntimeError(
                    "an executor can't be used in another process than the one that it was made "
                    "in. Give a function that makes one, executor=lambda: "
                    "ProcessPoolExecutor(4), or sample with pm.sample(cores=1)."
                )
            self._made, self._process = self._make(), os.getpid()
            if not hasattr(self._made, "submit"):
                raise TypeError(
                    f"executor() returned {self._made!r} of type {type(self._made).__name__}, "
                    "which has no submit: it must return a concurrent.futures.Executor."
                )
        try:
            return self._made.submit(*task)
        except AssertionError as error:  # what multiprocessing raises
            raise RuntimeError(
                f"{error}: pm.sample's own processes can't start more. Use pm.sample(cores=1), "
                "where the replicates use the cores, or an executor of threads or on a cluster."
            ) from error

    def forget(self):
        """Make a new one next time, if it is known how."""
        if self._make is not None and self._made is not None:
            self._made.shutdown(wait=False)
            self._made = None

    def __getstate__(self):
        made = None
        if self._make is None:
            try:
                pickle.dumps(self._made)
                made = self._made
            except Exception:
                made = None
        return {"_make": self._make, "_travels": made}

    def __setstate__(self, state):
        self._make = state["_make"]
        self._made = state["_travels"]
        self._process = None if self._made is None else os.getpid()


def choose_n_replicates(estimate, start, target_variance, fewest=1) -> "tuple[int, float]":
    r"""Find the number of replicates whose log estimate has a given variance.

    Averages of few heavy-tailed estimates have a variance that falls more slowly than 1 / N, so
    the search goes on from where the last number leads.

    Parameters
    ----------
    estimate : callable
        ``estimate(n)`` returns a new log estimate of n replicates.
    start : int
        First number tried.
    target_variance : float
    fewest : int

    Returns
    -------
    n : int
    variance : float
        Of the log estimate with n replicates; inf where more than a tenth of them were -inf.
    """
    n, tried = start, {}
    for _ in range(MOST_ROUNDS):
        if n not in tried:
            tried[n] = log_variance([estimate(n) for _ in range(N_ESTIMATES)])
        excess = tried[n] / target_variance
        if 1.0 / NEAR_ENOUGH <= excess <= NEAR_ENOUGH:
            break
        factor = np.clip(excess, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR)
        following = int(np.clip(np.ceil(n * factor), fewest, MOST_REPLICATES))
        if following in tried:
            break
        n = following
    # The largest variance that is near enough, or else the nearest.
    n = min(tried, key=lambda tried_n: abs(np.log(max(tried[tried_n], 1e-6) / target_variance)))
    return n, tried[n]


def log_variance(log_estimates) -> "float | Any":
    """Variance of log estimates; inf where more than a tenth of them are -inf."""
    log_estimates = np.asarray(log_estimates)
    finite = log_estimates[np.isfinite(log_estimates)]
    if len(finite) < 0.9 * len(log_estimates):
        return np.inf
    return float(finite.var(ddof=1))
