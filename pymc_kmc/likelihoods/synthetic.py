r"""Synthetic likelihood: summary statistics taken to be Gaussian, with moments from simulations.

With the mean :math:`\mu(\theta)` and the covariance :math:`\Sigma(\theta)` of a p-vector of summary
statistics s, the synthetic likelihood (Wood, 2010) is the density of :math:`N(\mu(\theta),
\Sigma(\theta))` at the observed s.

From n simulations, with sample mean :math:`\hat\mu` and :math:`M = \sum_i (s_i - \hat\mu)(s_i -
\hat\mu)'`, the density has an unbiased estimate for Gaussian summaries (Ghurye and Olkin, 1969,
section 3.3; Price et al., 2018, section 2.2): with :math:`d = s - \hat\mu` and n > p + 3,

.. math::

    (2\pi)^{-p/2} \frac{c(p, n - 2)}{c(p, n - 1)\,(1 - 1/n)^{p/2}} |M|^{-(n-p-2)/2}
    \left|M - \frac{d d'}{1 - 1/n}\right|_+^{(n-p-3)/2},
    \qquad c(k, v) = \frac{2^{-kv/2} \pi^{-k(k-1)/4}}{\prod_{i=1}^k \Gamma((v - i + 1)/2)},

where :math:`|A|_+` is the determinant of A if it is positive definite, else 0. Plugging
:math:`\hat\mu` and :math:`M / (n - 1)` into the Gaussian density is biased.

A simulation fails if its summaries are NaN or infinite. Summaries are taken to be Gaussian *given*
success, which has probability :math:`p(\theta)`; the likelihood of the observed data is
:math:`p(\theta)` times the Gaussian density. If k of n simulations succeed, k / n times the
estimate of the density from these k is unbiased for it, given that k > p + 3. With fewer the
estimate is 0. Without the factor, parameters at which nearly all simulations fail would be as good
as others: that is the likelihood given success.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Literal

import numpy as np
import pymc as pm
from pytensor.tensor import TensorVariable
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.special import gammaln

from pymc_kmc.likelihoods.noisy_log_likelihood import add_potential
from pymc_kmc.likelihoods.replicates import TARGET_VARIANCE, Replicates
from pymc_kmc.likelihoods.simulations import (
    Combination,
    Summaries,
    is_notable,
    noise_of_simulator,
)
from pymc_kmc.likelihoods.store import StoreLike
from pymc_kmc.numerics.checks import check_choice

LOG_2_PI = float(np.log(2.0 * np.pi))
EPSILON = float(np.finfo(np.float64).eps)
MORE_THAN_SUMMARIES = 4  # fewest simulations minus p summaries: the estimate needs n > p + 3


def SyntheticLikelihoodPotential(  # noqa: N802
    name: str,
    simulator: Callable,
    *params: TensorVariable,
    observed: Any,
    summary: Callable | None = None,
    density: Literal["unbiased", "plugin"] = "unbiased",
    n_simulations: int | Literal["auto"] = 50,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    store: StoreLike | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add the log of a synthetic likelihood to a model.

    The summary statistics are taken to be Gaussian, with the mean and the covariance of
    `n_simulations` simulated ones (Wood, 2010). The posterior differs from that of
    :func:`pymc_kmc.ABCPotential`; neither is nearer to the truth in general
    (``examples/lognormal_abc.py`` shows both).

    With ``density="unbiased"`` and Gaussian summaries the chains sample the posterior given the
    summaries exactly, whatever `n_simulations`. If the summaries aren't Gaussian, the chains'
    distribution depends a little on `n_simulations`; with ``density="plugin"`` it always does.

    A simulation fails if one of its summary statistics is NaN or infinite. The moments are those of
    the simulations that succeed, whose share is a factor of the estimate: the likelihood is the
    probability of success times the density given success. If fewer than p + 4 succeed the estimate
    is 0; if often, the posterior depends on `n_simulations`. ``kmc_failed_share`` in the sample
    statistics is the share that failed; a chain warns if it is notable, or many estimates are 0.

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
    summary : callable, optional
        ``summary(data)`` returns an array of the p summary statistics, of one shape for all data.
        By default the data are their own summary. With ``size=`` it gets all data sets together and
        must keep their first axis; the observed data then have a first axis of length 1.
    density : {"unbiased", "plugin"}
        The unbiased estimate of a Gaussian density (Ghurye and Olkin, 1969; Price et al., 2018), or
        the density of the Gaussian with the estimated moments (Wood, 2010).
    n_simulations : int or "auto"
        Number of data sets an estimate, at least p + 4. "auto" finds the number, up to 1000, while
        tuning, such that the log estimate has variance `target_variance` at the chain's state. The
        sample statistics have it as ``kmc_n_replicates``.
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
        File that keeps the summaries of every estimate, or an :class:`EvaluationStore` for several
        functions. Stored summaries aren't computed again; `density` and the data may change.
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
        raises, an argument is out of its range, or the store has another function of this name.
    OSError
        If the store can't be used.
    EstimatorError
        If the simulator raises, or later data aren't an array of the right shape. The message has
        the parameters and the seed. A proposal whose simulated summaries have a covariance that
        isn't positive definite, up to rounding, is rejected, counted and reported.

    Warns
    -----
    UserWarning
        If ten data sets at the model's initial point are equal: the simulator seems constant.

    See Also
    --------
    ABCPotential : Simulated data near the observed ones, without a Gaussian assumption.

    References
    ----------
    Ghurye, S. G. and Olkin, I. (1969). Unbiased estimation of some multivariate probability
    densities and related functions. *Annals of Mathematical Statistics* 40, 1261-1271.

    Price, L. F., Drovandi, C. C., Lee, A. and Nott, D. J. (2018). Bayesian synthetic likelihood.
    *Journal of Computational and Graphical Statistics* 27, 1-11.

    Wood, S. N. (2010). Statistical inference for noisy nonlinear ecological dynamic systems.
    *Nature* 466, 1102-1104.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def simulator(rate, rng):
    ...     return rng.poisson(rate, 20)
    >>> def summary(counts):
    ...     return [counts.mean(), np.log1p(counts.var())]
    >>> with pm.Model() as model:
    ...     rate = pm.HalfNormal("rate", 10)
    ...     _ = kmc.SyntheticLikelihoodPotential(
    ...         "likelihood", simulator, rate, observed=np.arange(20) % 7, summary=summary
    ...     )
    >>> [potential.name for potential in model.potentials]
    ['likelihood']
    """
    n_params = len(params)
    noise = noise_of_simulator(
        name, simulator, n_params, n_simulations, n_normals, correlation, executor, timeout
    )
    check_choice(density, "density", tuple(LOG_DENSITIES))
    summaries = Summaries(name, simulator, summary, observed, noise.is_joint)
    n_summaries = summaries.observed.size
    fewest = n_summaries + MORE_THAN_SUMMARIES
    if n_simulations != "auto" and n_simulations < fewest:
        raise ValueError(
            f"n_simulations of {name!r} must be at least {fewest}, {MORE_THAN_SUMMARIES} more than "
            f"the {n_summaries} summary statistics, got {n_simulations}."
        )
    replicates = Replicates(summaries, noise, executor, timeout)
    log_density = SyntheticLogDensity(name, summaries.observed.ravel(), density)
    options = n_simulations, target_variance, model, summaries, fewest
    kept = {"store": store, "results": "summaries", "shape": summaries.shape}
    return add_potential(name, replicates, log_density, params, *options, **kept)


class SyntheticLogDensity(Combination):
    """Log density of the observed summary (p,) under a Gaussian fitted to simulated summaries.

    The log of the share of simulations that succeeded is added. `density` is a key of
    `LOG_DENSITIES`. Since :meth:`forget`, `n_estimates` counts estimates and `n_too_few` those that
    are 0 because too few simulations succeeded.
    """

    n_estimates: int
    n_too_few: int

    def __init__(self, name, observed, density):
        super().__init__(name)
        self.observed = observed
        self.density = density

    def log_estimate(self, results, succeeded):
        self.n_estimates += 1
        summaries = results.reshape(len(results), -1)[succeeded]
        n, p = summaries.shape
        if n < p + MORE_THAN_SUMMARIES:
            self.n_too_few += 1
            return -np.inf
        return np.log(n / len(results)) + self._log_density(summaries)

    def forget(self):
        super().forget()
        self.n_estimates = self.n_too_few = 0

    @property
    def has_many_failures(self):
        """Whether many simulations failed, or many estimates had too few successful ones."""
        return super().has_many_failures or is_notable(self.n_too_few, self.n_estimates)

    def failures(self):
        facts = super().failures()
        if not is_notable(self.n_too_few, self.n_estimates):
            return facts
        fewest = self.observed.size + MORE_THAN_SUMMARIES
        return (
            f"{facts} {self.n_too_few} of {self.n_estimates} estimates were zero because fewer "
            f"than {fewest} of their simulations succeeded: the posterior then depends on "
            "n_simulations. Use more."
        )

    def _log_density(self, summaries):
        n, p = summaries.shape
        mean = summaries.mean(axis=0)
        deviations = summaries - mean
        scatter = deviations.T @ deviations
        if not np.all(np.isfinite(scatter)):
            return np.nan
        try:
            factor = cholesky(scatter, lower=True, check_finite=False)
        except LinAlgError:
            return np.nan
        # What rounding leaves of a conditional variance that is zero: that of the products, and
        # that of the mean and of the summaries themselves.
        rounding = n * p * EPSILON * np.diag(scatter) + n * (n * EPSILON * mean) ** 2
        if np.any(np.diag(factor) ** 2 <= rounding):
            return np.nan
        standardised = solve_triangular(factor, self.observed - mean, lower=True)
        return LOG_DENSITIES[self.density](
            n, 2.0 * np.sum(np.log(np.diag(factor))), standardised @ standardised, p
        )


def log_unbiased_density(n, log_determinant, mahalanobis, p):
    """Return the log of the unbiased density estimate (formula in the module) from n simulations.

    `log_determinant` is log |M|, `mahalanobis` d' M^-1 d, `p` the number of summaries.
    """
    # |M - d d' / (1 - 1/n)| = |M| (1 - d' M^-1 d / (1 - 1/n)): the powers of |M| leave -1/2.
    rest = 1.0 - mahalanobis / (1.0 - 1.0 / n)
    if rest <= 0.0:
        return -np.inf
    return float(
        -0.5 * p * LOG_2_PI
        + log_c(p, n - 2)
        - log_c(p, n - 1)
        - 0.5 * p * np.log1p(-1.0 / n)
        - 0.5 * log_determinant
        + 0.5 * (n - p - 3) * np.log(rest)
    )


def log_c(k, v):
    """Return the log of c(k, v) without its power of pi, which cancels."""
    return -0.5 * k * v * np.log(2.0) - np.sum(gammaln(0.5 * (v - np.arange(k))))


def log_plugin_density(n, log_determinant, mahalanobis, p):
    """Return log N(s; mean, M / (n - 1)), with arguments of :func:`log_unbiased_density`."""
    return float(
        -0.5 * (p * LOG_2_PI + log_determinant - p * np.log(n - 1) + (n - 1) * mahalanobis)
    )


LOG_DENSITIES = {"unbiased": log_unbiased_density, "plugin": log_plugin_density}
