"""Calls of a user's functions on an executor: tasks, results, failures, time limits, dying workers.

Tasks travel to the workers, which unpack each of them once.
"""

import numbers
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from time import monotonic, perf_counter
from typing import NamedTuple

import cloudpickle
import numpy as np

from pymc_kmc.likelihoods.checks import WrongResult

# Deaths of workers after which calls run one at a time. One death may be an accident; a second
# points to a call, or to a lack of memory.
MOST_DEATHS = 2


class ExecutorError(RuntimeError):
    """An executor failed to run calls."""


class TimeLimitError(ExecutorError):
    """A call or an estimate took longer than its time limit."""


class WorkerDied(ExecutorError):
    """A call ended its worker process repeatedly."""


class Unavailable(ExecutorError):
    """A function can't run, whatever its parameters (a server is down): never a rejection."""


class Failure(NamedTuple):
    """The exception that a call raised.

    `row` is the row of a replicate's noise, a slice of all rows if one call makes all replicates.
    `frames` is the traceback in the user's code as text, since tracebacks don't pickle. An `error`
    that doesn't pickle travels as a RuntimeError with its message.
    """

    row: int | slice
    error: Exception | SystemExit
    frames: str

    def __reduce__(self):
        return Failure, (self.row, picklable(self.error), self.frames)

    @property
    def cause(self):
        """The original exception, None for a wrong result."""
        if isinstance(self.error, WrongResult):
            return None
        return self.error.__cause__ if isinstance(self.error, ExecutorError) else self.error


class Timed(NamedTuple):
    """A call's result, and the seconds that it took in its process."""

    result: object
    seconds: float


def timed(task, *call, serial=0):
    """Return a :class:`Timed` result; `serial` tells equal calls apart, which Dask would merge."""
    begin = perf_counter()
    return Timed(task(*call), perf_counter() - begin)


def picklable(error):
    """Return `error`, or a RuntimeError with its message if it doesn't pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def check_executor(executor, timeout=None):
    """Raise an error unless `executor` and `timeout` are valid arguments."""
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
    if timeout is not None and not (isinstance(timeout, numbers.Real) and 0 < timeout < np.inf):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")


@contextmanager
def noticed_interrupts(is_postponed=False):
    """Yield a list that isn't empty after Ctrl-C; the signal's own handler is called too.

    If `is_postponed` it is called at the end of the block. The main thread alone is interrupted.
    """
    seen = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield seen  # not here, or the signal is ignored, or its handler is none of Python's
        return

    def handler(*arguments):
        seen.append(arguments)
        if not is_postponed:
            before(*arguments)

    signal.signal(signal.SIGINT, handler)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
        if is_postponed and seen:
            before(*seen[0])


def cancel(futures):
    """Cancel futures; running ones continue."""
    for future in futures:
        future.cancel()


def explain(error, is_replaced=True):
    """Return the message of an executor's exception, with its likely cause and a remedy."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenExecutor):
        message += " That is most often a crash in compiled code, or too little memory."
        if not is_replaced:
            message += (
                " Give a function that makes the executor, executor=lambda: ProcessPoolExecutor(4):"
                " it is then made anew, and what was lost is evaluated again."
            )
    if "shutdown" in message:
        message += " Leave the executor open until all is drawn, or give a function that makes one."
    if "pickle" in message:
        message += (
            " What the function refers to is sent to the workers: let it open files, connections "
            "and locks itself, or use an executor of threads."
        )
    return message


def kill_at_exit(executor, futures):
    """Kill a pool's processes when Python ends, if these futures still run.

    The standard library waits for them without limit, before it calls functions of :mod:`atexit`.
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


def has_result(future):
    return future.done() and not future.cancelled() and future.exception() is None


def _tell(arrived, call, future):
    """Call `arrived` with a future's result, if any; `is_kept` turns from False to True."""
    if has_result(future):
        future.is_kept = False
        arrived(call, *future.result())
        future.is_kept = True


def _task_key(task, call):
    return id(task), pickle.dumps(call)


class LazyExecutor:
    """An executor that each process makes for itself at its first task.

    Pools don't pickle, and their threads and connections don't survive a fork: the function that
    makes the executor travels. An executor given in place of a function serves this process alone.
    """

    @classmethod
    def of(cls, executor, timeout=None):
        """Return the LazyExecutor of an executor or function; a LazyExecutor or None as it is.

        Raises an error unless it and `timeout`, in seconds, are valid arguments.
        """
        check_executor(executor, timeout)
        return executor if isinstance(executor, cls | None) else cls(executor)

    def __init__(self, executor):
        # A class of executors has `submit` too, but is a function that returns an executor.
        is_function = isinstance(executor, type) or not hasattr(executor, "submit")
        self._make = executor if is_function else None
        # By process id: locks of a parent's executor may be held for ever in a forked process.
        self._executors = {} if is_function else {os.getpid(): executor}
        # Futures of calls that have begun before their results are asked for, by task and call.
        self._begun: dict = {}
        self._n_submitted = 0

    def submit(self, *task):
        executor = self._here()
        try:
            return executor.submit(*task)
        except AssertionError as error:  # what multiprocessing raises
            raise RuntimeError(
                f"{error}: pm.sample's own processes can't start more. Use pm.sample(cores=1), "
                "where the replicates use the cores, or an executor of threads or on a cluster."
            ) from error

    def _here(self):
        executor = self._executors.get(os.getpid())
        if executor is None:
            executor = self._executors[os.getpid()] = self._made()
        return executor

    @property
    def n_workers(self):
        """Number of workers now, None if unknown; a ValueError if there are none."""
        if (found := self._n_workers) == 0:
            raise ValueError("executor has no workers: pass n_parallel=, or wait for its workers.")
        return found

    @property
    def _n_workers(self):
        executor = self._here()
        executor = getattr(executor, "_client", executor)  # of Dask's client.get_executor()
        for name in ("num_workers", "_max_workers"):  # of mpi4py, and of concurrent.futures
            if isinstance(found := getattr(executor, name, None), numbers.Integral):
                return int(found)
        return sum(executor.ncores().values()) if hasattr(executor, "ncores") else None  # Dask

    def begin(self, task, calls, arrived=None):
        """Submit calls, tuples of arguments, whose results :meth:`results` returns later.

        `arrived` is that of :meth:`results`, which meets, and explains, errors of submitting again.
        """
        for call in calls:
            try:
                future = self._submitted(task, call, arrived)
            except Exception:
                return
            self._begun.setdefault(_task_key(task, call), []).append(future)

    def _submitted(self, task, call, arrived):
        self._n_submitted += 1
        future = self.submit(partial(timed, serial=self._n_submitted), task, *call)
        if arrived is not None:
            future.add_done_callback(partial(_tell, arrived, call))
        return future

    def _taken(self, key):
        """Return and forget the future of a begun call, None without one."""
        begun = self._begun.get(key)
        return begun.pop(0) if begun else None

    def abandon(self, most=0):
        """Cancel begun calls that nothing asked for, if more than `most` of them aren't stored.

        As many as there are workers may already run: these end, and a store keeps their results.
        """
        for key, futures in list(self._begun.items()):
            self._begun[key] = [each for each in futures if not getattr(each, "is_kept", False)]
            if not self._begun[key]:
                del self._begun[key]
        futures = [future for some in self._begun.values() for future in some]
        if sum(not hasattr(future, "is_kept") for future in futures) > most:
            self._begun = {}
            waiting = [future for future in futures if not future.done()]
            cancel(waiting[self._n_workers or 0 :] if waiting else [])

    def each(self, task, calls, seconds, arrived=None):
        """Yield the results of calls, a :class:`Failure` if one is too slow or ends its worker.

        Each call has `seconds`, from the end of all before it. Otherwise like :meth:`results`.
        """
        n_done = 0
        while n_done < len(calls):
            try:
                for result in self.results(task, calls[n_done:], seconds, True, arrived):
                    n_done += 1
                    yield result
            except (TimeLimitError, WorkerDied) as error:
                n_done += 1
                yield Timed(Failure(0, error, ""), seconds or 0.0)

    def results(self, task, calls, seconds=None, each=False, arrived=None, firsts=(0,)):
        """Yield the results of a task, :class:`Timed`, in the order of its calls' arguments.

        The time limit `seconds` holds for each call with `each`, else for the calls from one of the
        indices `firsts` to the next. ``arrived(call, result, seconds)`` is called as soon as a
        result is there, in any thread and order.

        If a worker dies and a function makes the executor, it is made anew and lost calls are
        repeated: all at once, after `MOST_DEATHS` deaths one at a time. A call that then ends its
        worker twice is to blame. Raises an ExecutorError if the executor fails, the time is up, or
        a call ends its worker; workers are then stopped as far as they can be.
        """
        n_done = n_deaths = 0
        while n_done < len(calls):
            some = calls[n_done:] if n_deaths < MOST_DEATHS else calls[n_done : n_done + 1]
            # A time limit begins anew with what is made again.
            begins = {0, *(first - n_done for first in firsts)}
            try:
                for result in self._results(task, some, seconds, each, arrived, begins):
                    n_done, n_deaths = n_done + 1, min(n_deaths, MOST_DEATHS)
                    yield result
            except ExecutorError as error:
                if not self.is_replaced(error.__cause__):
                    raise
                self._try_out(error)
                n_deaths += 1
                if n_deaths == MOST_DEATHS + 2:
                    raise WorkerDied(f"{error} This call did so twice with none beside it.") from (
                        error.__cause__
                    )

    def _try_out(self, error):
        """Raise `error` if the new executor is broken as well."""
        try:
            self.submit(os.getpid).result()
        except Exception:
            self.forget()
            raise error from error.__cause__

    def _results(self, task, calls, seconds, each, arrived, firsts):
        """Yield :meth:`results`, without another attempt."""
        waiting: deque = deque()
        deadline = np.inf
        try:
            for call in calls:
                key = _task_key(task, call)
                waiting.append((key, self._taken(key) or self._submitted(task, call, arrived)))
            for i in range(len(calls)):
                if seconds is not None and (each or i in firsts):
                    deadline = monotonic() + seconds
                _, future = waiting[0]
                result = future.result(
                    None if seconds is None else max(0.0, deadline - monotonic())
                )
                waiting.popleft()
                yield result
        except BaseException as error:
            futures = [future for _, future in waiting]
            if isinstance(error, GeneratorExit) and all(future.done() for future in futures):
                raise
            # After an interrupt too, and where the caller needs no more, a task having failed: they
            # leave busy workers behind, and dead ones.
            executor = self._executors.get(os.getpid())
            if not self._ends_with(executor, error):
                cancel(futures)
            if self.is_replaced(error):
                self._keep_results(waiting)
                self._end()
            else:
                self.forget()
            if not isinstance(error, Exception):
                raise
            if isinstance(error, TimeoutError) and monotonic() >= deadline:
                left = self._leave_behind(executor, futures)
                message = (
                    f"{'it' if each else 'they'} took longer than timeout={seconds:g} seconds."
                )
                raise TimeLimitError(f"{message}{left}") from error
            raise ExecutorError(explain(error, self.is_made)) from error

    @property
    def is_made(self):
        return self._make is not None

    def is_replaced(self, error):
        """Return whether an error is a broken executor's, which is then made anew."""
        return self.is_made and isinstance(error, BrokenExecutor)

    def _keep_results(self, waiting):
        """Keep the futures that have results, of pairs of key and future, for a later attempt."""
        for key, future in waiting:
            self._begun.setdefault(key, []).append(future)
        for futures in self._begun.values():
            futures[:] = [future for future in futures if has_result(future)]

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
        """Drop this process's executor if it was made here, and kill its worker processes."""
        executor = self._executors.get(os.getpid())
        if self._make is not None and isinstance(executor, ProcessPoolExecutor):
            self._begun = {}  # they all fail with its processes; a cancelled one would fail visibly
        self.abandon()
        self._end()

    def _end(self):
        if self._make is None or os.getpid() not in self._executors:
            return
        executor = self._executors.pop(os.getpid())
        # A hanging process would keep the interpreter from exiting. Python 3.14 has
        # ProcessPoolExecutor.kill_workers for this.
        processes = list((getattr(executor, "_processes", None) or {}).values())
        if hasattr(executor, "shutdown"):
            executor.shutdown(wait=False)
        for process in processes:
            process.kill()

    def _ends_with(self, executor, error):
        """Return whether an error ends a process pool, whose thread fails at cancelled futures."""
        is_broken = self._make is not None or isinstance(error, BrokenExecutor)
        return is_broken and isinstance(executor, ProcessPoolExecutor)

    def _leave_behind(self, executor, futures):
        """Return a message about workers still busy after a time limit; kill a pool's at exit."""
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
        return {"_make": self._make, "_executors": {}, "_begun": {}, "_n_submitted": 0}


MOST_PAYLOADS = 8  # unpacked tasks that a worker keeps, one a potential: some hold large data


class Shipped:
    """An object, closures too, that `cloudpickle` packs once and each worker unpacks once."""

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
    """Return a task's result, or the :class:`Failure` of a row of noise."""
    try:
        # [()] makes numbers of 0-d arrays. Copies: the task may write into its arguments.
        return task(*[value.copy()[()] for value in arguments], **random)
    except (Exception, SystemExit) as error:
        # Without the frames of this function and of the task's own wrapper. Foreign code ends
        # itself with sys.exit.
        frames = traceback.format_tb(error.__traceback__)[2:]
        return Failure(row, error, "".join(frames))


class RunOnce(Shipped):
    """Runs a task once; see :func:`call`."""

    def __call__(self, arguments, random):
        return call(self.content, arguments, random)


class RunRows(Shipped):
    """Runs a task for rows of noise."""

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
    """Bytes that a cache compares by their digest."""

    def __init__(self, content):
        self.content = content
        self.digest = sha256(content).digest()

    def __eq__(self, other):
        return self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@lru_cache(maxsize=MOST_PAYLOADS)
def unpack(payload):
    """Return the content of a payload, unpacked once for all tasks of a worker."""
    return pickle.loads(payload.content)
