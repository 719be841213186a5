"""Replicates of an estimate, run in this process or on an executor, with the same draws."""

from itertools import pairwise

from pymc_kmc.likelihoods.executors import (
    Failure,
    LazyExecutor,
    Timed,
    check_executor,
    timed,
)
from pymc_kmc.likelihoods.shipped import RunRows

MOST_TASKS = 64  # tasks an estimate on an executor: each costs 0.1 to 1 ms


class Replicates:
    """Runs a task for each row of noise, in this process or on an executor.

    ``task(*arguments, **random)``, with `random` from :meth:`Noise.inputs`, returns the result of
    one replicate, or the sequence of all if the noise is joint. `executor` is None, an executor, or
    a function that returns one; joint noise takes none. `timeout` is in seconds, for one estimate.
    """

    def __init__(self, task, noise, executor=None, timeout=None):
        check_executor(executor, timeout)
        self.noise = noise
        self.timeout = timeout
        self._run_rows = RunRows(task, noise)
        self.executor = LazyExecutor.of(executor)

    def __call__(self, rows, arguments):
        """Return the results for rows of noise (n, ...), one a row, or a :class:`Failure`."""
        return next(self.each([(rows, arguments)])).result

    def each(self, calls, executor=None, arrived=None):
        """Return an iterator of the results of estimates, :class:`Timed`, until a :class:`Failure`.

        `calls` are pairs of rows and arguments. All run at once on the replicates' own executor or,
        a call a task, on `executor`, a LazyExecutor; without either they run here in turn.
        `arrived` is that of :meth:`LazyExecutor.results`. A time limit begins when all estimates
        before have ended.
        """
        if self.executor is not None:
            return self._on_own(calls)
        if executor is not None:
            return executor.results(self._run_rows, calls, arrived=arrived)
        return (timed(self.here, *call) for call in calls)

    def _on_own(self, calls):
        """Yield the results of estimates whose replicates are all submitted at once."""
        tasks, firsts = [], []
        for rows, arguments in calls:
            firsts.append(len(tasks))
            size = -(-len(rows) // MOST_TASKS)
            tasks += [(rows[i : i + size], arguments) for i in range(0, len(rows), size)]
        parts = self.executor.results(self._run_rows, tasks, self.timeout, firsts=firsts)
        for first, end in pairwise([*firsts, len(tasks)]):
            yield (found := self._joined(next(parts) for _ in range(first, end)))
            if isinstance(found.result, Failure):
                return

    @staticmethod
    def _joined(parts):
        results: list = []
        total = 0.0
        for part, seconds in parts:
            total += seconds
            if isinstance(part, Failure):
                return Timed(part._replace(row=len(results) + part.row), total)
            results += part
        return Timed(results, total)

    def here(self, rows, arguments):
        """Return results as :meth:`__call__` does, run in this process."""
        return self._run_rows(rows, arguments)
