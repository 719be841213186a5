"""The function :func:`partial_posteriors`."""

import json
from contextlib import contextmanager

import numpy as np
import xarray as xr
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_kmc.likelihoods.checks import is_positive_integer
from pymc_kmc.likelihoods.executors import check_executor
from pymc_kmc.numerics.checks import check_flag
from pymc_kmc.partial.levels import Functional, Sampler
from pymc_kmc.partial.paths import Replication, RunPath, follow, n_rows
from pymc_kmc.partial.result import PartialPosteriors
from pymc_kmc.partial.schedule import Schedule


def partial_posteriors(
    build,
    data,
    functional,
    *,
    first_size,
    alpha,
    n_replications,
    sample=None,
    executor=None,
    random_seed=None,
    progressbar=True,
):
    r"""Estimate posterior expectations given big data from runs on subsets.

    Each replication draws a level T with :math:`P(T = t) \propto 2^{-\alpha t}`, t = 0 ... t_max,
    samples the posteriors of nested subsets of ``first_size * 2**t`` data, t = 0 ... T, and returns
    :math:`\varphi^* = \sum_{t \le T} (\varphi_t - \varphi_{t-1}) / P(T \ge t)`. The mean of the
    replications is the estimate. Level t_max has all data.

    *Unbiased* refers to the subsets: the estimate has the expectation of a run on all data with the
    same settings. The bias of finite chains on all data stays, as does that of a functional that
    isn't an average of draws, such as a standard deviation.

    *alpha trades variance for cost.* The mean cost grows as :math:`N^{1 - \alpha}`. The variance is
    bounded, however many data there are, for alpha below the rate at which :math:`E|\varphi_t -
    \varphi|^2` falls with the size; that is 1 for the posterior means of most models. The
    replications give an estimate of the rate, and a finding reports too large an alpha. A chain on
    all data, where affordable, is always more exact.

    Parameters
    ----------
    build : callable
        ``build(subset)`` returns the PyMC model of a subset, which is of the kind of `data`.
        Likelihoods need not factorise.
    data : array, data frame, or tuple or dict of such
        One row a datum, in all parts.
    functional : callable, str or sequence of str
        A function of the result of `sample` (by default InferenceData, on PyMC 6 a DataTree) that
        returns a number or an array; or names of variables, for their means and sds.
    first_size : int
        Size of the first subset. Its posterior must be proper, and chains must find it.
    alpha : float
        Decay of the truncation levels.
    n_replications : int
        Number of replications.
    sample : dict or callable, optional
        Arguments of `pm.sample` in place of the defaults (2 chains of 500 draws after 500 of
        tuning, by PyMC's steps, or by `KMC` without gradients); ``"step"`` is a class or a function
        that makes the step. Or a function ``sample(model, random_seed)`` that returns what
        `pm.sample` does, or a dictionary of draws (chains, draws, ...). Evaluations are counted by
        the steps, else as one a draw; ``posterior.attrs["n_evaluations"]`` overrides both.
    executor : concurrent.futures.Executor or callable, optional
        Executor that runs the replications, or a function that makes it, such as ``lambda:
        ProcessPoolExecutor(8)``. The estimate doesn't depend on it. If a worker dies, the function
        makes a new one, and lost replications are run again.
    random_seed : int, sequence of int, numpy.random.SeedSequence or Generator, optional
        The same seed gives the same estimate; a generator draws one.
    progressbar : bool

    Returns
    -------
    PartialPosteriors
        Prints estimate, standard error, cost and findings; after Ctrl-C of the ended replications.

    Raises
    ------
    ValueError
        If an argument is out of its range, or models of subsets have different variables.
    TypeError
        If an argument is of the wrong type, or `build` returns no model.
    ExecutorError
        If the executor can't run the replications.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> y = np.random.default_rng(1).normal(3.0, 1.0, 10_000)
    >>> def build(subset):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu", 0.0, 10.0)
    ...         pm.Normal("y", mu, 1.0, observed=subset)
    ...     return model
    >>> result = kmc.partial_posteriors(
    ...     build, y, "mu", first_size=500, alpha=0.9, n_replications=4, random_seed=1,
    ...     sample={"step": kmc.AdaptiveMetropolis, "draws": 200, "tune": 200}, progressbar=False,
    ... )
    >>> result.labels
    ['mean of mu', 'sd of mu']
    >>> bool(abs(result.estimate[0] - 3.0) < 0.2)
    True
    """
    if not callable(build):
        raise TypeError(f"build must be a function, got {build!r} of type {type(build).__name__}.")
    check_flag(progressbar, "progressbar")
    if not is_positive_integer(n_replications):
        raise ValueError(
            f"n_replications must be a whole number, 1 or more, got {n_replications!r}."
        )
    check_executor(executor)
    n_data = n_rows(data)
    schedule = Schedule(n_data, first_size, alpha)
    run_path = RunPath(build, Sampler(sample), Functional(functional))
    root = _seed_sequence(random_seed)
    plans = [_plan(schedule, seed) for seed in root.spawn(n_replications)]
    with _progress(n_replications, progressbar) as advance:
        check = AlikeCheck()

        def report(runs):
            check(runs)
            advance(len(runs))

        paths = follow(plans, run_path, lambda plan: plan.subset(data, n_data), executor, report)
    attributes = {
        "n_data": n_data,
        "first_size": schedule.first_size,
        "alpha": schedule.alpha,
        "n_planned": int(n_replications),
        # Equal for equal streams: of the seeds 1, [1] and (1,), for example.
        "entropy": json.dumps(["-".join(map(str, root.generate_state(4)))]),
    }
    return PartialPosteriors(_dataset(paths, len(schedule.sizes), attributes))


def _seed_sequence(random_seed):
    if isinstance(random_seed, np.random.SeedSequence):
        # A copy: spawning changes the original, and the same seed must give the same estimate.
        return np.random.SeedSequence(random_seed.entropy, spawn_key=random_seed.spawn_key)
    if isinstance(random_seed, np.random.Generator):
        random_seed = int(random_seed.integers(2**63))
    try:
        return np.random.SeedSequence(random_seed)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "random_seed must be None, a whole number, a sequence of them, a SeedSequence or a "
            f"numpy.random.Generator, got {random_seed!r}."
        ) from error


def _plan(schedule, seed):
    """Draw a replication's level, and seeds of which none depends on that level."""
    of_level, of_permutation, of_runs = seed.spawn(3)
    level = schedule.draw(np.random.default_rng(of_level))
    seeds = [int(child.generate_state(1)[0]) for child in of_runs.spawn(level + 1)]
    return Replication(schedule.sizes[: level + 1].tolist(), of_permutation, seeds)


class AlikeCheck:
    """Refuses runs of different variables or different shapes of the functional."""

    def __init__(self):
        self.first = None

    def __call__(self, runs):
        self.first = self.first or runs[0]
        for run in runs:
            if set(run.variables) != set(self.first.variables):
                raise ValueError(
                    "build must return models of the same variables for all subsets, it returned "
                    f"one of {sorted(self.first.variables)} and one of {sorted(run.variables)}."
                )
            if run.labels != self.first.labels:
                raise ValueError(
                    "functional must have one shape for all subsets, it returned arrays of shape "
                    f"{self.first.shape} and {run.shape}. It can't be of variables whose number "
                    "grows with the data."
                )


def _dataset(paths, n_levels, attributes):
    ended = [paths[index] for index in sorted(paths)]
    first = ended[0][0]
    checked = max(len(run.spread) for runs in ended for run in runs)
    n = len(ended)
    value = np.full((n, n_levels, len(first.value)), np.nan)
    spread = np.full((n, n_levels, checked), np.nan)
    scalars = {
        name: np.full((n, n_levels), 0 if name in ("evaluations", "divergences") else np.nan)
        for name in ("evaluations", "seconds", "r_hat", "ess", "divergences")
    }
    for index, runs in enumerate(ended):
        for level, run in enumerate(runs):
            value[index, level] = run.value
            spread[index, level, : len(run.spread)] = run.spread
            for name, array in scalars.items():
                array[index, level] = getattr(run, name)
    dims = ("replication", "level")
    return xr.Dataset(
        {
            "value": ((*dims, "element"), value),
            "spread": ((*dims, "checked"), spread),
            **{name: (dims, array) for name, array in scalars.items()},
        },
        coords={"replication": np.arange(n), "element": first.labels},
        attrs=attributes | {"shape": json.dumps(first.shape)},
    )


@contextmanager
def _progress(n_replications, shown):
    """Yield a function that advances a progress bar by one replication of `n_runs` runs."""
    bar = Progress(
        TextColumn("Replications"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        disable=not shown,
    )
    task = bar.add_task("", total=n_replications, runs=0)

    def advance(n_runs):
        bar.update(task, advance=1, runs=bar.tasks[0].fields["runs"] + n_runs)

    with bar:
        yield advance
