r"""Synthetic likelihood: summary statistics taken to be Gaussian, with moments from simulations.

With the mean :math:`\mu(\theta)` and the covariance :math:`\Sigma(\theta)` of a p-vector of summary
statistics s, the synthetic likelihood (Wood, 2010) is the density of :math:`N(\mu(\theta),
\Sigma(\theta))` at the observed s. Its posterior is another one than that of ABC: there is no
epsilon, and no shape but the Gaussian's.

From n simulations, with sample mean :math:`\hat\mu` and :math:`M = \sum_i (s_i - \hat\mu)(s_i -
\hat\mu)'`, the density has an unbiased estimate for Gaussian summaries (Ghurye and Olkin, 1969,
section 3.3; Price et al., 2018, section 2.2): with :math:`d = s - \hat\mu` and n > p + 3,

.. math::

    (2\pi)^{-p/2} \frac{c(p, n - 2)}{c(p, n - 1)\,(1 - 1/n)^{p/2}} |M|^{-(n-p-2)/2}
    \left|M - \frac{d d'}{1 - 1/n}\right|_+^{(n-p-3)/2},
    \qquad c(k, v) = \frac{2^{-kv/2} \pi^{-k(k-1)/4}}{\prod_{i=1}^k \Gamma((v - i + 1)/2)},

where :math:`|A|_+` is the determinant of A if it is positive definite, else 0. Plugging
:math:`\hat\mu` and :math:`M / (n - 1)` into the Gaussian density is biased.

References
----------
Ghurye, S. G. and Olkin, I. (1969). Unbiased estimation of some multivariate probability densities
and related functions. *Annals of Mathematical Statistics* 40, 1261-1271.

Price, L. F., Drovandi, C. C., Lee, A. and Nott, D. J. (2018). Bayesian synthetic likelihood.
*Journal of Computational and Graphical Statistics* 27, 1-11.

Wood, S. N. (2010). Statistical inference for noisy nonlinear ecological dynamic systems. *Nature*
466, 1102-1104.
"""

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.special import gammaln

from pymc_kmc.likelihoods.n_replicates import TARGET_VARIANCE
from pymc_kmc.likelihoods.potential import add_potential
from pymc_kmc.likelihoods.simulations import Summaries, check_simulator, replicates_of

__all__ = ["SyntheticLikelihoodPotential"]

LOG_2_PI = float(np.log(2.0 * np.pi))
# The unbiased estimate needs more than p + 3 simulations of p summaries.
MORE_THAN_SUMMARIES = 4


def SyntheticLikelihoodPotential(  # noqa: N802
    name: str,
    simulator: Callable,
    *params,
    observed,
    summary: Callable | None = None,
    density: str = "unbiased",
    n_simulations: int | str = 50,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor=None,
    timeout: float | None = None,
    model=None,
):
    r"""Add the log of a synthetic likelihood to a model.

    The summary statistics are taken to be Gaussian, with the mean and the covariance of
    `n_simulations` simulated ones (Wood, 2010). The posterior is another one than that of
    :func:`ABCPotential`, and none of the two is nearer to the truth in general
    (``examples/lognormal_abc.py`` shows both).

    What is exact: with ``density="unbiased"`` and Gaussian summaries the chains have the posterior
    given the summaries as their distribution, whatever `n_simulations`. What isn't: where the
    summaries aren't Gaussian, that distribution is an approximation which depends a little on
    `n_simulations`; with ``density="plugin"`` it depends on it in any case.

    Parameters
    ----------
    name : str
        Name of the potential.
    simulator, *params, observed
        As of :func:`ABCPotential`.
    summary : callable, optional
        As of :func:`ABCPotential`; the values of what it returns are the p summary statistics.
    density : {"unbiased", "plugin"}
        The unbiased estimate of a Gaussian density (Ghurye and Olkin, 1969; Price et al., 2018), or
        the density of the Gaussian with the estimated moments (Wood, 2010).
    n_simulations : int or "auto"
        How many data sets an estimate takes, at least p + 4. "auto" as of :func:`ABCPotential`.
    target_variance, n_normals, correlation, executor, timeout, model
        As of :func:`ABCPotential`.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it.

    Raises
    ------
    TypeError, EstimatorError
        As of :func:`ABCPotential`. A proposal whose simulated summaries have NaN among them, or a
        covariance that isn't positive definite, is rejected, counted and reported.
    ValueError
        If there are no `params`, `observed` has NaN or infinite values, `n_simulations` are too
        few, or an argument is out of its range.

    See Also
    --------
    ABCPotential : simulated data near the observed ones, without a Gaussian assumption.

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
    noise = check_simulator(
        name, simulator, len(params), n_simulations, n_normals, correlation, executor, timeout
    )
    if density not in LOG_DENSITIES:
        raise ValueError(f"density of {name!r} must be 'unbiased' or 'plugin', got {density!r}.")
    summaries = Summaries(name, simulator, summary, observed, noise.is_joint)
    n_summaries = summaries.observed.size
    fewest = n_summaries + MORE_THAN_SUMMARIES
    if n_simulations != "auto" and n_simulations < fewest:
        raise ValueError(
            f"n_simulations of {name!r} must be at least {fewest}, {MORE_THAN_SUMMARIES} more than "
            f"the {n_summaries} summary statistics, got {n_simulations}."
        )
    return add_potential(
        name,
        replicates_of(summaries, noise, executor, timeout),
        SyntheticLogDensity(summaries.observed.ravel(), density),
        params,
        n_replicates=n_simulations,
        target_variance=target_variance,
        fewest=fewest,
        what="simulator",
        model=model,
    )


class SyntheticLogDensity:
    """Log density of the observed summary under a Gaussian fitted to simulated ones.

    Parameters
    ----------
    observed : ndarray, shape (p,)
    density : str
    """

    def __init__(self, observed, density):
        self.observed = observed
        self.density = density

    def __call__(self, summaries):
        n = len(summaries)
        summaries = np.reshape(summaries, (n, -1))
        mean = summaries.mean(axis=0)
        deviations = summaries - mean
        scatter = deviations.T @ deviations
        if not np.all(np.isfinite(scatter)):
            return np.nan
        try:
            factor = cholesky(scatter, lower=True, check_finite=False)
        except LinAlgError:
            return np.nan
        standardised = solve_triangular(factor, self.observed - mean, lower=True)
        return LOG_DENSITIES[self.density](
            n, 2.0 * np.sum(np.log(np.diag(factor))), standardised @ standardised, len(mean)
        )


def log_unbiased_density(n, log_determinant, mahalanobis, p):
    """Log of the unbiased estimate of a Gaussian density; see the module's docstring.

    Parameters
    ----------
    n : int
        Number of simulations.
    log_determinant : float
        log |M|.
    mahalanobis : float
        d' M^-1 d.
    p : int
        Number of summary statistics.

    Returns
    -------
    float
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
    """The log of c(k, v) without its power of pi, which cancels."""
    return -0.5 * k * v * np.log(2.0) - np.sum(gammaln(0.5 * (v - np.arange(k))))


def log_plugin_density(n, log_determinant, mahalanobis, p):
    """Log density of N(mean, M / (n - 1)) at the observed summary; parameters as above."""
    return float(
        -0.5 * (p * LOG_2_PI + log_determinant - p * np.log(n - 1) + (n - 1) * mahalanobis)
    )


LOG_DENSITIES = {"unbiased": log_unbiased_density, "plugin": log_plugin_density}
