"""Chains by `pm.sample` and by hand, their statistics, and targets without a step."""

import numpy as np
import pymc as pm

import pymc_kmc as kmc
from pymc_kmc.model.target import TargetDensity


def sample(step, draws=100, tune=50, **kwargs):
    """Draws of `pm.sample` without its messages, by default of one chain in this process."""
    options = {"chains": 1, "cores": 1, "random_seed": 1} | kwargs
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    return pm.sample(step=step, draws=draws, tune=tune, **quiet, **options)


def run(step, point, n):
    """Points and statistics of n iterations from a point, in two lists."""
    points, statistics = [], []
    for _ in range(n):
        point, (of_step,) = step.step(point)
        points.append(point)
        statistics.append(of_step)
    return points, statistics


def metropolis_chain(model, n=150, seed=3):
    """Values of x, shape (n,), and statistics of adaptive Metropolis that is still tuning."""
    step = kmc.AdaptiveMetropolis(model=model)
    step.set_rng(np.random.default_rng(seed))
    points, statistics = run(step, model.initial_point(), n)
    return column(points, "x"), statistics


def column(records, name):
    """One entry of each dictionary, as an array."""
    return np.array([record[name] for record in records])


def warnings_of(statistics):
    """Messages of the warnings among statistics."""
    return [s["warning"].message for s in statistics if s["warning"] is not None]


def target_of(model, names=None, kind=TargetDensity, **options):
    """The target of the variables with these names, by default all, at a chain's start."""
    variables = [v for v in model.value_vars if names is None or v.name in names]
    target = kind(variables, model, model.initial_point(), **options)
    target.start_chain(np.random.default_rng(0))
    return target
