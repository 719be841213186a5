r"""Approximate Bayesian computation: a likelihood made of simulations near the data.

With a simulator of data sets y given parameters :math:`\theta`, summary statistics s, a distance
:math:`\rho` and a kernel K, the ABC likelihood of the observed data :math:`y^*` is

.. math:: L_\epsilon(\theta) = E\left[K(\rho(s(y), s(y^*)) / \epsilon) \mid \theta\right].

A simulation fails if its distance is NaN or infinite; its K is 0. If simulations succeed with
probability :math:`p(\theta)`,

.. math:: L_\epsilon(\theta) = p(\theta)\, E\left[K(\rho(s(y), s(y^*)) / \epsilon) \mid \theta,
    \text{success}\right].

The average of K over n simulated data sets is an unbiased estimate of it, for any n. Chains that
keep the estimate of their state therefore have the ABC posterior as their distribution (Andrieu and
Roberts, 2009; Marjoram et al., 2003, is the case n = 1 with the uniform kernel). As epsilon goes to
0 the ABC posterior becomes the posterior given :math:`s(y^*)`.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import pymc as pm
from pytensor.tensor import TensorVariable

from pymc_kmc.likelihoods.checks import WrongResult, as_real_scalar, check_model
from pymc_kmc.likelihoods.extras import Extras, ExtrasLike, joined
from pymc_kmc.likelihoods.noisy_log_likelihood import add_potential
from pymc_kmc.likelihoods.replicates import TARGET_VARIANCE, Replicates, log_mean_exp
from pymc_kmc.likelihoods.simulations import (
    Combination,
    Summaries,
    as_floats,
    noise_of_simulator,
)
from pymc_kmc.likelihoods.store import StoreLike
from pymc_kmc.numerics.checks import as_number, check_choice


def ABCPotential(  # noqa: N802
    name: str,
    simulator: Callable,
    *params: TensorVariable,
    observed: Any,
    epsilon: float,
    summary: Callable | None = None,
    kernel: Literal["gaussian", "uniform", "epanechnikov"] = "gaussian",
    distance: Callable | None = None,
    n_simulations: int | Literal["auto"] = 10,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    store: StoreLike | None = None,
    extras: ExtrasLike | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add the log of an unbiased estimate of the ABC likelihood to a model.

    The estimate is the average of kernel weights over `n_simulations` simulated data sets. The
    steps of this package sample the ABC posterior exactly, whatever `n_simulations`; a larger
    number makes them mix better. A step of this package must sample at least one variable.

    A simulation fails if its distance from the observed data is NaN or infinite (with the default
    distance: if a summary statistic is). Return NaN where a simulation fails. Its weight is 0, so
    that the ABC likelihood has the probability of success as a factor. ``kmc_failed_share`` in the
    sample statistics is the share that failed; a chain warns if it is notable.

    Parameters
    ----------
    name : str
        Name of the potential.
    simulator : callable
        ``simulator(*param_values, rng=numpy.random.Generator)`` returns one data set. If it takes
        ``size=`` too, it returns an array of `size` data sets along the first axis: all those of an
        estimate. Everything random in it must come from `rng`.
    *params : TensorVariable
        Arguments of the simulator, in order: the model's variables or expressions of them. It gets
        values of their shapes on the natural (constrained) scale, scalars as numbers.
    observed : array_like or object
        The observed data set: an array shaped like a simulated one, or the argument of `summary`.
    epsilon : float
        Bandwidth of the kernel, in units of `distance`.
    summary : callable, optional
        ``summary(data)`` returns an array of summary statistics, of one shape for all data. By
        default the data are their own summary. With ``size=`` it gets all data sets together and
        must keep their first axis; the observed data then have a first axis of length 1.
    kernel : {"gaussian", "uniform", "epanechnikov"}
        Weight of a data set as a function of r = distance / epsilon: exp(-r^2 / 2); 1 if r <= 1,
        else 0; max(0, 1 - r^2). The constant factors of densities are left out.
    distance : callable, optional
        ``distance(simulated_summary, observed_summary)`` returns a float of at least 0, by default
        the Euclidean norm of the difference; NaN or infinity for a failed simulation. With
        ``size=`` it gets arrays with a first axis, of length 1 for the observed summary, and
        returns an array of distances.
    n_simulations : int or "auto"
        Number of data sets an estimate. "auto" finds the number, up to 1000, while tuning, such
        that the log estimate has variance `target_variance` at the chain's state. The sample
        statistics have it as ``kmc_n_replicates``.
    target_variance : float
        Variance of the log estimate for "auto", by default 2.
    n_normals : int, optional
        Number of standard normal numbers a data set. The simulator gets them as a vector ``u=``
        instead of `rng`; a proposal's are correlated with the chain's. Not with ``size=``.
    correlation : float, optional
        Correlation of a proposal's `u` with the chain's, in [0, 1), by default .95. Without
        `n_normals`, share of seeds that a proposal keeps, by default 0. Not with ``size=``.
    executor : concurrent.futures.Executor or callable, optional
        Executor that runs the simulations, or a function that returns one; see
        :func:`pymc_kmc.PseudoMarginalPotential`. Not with ``size=``.
    timeout : float, optional
        Seconds that the executor has for one estimate; then an error is raised.
    store : str, os.PathLike or EvaluationStore, optional
        File that keeps the distances of every estimate, or an :class:`EvaluationStore` for several
        functions. Stored distances aren't computed again; `epsilon` and `kernel` may change.
    extras : dict of str to int, str or tuple, optional
        Shapes, by name, of arrays that the simulator returns beside its data and that the accepted
        evaluation keeps: lengths or names of the model's dims, e.g. ``{"path": (100,)}``. The
        simulator then returns ``data, {"path": array}``, with ``size=`` with a first axis;
        :func:`extras` finds them in the result. Of several data sets one's are kept, with
        probability proportional to its weight: extras that are the data are posterior predictive
        draws given ABC's acceptance.
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it. Nothing else in the log density may depend
        on it: making a step then raises a ValueError.

    Raises
    ------
    TypeError
        If `simulator` isn't callable or doesn't take ``rng=`` (``u=`` with `n_normals`), or if
        observed or first simulated data aren't a real, unmasked array of the right shape.
    ValueError
        If there are no `params`, `observed` is empty or has NaN or infinite values, `summary`
        raises, an argument is out of its range, or the store has another function or data so named.
    OSError
        If the store can't be used.
    EstimatorError
        If the simulator raises, or later data aren't an array of the right shape. The message has
        the parameters and the seed.

    Warns
    -----
    UserWarning
        If ten data sets at the model's initial point are equal: the simulator seems constant.

    See Also
    --------
    SyntheticLikelihoodPotential : A Gaussian density of the summaries, without an epsilon.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. *Annals of Statistics* 37, 697-725.

    Marjoram, P., Molitor, J., Plagnol, V. and Tavaré, S. (2003). Markov chain Monte Carlo without
    likelihoods. *PNAS* 100, 15324-15328.

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
    n_params = len(params)
    noise = noise_of_simulator(
        name, simulator, n_params, n_simulations, n_normals, correlation, executor, timeout
    )
    if not 0 < as_number(epsilon) < np.inf:
        raise ValueError(f"epsilon of {name!r} must be a positive number, got {epsilon!r}.")
    check_choice(kernel, "kernel", tuple(LOG_KERNELS))
    if distance is not None and not callable(distance):
        raise TypeError(
            f"distance of {name!r} must be callable, distance(simulated_summary, "
            f"observed_summary), got {distance!r} of type {type(distance).__name__}."
        )
    model = check_model(model)
    kept = Extras.of(f"simulator of {name!r}", extras, model)
    summaries = Summaries(name, simulator, summary, observed, noise.is_joint, kept)
    replicates = Replicates(Distance(summaries, distance), noise, executor, timeout)
    average = KernelAverage(name, kernel, float(epsilon))
    options = n_simulations, target_variance, model, summaries
    data = blake2b(summaries.observed.tobytes(), digest_size=4).hexdigest()
    results = f"distances from data {data}"
    return add_potential(
        name, replicates, average, params, *options, store=store, results=results, extras=kept
    )


class Distance:
    """Simulates data for a replicate; returns their distance, by default the Euclidean norm."""

    def __init__(self, summaries, distance):
        self.summaries = summaries
        self.distance = distance

    def __call__(self, *arguments, **random):
        simulated, extras = self.summaries.with_extras(*arguments, **random)
        return joined(self.between(simulated), extras)

    def between(self, simulated):
        """Return the distance of a summary from the observed one, or an array for many."""
        observed, is_joint = self.summaries.observed, self.summaries.is_joint
        if self.distance is None:
            axes = tuple(range(int(is_joint), simulated.ndim))
            return np.sqrt(np.sum((simulated - observed) ** 2, axis=axes))
        distance = self.distance(simulated, observed)
        try:
            if is_joint:
                distance = as_floats(distance, "is")
                if distance.shape != simulated.shape[:1]:
                    raise TypeError(f"has shape {distance.shape}, not {simulated.shape[:1]}")
            else:
                distance = as_real_scalar(distance)
        except TypeError as error:
            wanted = "an array of a float for each data set" if is_joint else "a float"
            raise WrongResult(f"is fine, but distance must return {wanted}: {error}.") from None
        if np.any(distance < 0):
            raise WrongResult(f"is fine, but distance returned {distance}, which is negative.")
        return distance


def log_epanechnikov(r):
    with np.errstate(divide="ignore"):
        return np.log1p(-(np.minimum(r, 1.0) ** 2))


LOG_KERNELS = {
    "gaussian": lambda r: -0.5 * r**2,
    "uniform": lambda r: np.where(r > 1.0, -np.inf, 0.0),
    "epanechnikov": log_epanechnikov,
}


class KernelAverage(Combination):
    """Log of the average kernel weight of distances; a failed simulation's weight is 0.

    `kernel` is a key of `LOG_KERNELS`; `smallest` is the smallest distance since :meth:`forget`.
    """

    smallest: float

    def __init__(self, name, kernel, epsilon):
        super().__init__(name)
        self.kernel = kernel
        self.epsilon = epsilon

    def log_estimate(self, results, succeeded):
        distances = np.where(succeeded, results, np.inf)
        self.smallest = min(self.smallest, float(distances.min()))
        return log_mean_exp(self.log_weights(distances))

    def log_weights(self, distances):
        distances = np.where(np.isfinite(distances), distances, np.inf)
        return LOG_KERNELS[self.kernel](distances / self.epsilon)

    def forget(self):
        super().forget()
        self.smallest = np.inf

    def explain(self):
        return " ".join(filter(None, (self.failures(), self._explain_epsilon())))

    def _explain_epsilon(self):
        if not self.epsilon < self.smallest < np.inf:
            return ""
        facts = (
            f"The smallest of {self.n_simulations - self.n_failed} distances of data sets "
            f"simulated for {self.name!r} was {self.smallest:.3g}, and epsilon={self.epsilon:g}"
        )
        if self.kernel == "gaussian":
            return f"{facts}: if chains always stick, use a larger one or fewer summaries."
        return f"{facts}: every estimate was 0, and so is acceptance. Use a larger epsilon."
