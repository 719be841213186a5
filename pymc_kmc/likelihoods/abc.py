r"""Approximate Bayesian computation: a likelihood made of simulations near the data.

With a simulator of data sets y given parameters :math:`\theta`, summary statistics s, a distance
:math:`\rho` and a kernel K, the ABC likelihood of the observed data :math:`y^*` is

.. math:: L_\epsilon(\theta) = E\left[K(\rho(s(y), s(y^*)) / \epsilon) \mid \theta\right].

The average of K over n simulated data sets is an unbiased estimate of it, for any n, so that chains
that keep the estimate of their state have the ABC posterior as their distribution (Andrieu and
Roberts, 2009; Marjoram et al., 2003, is the case n = 1 with the uniform kernel). As epsilon goes to
0 that is the posterior given :math:`s(y^*)`.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.

Marjoram, P., Molitor, J., Plagnol, V. and Tavaré, S. (2003). Markov chain Monte Carlo without
likelihoods. *PNAS* 100, 15324-15328.
"""

import numbers
from collections.abc import Callable

import numpy as np

from pymc_kmc.likelihoods.checks import WrongResult, as_real_scalar
from pymc_kmc.likelihoods.n_replicates import TARGET_VARIANCE, log_mean_exp
from pymc_kmc.likelihoods.potential import add_potential
from pymc_kmc.likelihoods.simulations import (
    Summaries,
    as_floats,
    check_simulator,
    replicates_of,
)

__all__ = ["ABCPotential"]


def ABCPotential(  # noqa: N802
    name: str,
    simulator: Callable,
    *params,
    observed,
    epsilon: float,
    summary: Callable | None = None,
    kernel: str = "gaussian",
    distance: Callable | None = None,
    n_simulations: int | str = 10,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor=None,
    timeout: float | None = None,
    model=None,
):
    r"""Add the log of an unbiased estimate of the ABC likelihood to a model.

    The estimate is the average of kernel weights over `n_simulations` simulated data sets. The
    steps of this package sample the ABC posterior exactly, whatever `n_simulations`; a larger
    number makes them mix better. At least one of the model's variables must be sampled by a step
    of this package.

    Parameters
    ----------
    name : str
        Name of the potential.
    simulator : callable
        ``simulator(*param_values, rng=numpy.random.Generator)`` returns one data set. If it takes
        ``size=`` too, it returns so many data sets, along the first axis of an array. Everything
        random in it must come from `rng`.
    *params : TensorVariable
        What the simulator gets, in this order: the model's variables or expressions of them. They
        arrive on their natural (constrained) scale with their shapes, scalars as numbers.
    observed : array_like or object
        The observed data set: an array of the shape that is simulated, or what `summary` takes.
    epsilon : float
        Bandwidth of the kernel, in units of `distance`.
    summary : callable, optional
        ``summary(data)`` returns summary statistics, an array of one shape for all data. By default
        they are the data themselves. It gets the observed data too. With a simulator that takes
        ``size=`` it gets all data sets together, with their first axis, which it must keep; the
        observed ones as an array with a first axis of length 1.
    kernel : {"gaussian", "uniform", "epanechnikov"}
        The weight of a data set as a function of r = distance / epsilon: exp(-r^2 / 2); 1 if
        r <= 1, else 0; max(0, 1 - r^2). Constant factors, which would make densities of them, are
        left out.
    distance : callable, optional
        ``distance(simulated_summary, observed_summary)`` returns a float of at least 0, by default
        the Euclidean norm of the difference. With a simulator that takes ``size=`` it gets arrays
        with a first axis, of length 1 for the observed summary, and returns an array of distances.
    n_simulations : int or "auto"
        How many data sets an estimate takes. "auto" finds the number while tuning, such that the
        log of the estimate has variance `target_variance` where the chain is then; it is fixed
        after tuning, and reported as ``kmc_n_replicates`` in the sample statistics.
    target_variance, n_normals, correlation, executor, timeout, model
        As of :func:`PseudoMarginalPotential`; a replicate is a simulation. A simulator that takes
        ``size=`` runs in one call here: it goes without `n_normals`, `correlation` and `executor`.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it.

    Raises
    ------
    TypeError
        If `simulator` isn't callable or doesn't take ``rng=`` (``u=``); if `observed`, or what is
        simulated at the model's initial point, is no array of real numbers of the right shape, or
        is masked.
    ValueError
        If there are no `params`, `observed` has NaN or infinite values, or an argument is out of
        its range.
    EstimatorError
        If the simulator raises: at the model's initial point, or later while sampling. The message
        has the parameters and the seed. It is also raised where something simulated later on is
        no array of the right shape. NaN among simulated summaries rejects the proposal; such
        proposals are counted and reported.

    See Also
    --------
    SyntheticLikelihoodPotential : another posterior, without an epsilon.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. *Annals of Statistics* 37, 697-725.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def simulator(rate, rng, size):
    ...     return rng.exponential(1 / rate, (size, 20))
    >>> with pm.Model() as model:
    ...     rate = pm.HalfNormal("rate", 3)
    ...     _ = kmc.ABCPotential(
    ...         "likelihood",
    ...         simulator,
    ...         rate,
    ...         observed=np.full(20, 0.5),
    ...         summary=lambda data: data.mean(axis=1),
    ...         epsilon=0.1,
    ...     )
    >>> [potential.name for potential in model.potentials]
    ['likelihood']
    """
    noise = check_simulator(
        name, simulator, len(params), n_simulations, n_normals, correlation, executor, timeout
    )
    is_number = isinstance(epsilon, numbers.Real) and not isinstance(epsilon, bool)
    if not (is_number and 0 < epsilon < np.inf):
        raise ValueError(f"epsilon of {name!r} must be a positive number, got {epsilon!r}.")
    if kernel not in LOG_KERNELS:
        raise ValueError(
            f"kernel of {name!r} must be one of {', '.join(map(repr, LOG_KERNELS))}, got "
            f"{kernel!r}."
        )
    if distance is not None and not callable(distance):
        raise TypeError(
            f"distance of {name!r} must be callable, distance(simulated_summary, "
            f"observed_summary), got {distance!r} of type {type(distance).__name__}."
        )
    summaries = Summaries(name, simulator, summary, observed, noise.is_joint)
    return add_potential(
        name,
        replicates_of(Distance(summaries, distance), noise, executor, timeout),
        KernelAverage(name, kernel, float(epsilon)),
        params,
        n_replicates=n_simulations,
        target_variance=target_variance,
        what="simulator",
        model=model,
    )


class Distance:
    """Simulates data and returns their distance from the observed data."""

    def __init__(self, summaries, distance):
        self.summaries = summaries
        self.distance = distance

    def __call__(self, *arguments, **random):
        simulated, observed = self.summaries(*arguments, **random), self.summaries.observed
        is_joint = self.summaries.is_joint
        if self.distance is None:
            axes = tuple(range(int(is_joint), simulated.ndim))
            return np.sqrt(np.sum((simulated - observed) ** 2, axis=axes))
        distance = self.distance(simulated, observed)
        try:
            if is_joint:
                distance = as_floats(distance, "is")
                if distance.shape != (random["size"],):
                    raise TypeError(f"has shape {distance.shape}, not {(random['size'],)}")
            else:
                distance = as_real_scalar(distance)
        except TypeError as error:
            wanted = "an array of a float for each data set" if is_joint else "a float"
            raise WrongResult(f"is fine, but distance must return {wanted}: {error}.") from None
        if np.any(distance < 0):
            raise WrongResult(f"is fine, but distance returned {distance}, which is negative.")
        return distance


def log_gaussian(r):
    return -0.5 * r**2


def log_uniform(r):
    # The sum keeps NaN.
    return np.where(r > 1.0, -np.inf, 0.0) + 0.0 * np.minimum(r, 1.0)


def log_epanechnikov(r):
    with np.errstate(divide="ignore"):
        return np.log1p(-(np.minimum(r, 1.0) ** 2))


LOG_KERNELS = {
    "gaussian": log_gaussian,
    "uniform": log_uniform,
    "epanechnikov": log_epanechnikov,
}


class KernelAverage:
    """Log of the average kernel weight of distances; remembers the smallest of them.

    Parameters
    ----------
    name : str
        Of the potential, for messages.
    kernel : str
    epsilon : float
    """

    def __init__(self, name, kernel, epsilon):
        self.name = name
        self.kernel = kernel
        self.epsilon = epsilon
        self.forget()

    def __call__(self, distances):
        distances = np.asarray(distances)
        self.n_distances += len(distances)
        self.smallest = float(np.fmin.reduce(distances, initial=self.smallest))  # passes over NaN
        return log_mean_exp(LOG_KERNELS[self.kernel](distances / self.epsilon))

    def forget(self):
        """Begin anew: no distance has been seen."""
        self.n_distances = 0
        self.smallest = np.inf

    def explain(self):
        """Say so where epsilon is smaller than all distances; else return an empty string."""
        if self.n_distances == 0 or self.smallest <= self.epsilon:
            return ""
        facts = (
            f"The smallest of {self.n_distances} distances of data sets simulated for "
            f"{self.name!r} was {self.smallest:.3g}, and epsilon={self.epsilon:g}"
        )
        if self.kernel == "gaussian":
            return f"{facts}: if chains always stick, use a larger one or fewer summaries."
        return f"{facts}: every estimate was 0, and so is acceptance. Use a larger epsilon."
