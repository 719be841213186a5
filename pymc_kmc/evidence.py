r"""The log evidence of a model, from a chain's draws and the posterior learned before it.

Let g be the learned density, normalised, and :math:`\pi(\theta) L(\theta)` prior and likelihood
with the integral Z. Over draws of the posterior

.. math:: E\left[\frac{g(\theta)}{\pi(\theta) L(\theta)}\right] = \frac{1}{Z}

(Gelfand and Dey, 1994). The chain has evaluated the denominator at its draws: nothing is evaluated
again. The ratio is nearly constant where g was learned well; elsewhere g falls off faster than the
posterior. Bridge sampling on emulators gives the constant of g.

With an unbiased estimate :math:`\hat L(\theta, u) > 0` a chain's draws are from the density
:math:`\pi(\theta) \hat L(\theta, u) q(u) / Z`, and with the kept estimates in the denominator

.. math:: \iint \frac{g(\theta)}{\pi(\theta) \hat L(\theta, u)}
    \frac{\pi(\theta) \hat L(\theta, u) q(u)}{Z} \, du \, d\theta = \frac{1}{Z}.

No chain is at an estimate of zero: with such estimates the evidence would be too large.

References
----------
Gelfand, A. E. and Dey, D. K. (1994). Bayesian model choice: asymptotics and exact calculations.
*Journal of the Royal Statistical Society B* 56, 501-514.

Vehtari, A., Simpson, D., Gelman, A., Yao, Y. and Gabry, J. (2024). Pareto smoothed importance
sampling. *Journal of Machine Learning Research* 25(72).
"""

from typing import Any

import arviz
import numpy as np
import pymc as pm
from scipy.special import logsumexp

from pymc_kmc._compat import pareto_k
from pymc_kmc.learning.averages import LogEvidence, of_penalised
from pymc_kmc.learning.emulated_density import EmulatedDensity
from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.likelihoods.checks import check_model
from pymc_kmc.numerics.checks import check_rng
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.runs import Run

# Largest Pareto k with which the weights' mean and its error are reliable (Vehtari et al., 2024).
LARGEST_PARETO_K = 0.7
# Fewest effective draws of the weights from which their tail and their mean's error are known: a
# chain at a lucky estimate repeats a weight.
FEWEST_WEIGHTS = 100
# Largest deviation of a log weight, in nats, at which the weights' tail doesn't matter: an exact
# emulator's weights differ by rounding, which has heavy tails.
FLAT = 0.1
# Largest difference, in nats and relative, of one log density computed on two machines.
HOST_ROUNDING = 1e-3


def log_evidence(
    idata: Any, learned: LearnedPosterior, model: pm.Model | None = None, *, random_seed=None
) -> LogEvidence:
    """Return the log marginal likelihood of a model, from exact draws, without an evaluation.

    The exact draws correct a bias of the learned posterior's
    :attr:`~LearnedPosterior.log_evidence`, also with an unbiased estimate of the likelihood.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or MultiTrace
        What ``pm.sample(step=kmc.KMC(learned))`` returned, or another step of this package with
        all variables.
    learned : LearnedPosterior
        What :func:`learn` returned, or the attribute `posterior` of a step ``KMC()``.
    model : pymc.Model, optional
        The model, by default the one of the context.
    random_seed : None, int or numpy.random.Generator
        For the constant of the learned density.

    Returns
    -------
    LogEvidence
        Natural logarithm, with all constants of the model's log density, and its standard error.

    Raises
    ------
    TypeError
        If `learned` isn't a LearnedPosterior.
    ValueError
        If the result isn't one step's of all variables, if estimates of the likelihood were zero,
        if `learned` is of another model, if the weights have fewer than 100 effective draws or a
        Pareto k above 0.7: `learned` is too far from the posterior, or the noise is too large.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     mean = kmc.BlackBox("f", lambda x: 2 * x, x)
    ...     _ = pm.Normal("y", mean, 1.0, observed=1.0)
    ...     learned = kmc.learn(random_seed=1, progressbar=False)
    ...     options = {"random_seed": 1, "progressbar": False, "quiet": True}
    ...     idata = pm.sample(step=kmc.KMC(learned), cores=1, chains=2, tune=50, **options)
    >>> found = kmc.log_evidence(idata, learned, model)
    >>> exact = -0.5 * (np.log(2 * np.pi * 5) + 1 / 5)  # y ~ N(0, 5)
    >>> bool(abs(found.value - exact) < 4 * found.error < 0.1)
    True
    """
    model, rng = check_model(model), check_rng(random_seed, "random_seed")
    if not isinstance(learned, LearnedPosterior):
        raise TypeError(f"learned={learned!r} must be what kmc.learn() has returned.")
    run = Run.of(idata)
    _check(run, learned, model)
    X, emulated = _positions(run, learned, model)
    with single_threaded_blas(), np.errstate(all="ignore"):
        at_positions = emulated(learned.positions)
        if not np.allclose(at_positions.mean, learned.log_densities, HOST_ROUNDING, HOST_ROUNDING):
            raise ValueError(
                "learned is of another model than this: its log densities are others. Pass what "
                "kmc.learn() has learned of this model."
            )
        constant, _ = of_penalised(emulated, learned.positions, at_positions.penalised, rng)
        log_weights = emulated(X).penalised - constant.value
    log_densities = run.sampling.values("model_logp")[..., 0]
    log_weights = log_weights.reshape(log_densities.shape) - log_densities
    log_mean = float(logsumexp(log_weights) - np.log(log_weights.size))
    weights = np.exp(log_weights - log_mean)
    is_flat = np.abs(log_weights - log_mean).max() < FLAT
    n_effective = float(arviz.ess(weights, method="mean"))
    if not (n_effective >= FEWEST_WEIGHTS or is_flat):
        raise ValueError(
            f"The chains have {n_effective:.0f} effective draws of the evidence's weights: sample "
            f"until there are {FEWEST_WEIGHTS}, or use more particles if the chains stick."
        )
    # Of nearly independent draws: repeated weights would hide the tail.
    k = pareto_k(log_weights[:, :: max(1, int(weights.size / n_effective))].ravel())
    if not (k <= LARGEST_PARETO_K or is_flat):
        raise ValueError(
            f"The Pareto k of the weights is {k:.2f}, above {LARGEST_PARETO_K}: the evidence and "
            "its error wouldn't be reliable. What was learned is too far from the posterior, or the"
            " noise too large: learn with more evaluations, or use more particles."
        )
    error = np.hypot(weights.std() / np.sqrt(n_effective), constant.error)
    return LogEvidence(-log_mean, float(error))


def _check(run, learned, model):
    """Raise a ValueError unless the run and the learned posterior can have an evidence."""
    n_steps = run.sampling.shape[2]
    names = {variable.name for variable in model.value_vars}
    if n_steps > 1 or learned.given or set(learned.names) != names:
        raise ValueError(
            f"log_evidence needs a run of one step with all variables, {sorted(names)}; idata is of"
            f" {n_steps} steps, and {sorted(learned.names)} were learned."
        )
    if (run.sampling.values("kmc_zero_share") > 0).any():
        raise ValueError(
            "Some estimates of the likelihood were zero (kmc_zero_share): where they are, no draw "
            "is, and the evidence would be too large. Use more particles, or a likelihood that is "
            "never zero."
        )


def _positions(run, learned, model):
    """Return the draws (n, d) on the unconstrained scale, and the learned Composite."""
    density = EmulatedDensity(model, learned, Coordinates.identity(learned.n_dimensions))
    n_chains, n_draws, _ = run.sampling.shape
    natural = {
        name: run.sampling.posterior[name].values.reshape(n_chains * n_draws, *shape[1:])
        for name, shape in ((k, v.shape) for k, v in learned.variables.items())
    }
    opaque = density.composite.model
    return opaque.unconstrained(natural, n_chains * n_draws), density.composite
