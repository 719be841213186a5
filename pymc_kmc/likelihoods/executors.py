"""Replicates of an estimate, run in this process or on an executor.

Neither the random numbers of a replicate nor the draws depend on where it runs.
"""

import numbers
import os
import pickle
import threading
import traceback
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

import cloudpickle
import numpy as np

from pymc_kmc.likelihoods.checks import WrongResult

MOST_TASKS = 64  # tasks of an executor an estimate: each costs some 0.1 to 1 ms
MOST_PAYLOADS = 8  # unpacked tasks that a worker keeps, one a potential: they may hold large data


class ExecutorError(RuntimeError):
    """An executor failed to run the replicates of an estimate."""


class TimeLimitError(ExecutorError):
    """An executor's time was up."""


class Unavailable(ExecutorError):
    """A function could not be run, whatever its parameters: a server is down, a disk is full.

    The function raises it. It is never a rejection.
    """


class Failure(NamedTuple):
    """The exception that a replicate raised.

    `row` is the row of its noise, a slice of all rows if one call makes all replicates. An `error`
    that can't be pickled is replaced by a RuntimeError with its message. `frames` is the traceback
    in the user's code, as text: tracebacks don't travel between processes.
    """

    row: int | slice
    error: Exception | SystemExit
    frames: str

    def __reduce__(self):
        return Failure, (self.row, picklable(self.error), self.frames)

    @property
    def cause(self):
        """The exception behind an error: the user's, or an executor's."""
        if isinstance(self.error, WrongResult):
            return None
        return self.error.__cause__ if isinstance(self.error, ExecutorError) else self.error


def picklable(error):
    """Return `error`, or a RuntimeError with its message if it can't be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def check_executor(executor, timeout):
    """Raise an error unless an executor and a time limit are valid arguments of the potentials."""
    if executor is not None and not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            "executor must have the interface of concurrent.futures.Executor, or be a function "
            f"that returns one, got {executor!r} of type {type(executor).__name__}."
        )
    check_time_limit(timeout)
    if timeout is not None and executor is None:
        raise ValueError(
            f"timeout={timeout} needs executor=: a call in this process isn't stopped."
        )


def check_time_limit(timeout):
    """Raise a ValueError unless a time limit is a positive number of seconds, or None."""
    if timeout is not None and not (isinstance(timeout, numbers.Real) and 0 < timeout < np.inf):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")


class Replicates:
    """Runs a task for each row of noise, in this process or on an executor.

    ``task(*arguments, **random)``, with `random` from :meth:`Noise.inputs`, returns the result of
    one replicate; if the noise is joint, the sequence of all results. `executor` is None, an
    executor, or a function that returns one, called once in each process that needs it; joint noise
    takes none. Methods used are ``submit``, ``result`` and ``cancel`` of futures, and after an
    error ``shutdown`` of an executor that the function made. `timeout` is in seconds, for all
    replicates of an estimate.
    """

    def __init__(self, task, noise, executor=None, timeout=None):
        check_executor(executor, timeout)
        self.noise = noise
        self.timeout = timeout
        self._run_rows = RunRows(task, noise)
        self.executor = None if executor is None else LazyExecutor(executor)

    def __call__(self, rows, arguments):
        """Return the results for rows of noise (n, ...), one a row, or the first :class:`Failure`.

        Raises an ExecutorError if the executor fails or its time is up; the task's own exceptions
        are returned.
        """
        if self.executor is None:
            return self.here(rows, arguments)
        size = -(-len(rows) // MOST_TASKS)
        calls = [(rows[i : i + size], arguments) for i in range(0, len(rows), size)]
        results: list = []
        for part in self.executor.results(self._run_rows, calls, self.timeout):
            if isinstance(part, Failure):
                return part._replace(row=len(results) + part.row)
            results += part
        return results

    def each(self, calls, executor=None):
        """Return an iterator of the results of estimates, each as :meth:`__call__` returns them.

        `calls` has the rows and arguments of each. `executor`, a LazyExecutor, runs an estimate a
        task, all at once, if the replicates have no executor of their own.
        """
        if executor is None or self.executor is not None:
            return (self(*call) for call in calls)
        return executor.results(self._run_rows, calls)

    def here(self, rows, arguments):
        """Return the results of :meth:`__call__`, run in this process."""
        return self._run_rows(rows, arguments)


def cancel(futures):
    """Cancel all futures; those that already run continue."""
    for future in futures:
        future.cancel()


def explain(error):
    """Return the message of an executor's exception, with its likely cause."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenExecutor):
        message += " That is most often a crash in compiled code, or too little memory."
    return message


def kill_at_exit(executor, futures):
    """Make Python kill a pool's processes when it ends, if these futures still run.

    The standard library waits for all processes of a pool, without limit, before functions of
    :mod:`atexit` are called: hanging processes would keep Python from ending.
    """

    def kill():
        if any(future.running() for future in futures):
            processes = list((executor._processes or {}).values())
            executor.shutdown(wait=False)
            for process in processes:
                process.kill()

    # Called before the pool's own, which was registered earlier. Python has no public name for it.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(kill)


def _key(task, call):
    """Return a key that identifies a task's call."""
    return id(task), pickle.dumps(call)


class Shipped:
    """An object that travels between processes by `cloudpickle`: closures and lambdas may.

    It is packed once in this process, and unpacked once in each worker.
    """

    def __init__(self, content):
        self._content = content
        self._payload = None

    @property
    def content(self):
        if self._content is None:
            self._content = unpack(self._payload)
        return self._content

    def __getstate__(self):
        if self._payload is None:
            self._payload = Payload(cloudpickle.dumps(self._content))
        return self._payload

    def __setstate__(self, payload):
        # Unpacked at the first call: an exception here would kill a pool's worker, unexplained.
        self._content, self._payload = None, payload


def call(task, arguments, random, row=0):
    """Return a task's result, or the :class:`Failure` of a row of noise, in this process."""
    try:
        # [()] makes numbers of 0-d arrays. Copies: the task may write into its arguments.
        return task(*[value.copy()[()] for value in arguments], **random)
    except (Exception, SystemExit) as error:
        # Without the frames of this function and of the task's own wrapper. Foreign code ends
        # itself with sys.exit.
        frames = traceback.format_tb(error.__traceback__)[2:]
        return Failure(row, error, "".join(frames))


class RunOnce(Shipped):
    """Runs a task once, in the process that it is called in; see :func:`call`."""

    def __call__(self, arguments, random):
        return call(self.content, arguments, random)


class RunRows(Shipped):
    """Runs a task for rows of noise, in the process that it is called in."""

    def __init__(self, task, noise):
        super().__init__((task, noise))

    def __call__(self, rows, arguments):
        """Return the task's results for `rows`, or the first :class:`Failure`."""
        task, noise = self.content
        results = []
        calls = [(slice(None), rows)] if noise.is_joint else enumerate(rows)
        for index, row in calls:
            result = call(task, arguments, noise.inputs(row), index)
            if isinstance(result, Failure):
                return result
            results.append(result)
        return results[0] if noise.is_joint else results


class Payload:
    """Bytes that are compared by their digest, as keys of a cache."""

    def __init__(self, content):
        self.content = content
        self.digest = sha256(content).digest()

    def __eq__(self, other):
        return self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@lru_cache(maxsize=MOST_PAYLOADS)
def unpack(payload):
    """Return the content of a payload; unpacked once for all tasks of a worker."""
    return pickle.loads(payload.content)


def workers_of(executor):
    """Return the number of an executor's workers, 1 where it doesn't tell."""
    # Pools of the standard library, and those of mpi4py.
    for name in ("_max_workers", "num_workers"):
        if n := getattr(executor, name, None):
            return int(n)
    # A client of Dask, or its executor.
    client = getattr(executor, "_client", executor)
    return max(sum(client.ncores().values()), 1) if hasattr(client, "ncores") else 1


class LazyExecutor:
    """An executor that is made anew in each process that submits a task.

    Threads and connections of a pool don't survive a fork, and pools can't be pickled. The function
    that makes the executor travels instead. Given an executor in place of a function, it is for
    this process alone.
    """

    def __init__(self, executor):
        # A class of executors has `submit` too, but is a function that returns an executor.
        is_function = isinstance(executor, type) or not hasattr(executor, "submit")
        self._make = executor if is_function else None
        # By process id: locks of a parent's executor may be held for ever in a forked process.
        self._executors = {} if is_function else {os.getpid(): executor}
        # Futures of calls that have begun before their results are asked for, by task and call.
        self._begun: dict = {}

    def submit(self, *task):
        """Submit a function with its arguments; return the future."""
        executor = self._here()
        try:
            return executor.submit(*task)
        except AssertionError as error:  # what multiprocessing raises
            raise RuntimeError(
                f"{error}: pm.sample's own processes can't start more. Use pm.sample(cores=1), "
                "where the replicates use the cores, or an executor of threads or on a cluster."
            ) from error

    @property
    def n_workers(self):
        """Number of tasks that the executor runs at once, by its own account; 1 without one."""
        try:
            return workers_of(self._here())
        except Exception:  # it recurs at the first task, where it is explained
            return 1

    def begin(self, task, calls):
        """Submit calls, tuples of arguments, whose results :meth:`results` will return later.

        A failure here is not raised: it recurs there, where it is explained.
        """
        for call in calls:
            try:
                future = self.submit(task, *call)
            except Exception:
                return
            self._begun.setdefault(_key(task, call), []).append(future)

    def _taken(self, key):
        """Return the future of a call that has begun, and no longer keep it; None without one."""
        begun = self._begun.get(key)
        return begun.pop(0) if begun else None

    def abandon(self):
        """Cancel calls that have begun and were not asked for."""
        begun, self._begun = self._begun, {}
        cancel([future for futures in begun.values() for future in futures])

    def each(self, task, calls, seconds):
        """Yield the results of calls, a :class:`Failure` for one that takes longer than `seconds`.

        A call counts as begun when all before it have ended. Arguments and errors are otherwise
        those of :meth:`results`.
        """
        n_done = 0
        while n_done < len(calls):
            try:
                for result in self.results(task, calls[n_done:], seconds, each=True):
                    n_done += 1
                    yield result
            except TimeLimitError as error:
                n_done += 1
                yield Failure(0, error, "")

    def results(self, task, calls, seconds=None, each=False):
        """Yield the results of a task, in the order of its calls.

        `calls` are tuples of arguments. `seconds` is a time limit for all calls, or with `each` for
        each call.

        Raises
        ------
        ExecutorError
            If the executor fails or the time is up. Workers are then stopped as far as they can be.
        """
        futures: list = []
        deadline = np.inf
        try:
            for call in calls:
                futures.append(self._taken(_key(task, call)) or self.submit(task, *call))
            for i, future in enumerate(futures):
                if seconds is not None and (each or i == 0):
                    deadline = monotonic() + seconds
                yield future.result(None if seconds is None else max(0.0, deadline - monotonic()))
        except BaseException as error:
            if isinstance(error, GeneratorExit) and all(future.done() for future in futures):
                raise
            # After an interrupt too, and where the caller needs no more, a task having failed: they
            # leave busy workers behind, and dead ones.
            executor = self._executors.get(os.getpid())
            if not self._ends_with(executor, error):
                cancel(futures)
            self.forget()
            if not isinstance(error, Exception):
                raise
            if isinstance(error, TimeoutError) and monotonic() >= deadline:
                left = self._leave_behind(executor, futures)
                message = (
                    f"{'it' if each else 'they'} took longer than timeout={seconds:g} seconds."
                )
                raise TimeLimitError(f"{message}{left}") from error
            raise ExecutorError(explain(error)) from error

    def _here(self):
        executor = self._executors.get(os.getpid())
        if executor is None:
            executor = self._executors[os.getpid()] = self._made()
        return executor

    def _made(self):
        if self._make is None:
            raise RuntimeError(
                "an executor can't be used in another process than the one it was made in. Sample "
                "with pm.sample(cores=1), or give a function that makes an executor of threads or "
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
        """Drop this process's executor if it was made here; the next task gets a new one.

        Its worker processes are killed.
        """
        if self._make is None or os.getpid() not in self._executors:
            self.abandon()
            return
        executor = self._executors.pop(os.getpid())
        if isinstance(executor, ProcessPoolExecutor):
            self._begun = {}  # they all fail with its processes; a cancelled one would fail visibly
        self.abandon()
        # A hanging process would keep the interpreter from exiting. Python 3.14 has
        # ProcessPoolExecutor.kill_workers for this.
        processes = list((getattr(executor, "_processes", None) or {}).values())
        if hasattr(executor, "shutdown"):
            executor.shutdown(wait=False)
        for process in processes:
            process.kill()

    def _ends_with(self, executor, error):
        """Return whether a pool of processes ends with an error, with all its futures failing.

        A thread of the pool marks the futures as failed. It fails itself, visibly, at one that was
        cancelled.
        """
        is_broken = self._make is not None or isinstance(error, BrokenExecutor)
        return is_broken and isinstance(executor, ProcessPoolExecutor)

    def _leave_behind(self, executor, futures):
        """Return a message about workers that are busy beyond their time; see to their end."""
        busy = [future for future in futures if not future.done()]
        if isinstance(executor, ThreadPoolExecutor):
            return (
                " Threads can't be stopped, and Python waits for them when it ends: give the "
                "function a time limit of its own, or processes, executor=lambda: "
                "ProcessPoolExecutor(4). To end at once: os._exit(1)."
            )
        if self._make is not None:
            return ""
        if not isinstance(executor, ProcessPoolExecutor):
            return " The executor's workers may still be busy with them."
        kill_at_exit(executor, busy)
        return (
            " The pool's processes may still be busy with them; they are killed when Python ends. "
            "Give a function that makes the pool, executor=lambda: ProcessPoolExecutor(4), and "
            "they are stopped at once."
        )

    def __getstate__(self):
        return {"_make": self._make, "_executors": {}, "_begun": {}}
