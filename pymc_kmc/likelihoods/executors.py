"""Where the replicates of an estimate run: in this process, or on an executor.

Which random numbers each of them gets doesn't depend on where it runs, so that the draws are the
same.
"""

import numbers
import os
import pickle
import traceback
from concurrent.futures import BrokenExecutor
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

import cloudpickle
import numpy as np

from pymc_kmc.likelihoods.noise import JointSeeds

__all__ = ["ExecutorError", "Failure", "JointReplicates", "LazyExecutor", "Replicates"]

# An estimate is at most so many tasks of an executor: a task costs some 0.1 to 1 ms.
MOST_TASKS = 64
# The tasks of so many potentials stay unpacked in a worker.
MOST_PAYLOADS = 8


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

    def __reduce__(self):
        return Failure, (self.index, picklable(self.error), self.frames)


def picklable(error):
    """Return `error`, or what can be said of it if it doesn't travel between processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Replicates:
    """Runs a task once for every row of noise, here or on an executor.

    Parameters
    ----------
    task : callable
        ``task(*arguments, **random)`` with `random` from the noise's ``inputs``.
    noise : Seeds or Normals
    executor : concurrent.futures.Executor or callable, optional
        Or what returns one: it is then called once in each process that needs it. Of an executor
        ``submit`` is used, and of its futures ``result`` and ``cancel``; one that was made here
        is dropped by ``shutdown`` after an error.
    timeout : float, optional
        Seconds that the executor has for all of them.
    """

    def __init__(self, task, noise, executor=None, timeout=None):
        if executor is not None and not (hasattr(executor, "submit") or callable(executor)):
            raise TypeError(
                "executor must have the interface of concurrent.futures.Executor, or be a function "
                f"that returns one, got {executor!r} of type {type(executor).__name__}."
            )
        if timeout is not None:
            if not (isinstance(timeout, numbers.Real) and 0 < timeout < np.inf):
                raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")
            if executor is None:
                raise ValueError(
                    f"timeout={timeout} needs executor=: what runs in this process isn't stopped."
                )
        self.noise = noise
        self.timeout = timeout
        self._run_rows = RunRows(task, noise)
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
        futures, results, deadline = [], [], np.inf
        try:
            for first in range(0, len(rows), size):
                part = rows[first : first + size]
                futures.append(self._executor.submit(self._run_rows, part, arguments))
            if self.timeout is not None:
                deadline = monotonic() + self.timeout
            for future in futures:
                seconds = None if deadline == np.inf else max(0.0, deadline - monotonic())
                part = future.result(seconds)
                if isinstance(part, Failure):
                    return part._replace(index=len(results) + part.index)
                results += part
        except BaseException as error:
            # An interrupt too leaves busy workers, and kills those that got it.
            cancel(futures)
            self._executor.forget()
            if not isinstance(error, Exception):
                raise
            if isinstance(error, TimeoutError) and monotonic() >= deadline:
                raise ExecutorError(self._executor.explain_timeout(self.timeout)) from error
            raise ExecutorError(explain(error)) from error
        finally:
            cancel(futures)
        return results

    def here(self, rows, arguments):
        """Do it in this process, one row after the other."""
        return self._run_rows(rows, arguments)


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
        results = self._run_rows([rows], arguments)
        if isinstance(results, Failure):
            return results._replace(index=slice(None))
        return results[0]


def cancel(futures):
    """Take back what has not begun."""
    for future in futures:
        future.cancel()


def explain(error):
    """Return what an executor's exception means."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenExecutor):
        message += " That is most often a crash in compiled code, or too little memory."
    return message


class RunRows:
    """Runs a task for rows of noise. It travels to other processes with closures and lambdas.

    Parameters
    ----------
    task, noise
        As of :class:`Replicates`.
    """

    def __init__(self, task, noise):
        self._content = task, noise
        self._payload = None

    def __call__(self, rows, arguments):
        """Return the task's results, or a :class:`Failure`."""
        if self._content is None:
            self._content = unpack(self._payload)
        task, noise = self._content
        results = []
        for index, row in enumerate(rows):
            # [()] makes numbers of 0-d arrays; copies protect the chain from a task that writes.
            values = [value.copy()[()] for value in arguments]
            try:
                results.append(task(*values, **noise.inputs(row)))
            except Exception as error:
                # Without the frames of this function and of the task's own wrapper.
                frames = traceback.format_tb(error.__traceback__)[2:]
                return Failure(index, error, "".join(frames))
        return results

    def __getstate__(self):
        if self._payload is None:
            self._payload = Payload(cloudpickle.dumps(self._content))
        return self._payload

    def __setstate__(self, payload):
        # Unpacked when it is called: an exception here would kill a pool's worker, unexplained.
        self._content, self._payload = None, payload


class Payload:
    """Bytes that are compared by their digest."""

    def __init__(self, content):
        self.content = content
        self.digest = sha256(content).digest()

    def __eq__(self, other):
        return self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@lru_cache(maxsize=MOST_PAYLOADS)
def unpack(payload):
    """Return the content of a payload: once for all tasks that a worker gets of it."""
    return pickle.loads(payload.content)


class LazyExecutor:
    """An executor for whichever process this object finds itself in.

    Threads and connections of a pool don't survive a fork, and pools can't be pickled: what
    travels is the function that makes one.

    Parameters
    ----------
    executor : concurrent.futures.Executor or callable
    """

    def __init__(self, executor):
        # A class of executors has submit too, and makes one.
        is_function = isinstance(executor, type) or not hasattr(executor, "submit")
        self._make = executor if is_function else None
        # By process: a forked one must not touch its parent's, whose locks may be held for ever.
        self._executors = {} if is_function else {os.getpid(): executor}

    def submit(self, *task):
        """Submit a task, and return its future."""
        executor = self._executors.get(os.getpid())
        if executor is None:
            executor = self._executors[os.getpid()] = self._made()
        try:
            return executor.submit(*task)
        except AssertionError as error:  # what multiprocessing raises
            raise RuntimeError(
                f"{error}: pm.sample's own processes can't start more. Use pm.sample(cores=1), "
                "where the replicates use the cores, or an executor of threads or on a cluster."
            ) from error

    def _made(self):
        if self._make is None:
            raise RuntimeError(
                "an executor can't be used in another process than the one that it was made in. "
                "Sample with pm.sample(cores=1), or give a function that makes one of threads or "
                "on a cluster: executor=lambda: ThreadPoolExecutor(4)."
            )
        executor = self._make()
        if not hasattr(executor, "submit"):
            raise TypeError(
                f"executor() returned {executor!r} of type {type(executor).__name__}, which has "
                "no submit: it must return a concurrent.futures.Executor."
            )
        return executor

    def forget(self):
        """Drop an executor that was made here, and its workers: the next task gets a new one."""
        if self._make is None or os.getpid() not in self._executors:
            return
        executor = self._executors.pop(os.getpid())
        # A process that hangs would keep the interpreter from exiting. (Python 3.14 has
        # ProcessPoolExecutor.kill_workers for it.)
        processes = list((getattr(executor, "_processes", None) or {}).values())
        if hasattr(executor, "shutdown"):
            executor.shutdown(wait=False)
        for process in processes:
            process.kill()

    def explain_timeout(self, seconds):
        """Say what is known when the time is up."""
        message = f"they took longer than timeout={seconds:g} seconds."
        if self._make is None:
            message += (
                " The executor's workers may still be busy with them. Give a function that makes "
                "the executor, and worker processes are stopped."
            )
        return message

    def __getstate__(self):
        return {"_make": self._make, "_executors": {}}
