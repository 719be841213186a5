"""Independent replicates of an estimate: where they run, their average, and their number.

They run in this process or on an executor, with the same draws.

N replicates cost N times as much as one and make the variance of the estimate N times smaller. If
the variance of the *log* estimate falls as 1 / N too, the plain pseudo-marginal method makes the
most of a given number of particles at a variance of 1 to 2.9, depending on how good the proposals
would be without noise (Doucet, Pitt, Deligiannidis and Kohn, 2015), or 3.3 for random walks in many
dimensions (Sherlock, Thiery, Roberts and Rosenthal, 2015).

The log variance of averages of few heavy-tailed estimates falls more slowly. If replicates are the
whole cost of an iteration, N = 1 is then often best, with the longest stays at one place (Sherlock,
Thiery and Lee, 2017). The target variance of 2 is a compromise with chains that move: 1.5 took up
to twice the best number (examples/benchmarks/README.md, "Replicates and correlated noise").

References
----------
Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of Markov
chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

Sherlock, C., Thiery, A. H. and Lee, A. (2017). Pseudo-marginal Metropolis-Hastings sampling using
averages of unbiased estimators. *Biometrika* 104, 727-734.

Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
pseudo-marginal random walk Metropolis algorithms. *Annals of Statistics* 43, 238-275.
"""

from itertools import islice, pairwise

import numpy as np

from pymc_kmc.likelihoods.executors import (
    Failure,
    LazyExecutor,
    RunRows,
    Timed,
    timed,
)

TARGET_VARIANCE = 2.0  # of the log estimate; the module's docstring says why
N_ESTIMATES = 30  # log estimates for a variance: its relative sd of .32 costs little efficiency
LEAST_FINITE = 0.9  # share of finite log estimates; with fewer, the variance counts as infinite
NEAR_ENOUGH = 1.6  # factor from the target at which the search ends: two sds of a variance
LARGEST_FACTOR = 16  # of change in a round: variances at few replicates mislead
MOST_ROUNDS = 6  # rounds of the search; three lead from 1 to MOST_REPLICATES
MOST_REPLICATES = 1000  # Python calls an estimate: beyond, a better estimator is needed
TINY = 1e-6  # variance that counts as no noise
# Acceptance rate of perfect proposals that suffices whatever the variance, which a few harmless
# outliers can make large. Gaussian noise of variance 1.4 has this rate.
ENOUGH_ACCEPTANCE = 0.4
MANY_ZEROS = 0.3  # share of zero estimates that slows a chain down
MOST_TIMES = 1000  # largest factor in advice: where more is needed, zeros are all but certain


def remedy_of_zeros(share, n_times=None):
    """Return advice that makes a share of zeros among estimates a tenth at most.

    `n_times` is the factor on the number of replicates that does so, if it is known.
    """
    if n_times is not None and np.isfinite(n_times) and n_times > 1:
        n_times = min(MOST_TIMES, int(np.ceil(n_times)))
    elif share == 1.0:
        n_times = MOST_TIMES
    else:
        # Replicates are independent: with k times as many, all are zero with probability share^k.
        n_times = min(MOST_TIMES, int(np.ceil(np.log(1.0 - LEAST_FINITE) / np.log(share))))
    return (
        f"Use about {n_times} times as many simulations or particles, n_replicates='auto' "
        "(n_simulations='auto' with a simulator), or a likelihood that is zero more rarely: for "
        "ABC a larger epsilon or the Gaussian kernel."
    )


def log_mean_exp(log_estimates):
    """Return the log of the mean of exp(log_estimates); NaN or +inf if one of them is."""
    if len(log_estimates) == 1:
        return log_estimates[0]
    log_estimates = np.asarray(log_estimates)
    largest = log_estimates.max()
    if not np.isfinite(largest):
        return float(largest)
    return float(largest + np.log(np.mean(np.exp(log_estimates - largest))))


def choose_n_replicates(log_estimates, start, target_variance, fewest=1, is_allowed=None):
    """Return the number of replicates whose log estimate has a given variance, and its variance.

    The variance of the log of an average may fall more slowly than 1 / N, that of a synthetic
    likelihood faster. Each round of the search extrapolates by 1 / N from the last variance, or
    bisects the bracket on the log scale if that leads out of it.

    ``log_estimates(n)`` generates log estimates of n replicates at one point without end, each with
    the renewed noise of the one before. Numbers are at least `fewest`, the first is `start`. The
    first number for which ``is_allowed(n)`` is false is returned untried, with the variance NaN.
    """
    n, tried = start, {}
    for _ in range(MOST_ROUNDS):
        tried[n] = log_variance(list(islice(log_estimates(n), N_ESTIMATES)))
        excess = tried[n] / target_variance
        if 1.0 / NEAR_ENOUGH <= excess <= NEAR_ENOUGH:
            break
        factor = np.clip(excess, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR)
        n = int(np.clip(np.ceil(n * factor), fewest, max(start, MOST_REPLICATES)))
        too_small = max((k for k, v in tried.items() if v > target_variance), default=0)
        too_large = min((k for k in tried if k > too_small), default=np.inf)
        if 0 < too_small < too_large < np.inf and not too_small < n < too_large:
            n = round(np.sqrt(too_small * too_large))
        if n in tried:
            break
        if is_allowed is not None and not is_allowed(n):
            return n, np.nan

    if min(tried.values()) > NEAR_ENOUGH * target_variance:
        n = max(tried)
    else:
        n = min(sorted(tried), key=lambda n: abs(np.log(max(tried[n], TINY) / target_variance)))
    return n, tried[n]


def log_variance(log_estimates):
    """Return half the mean squared difference of successive log estimates.

    This is the variance of independent estimates; of correlated ones it is the part that matters to
    acceptance. It is infinite if more than a tenth of the estimates are not finite.
    """
    log_estimates = np.asarray(log_estimates)
    finite = log_estimates[np.isfinite(log_estimates)]
    if len(finite) < LEAST_FINITE * len(log_estimates):
        return np.inf
    return float(0.5 * np.mean(np.diff(finite) ** 2))


MOST_TASKS = 64  # tasks an estimate on an executor: each costs 0.1 to 1 ms


class Replicates:
    """Runs a task for each row of noise, in this process or on an executor.

    ``task(*arguments, **random)``, with `random` from :meth:`Noise.inputs`, returns the result of
    one replicate, or the sequence of all if the noise is joint. `executor` is None, an executor, or
    a function that returns one; joint noise takes none. `timeout` is in seconds, for one estimate.
    """

    def __init__(self, task, noise, executor=None, timeout=None):
        self.noise = noise
        self.timeout = timeout
        self._run_rows = RunRows(task, noise)
        self.executor = LazyExecutor.of(executor, timeout)

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
