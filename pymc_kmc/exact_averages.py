r"""Averages and the log evidence, from a chain's exact draws and the posterior learned before it.

*The log evidence.* Let g be the learned density, normalised, and :math:`\pi(\theta) L(\theta)`
prior and likelihood with the integral Z. Over draws of the posterior

.. math:: E\left[\frac{g(\theta)}{\pi(\theta) L(\theta)}\right] = \frac{1}{Z}

(Gelfand and Dey, 1994). The chain has evaluated the denominator at its draws: nothing is evaluated
again. The ratio is nearly constant where g was learned well; elsewhere g falls off faster than the
posterior. Bridge sampling on emulators gives the constant of g.

With an unbiased estimate :math:`\hat L(\theta, u) > 0` a chain's draws are from the density
:math:`\pi(\theta) \hat L(\theta, u) q(u) / Z`, and with the kept estimates in the denominator

.. math:: \iint \frac{g(\theta)}{\pi(\theta) \hat L(\theta, u)}
    \frac{\pi(\theta) \hat L(\theta, u) q(u)}{Z} \, du \, d\theta = \frac{1}{Z}.

No chain is at an estimate of zero: with such estimates the evidence would be too large.

*Averages.* With :math:`r = g / (\pi L)` up to a constant, :math:`r (h - E_g h)` has mean zero over
the posterior, whatever g is, and over an estimate's draws too. It is a control variate of the
average of h over the draws (Owen and Zhou, 2000),

.. math:: \hat\mu = \overline h - \beta \, \overline{r (h - E_g h)},

with the slope :math:`\beta` of a regression of the values on theirs. :math:`E_g h` costs no
evaluation. If g is right up to a constant, :math:`\hat\mu = E_g h` after a few draws. If it has
errors of :math:`\epsilon` nats, a share of some :math:`\epsilon^2` of the variance is left.

References
----------
Gelfand, A. E. and Dey, D. K. (1994). Bayesian model choice: asymptotics and exact calculations.
*Journal of the Royal Statistical Society B* 56, 501-514.

Owen, A. and Zhou, Y. (2000). Safe and effective importance sampling. *Journal of the American
Statistical Association* 95, 135-143.

Vehtari, A., Simpson, D., Gelman, A., Yao, Y. and Gabry, J. (2024). Pareto smoothed importance
sampling. *Journal of Machine Learning Research* 25(72).
"""

from typing import Any, NamedTuple

import arviz
import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import logsumexp

from pymc_kmc._compat import pareto_k
from pymc_kmc.learning.averages import (
    Averages,
    LogEvidence,
    check_quantiles,
    control_variates,
    flattened,
    inefficiency,
    of_penalised,
    quantiles_and_slopes,
)
from pymc_kmc.learning.composite import N_EACH, Composite, Values
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
# Fewest effective draws of the ratios with which control variates are used: with 20 a slope has an
# error of a fifth, which is a hundredth of the variance.
FEWEST_CONTROLLED = 20
# Fewest draws of a chain from which its effective number is known.
FEWEST_A_CHAIN = 4
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
    run = _checked(idata, learned, model, "log_evidence")
    if _has_zeros(run):
        raise ValueError(
            "Some estimates of the likelihood were zero (kmc_zero_share): where they are, no draw "
            "is, and the evidence would be too large. Use more particles, or a likelihood that is "
            "never zero."
        )
    compared = _compared(run, learned, model)
    at_positions = compared.at_positions.penalised
    with single_threaded_blas(), np.errstate(all="ignore"):
        constant, _ = of_penalised(compared.emulated, learned.positions, at_positions, rng)
    weights, is_flat, n_effective = _weights(compared.log_ratios)
    log_mean = float(logsumexp(compared.log_ratios) - np.log(weights.size)) - constant.value
    if not (n_effective >= FEWEST_WEIGHTS or is_flat and n_effective > 0):  # NaN of three draws
        raise ValueError(
            f"The chains have {n_effective:.0f} effective draws of the evidence's weights: sample "
            f"until there are {FEWEST_WEIGHTS}, or use more particles if the chains stick."
        )
    k = _tail_index(compared.log_ratios, n_effective)
    if not (k <= LARGEST_PARETO_K or is_flat):
        raise ValueError(
            f"The Pareto k of the weights is {k:.2f}, above {LARGEST_PARETO_K}: the evidence and "
            "its error wouldn't be reliable. What was learned is too far from the posterior, or the"
            " noise too large: learn with more evaluations, or use more particles."
        )
    error = np.hypot(weights.std() / np.sqrt(n_effective), constant.error)
    return LogEvidence(-log_mean, float(error))


def summary(
    idata: Any,
    learned: LearnedPosterior,
    model: pm.Model | None = None,
    *,
    quantiles=(0.05, 0.5, 0.95),
) -> pd.DataFrame:
    """Return means, standard deviations and quantiles by exact draws, with standard errors.

    What was learned takes most of the Monte Carlo error away: a hundred draws are worth some
    thousand. However wrong it is, averages converge to the posterior's as draws become more.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or MultiTrace
        What ``pm.sample(step=kmc.KMC(learned))`` returned, or another step of this package with
        all variables; at least four draws a chain.
    learned : LearnedPosterior
        What :func:`learn` returned, or the attribute `posterior` of a step ``KMC()``.
    model : pymc.Model, optional
        The model, by default the one of the context.
    quantiles : sequence of float
        Probabilities between 0 and 1.

    Returns
    -------
    pandas.DataFrame
        One row for each element of the model's free variables, on their natural scale. Columns
        `mean`, `sd`, `5%`, ..., and `se_mean`, `se_sd`, `se_5%`, ..., as those of
        :meth:`LearnedPosterior.summary`. They are averages of the draws alone where the ratio of
        the densities has a Pareto k above 0.7 or fewer than 20 effective draws, and where estimates
        of the likelihood were zero.

    Raises
    ------
    TypeError
        If `learned` isn't a LearnedPosterior.
    ValueError
        If the result isn't one step's of all variables, has fewer than four draws a chain, or if
        `learned` is of another model.

    Examples
    --------
    >>> import pymc as pm, pymc_kmc as kmc
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     mean = kmc.BlackBox("f", lambda x: 2 * x, x)
    ...     _ = pm.Normal("y", mean, 1.0, observed=1.0)
    ...     learned = kmc.learn(random_seed=1, progressbar=False)
    ...     options = {"random_seed": 1, "progressbar": False, "quiet": True}
    ...     idata = pm.sample(20, step=kmc.KMC(learned), cores=1, chains=2, tune=20, **options)
    >>> found = kmc.summary(idata, learned, model).loc["x"]
    >>> bool(abs(found["mean"] - 0.4) < 4 * found["se_mean"] < 0.05)  # x is N(2/5, 1/5)
    True
    """
    model, quantiles = check_model(model), check_quantiles(quantiles)
    exact = ExactAverages.of(idata, learned, model)
    values, labels = flattened(exact.compared.variables)
    return exact.table(values, flattened(learned.variables)[0], labels, quantiles)


class Compared(NamedTuple):
    """A run's n draws, and how the learned density compares with the kept one there.

    `X` (n, d) are the draws on the unconstrained scale, `variables` those on the natural one.
    `log_ratios` (chains, draws) are the logarithms of the learned density over the kept one, up to
    a constant. `at_positions` are the values of `emulated` at the learned posterior's draws.
    """

    X: np.ndarray
    variables: dict
    log_ratios: np.ndarray
    emulated: Composite
    at_positions: Values


class ExactAverages:
    """Averages over the n draws of a run, with control variates from the m learned ones.

    `ratios` (chains, draws) are those of `compared`, with mean one, or None if they can't help.
    """

    def __init__(self, compared, learned, ratios):
        self.compared = compared
        n_learned = len(learned.positions)
        gradients = compared.at_positions.gradient
        controls = control_variates(learned.positions, gradients, learned.periods)
        controls = controls[:, : 0 if learned.jumps else None]
        worth = inefficiency(learned.r_hat, N_EACH)
        exact = np.zeros(n_learned), np.zeros((1, 1))
        self._learned = Averages(exact[0], controls, exact[1], 1.0, inefficiency=worth)
        # A chain that sticks for long has no autocorrelation to tell.
        self._n_distinct = len(np.unique(compared.X, axis=0))
        self._shape, self._slope = compared.log_ratios.shape, 0.0
        self._ratios = np.ones((len(compared.X), 1))
        if ratios is not None:
            self._ratios = ratios.reshape(-1, 1)
            self._slope = self._regressed(compared.X, learned.positions)

    @classmethod
    def of(cls, idata, learned, model):
        """Return those of a run; the errors are those of :func:`summary`."""
        run = _checked(idata, learned, model, "summary")
        if (n := run.sampling.shape[1]) < FEWEST_A_CHAIN:
            raise ValueError(f"idata has {n} draws a chain; standard errors need {FEWEST_A_CHAIN}.")
        compared = _compared(run, learned, model)
        return cls(compared, learned, None if _has_zeros(run) else _usable(compared.log_ratios))

    def _regressed(self, X, positions):
        """Return the slope of all coordinates on their control variates."""
        Z = (X - positions.mean(axis=0)) / positions.std(axis=0)
        controls = self._ratios * Z
        centred = controls - controls.mean(axis=0)
        return np.sum(centred * Z) / np.sum(centred**2)

    def estimates(self, values, known):
        """Return means (p,) and errors of values (n, p), `known` (m, p) at learned draws."""
        middle = known.mean(axis=0)
        excess, error = self._learned.controlled(known - middle)
        middle = middle - excess
        parts = values - self._slope * self._ratios * (values - middle)
        of_chains = parts.reshape(*self._shape, -1)
        columns = np.moveaxis(of_chains, -1, 0)
        sampling = [_standard_error(column, self._n_distinct) for column in columns]
        return parts.mean(axis=0), np.hypot(self._slope * error, sampling)

    def table(self, values, known, labels, quantiles):
        """Return a DataFrame with p rows of natural values (n, p) and (m, p) at learned draws."""
        means, errors = self.estimates(values, known)
        squares, of_squares = self.estimates((values - means) ** 2, (known - means) ** 2)
        sds = np.sqrt(np.fmax(squares, 0.0))
        units = np.where(sds > 0, sds, 1.0)
        columns, errors = {"mean": means, "sd": sds}, {"mean": errors, "sd": of_squares / units / 2}
        for p in quantiles:
            name = f"{100 * p:g}%"
            columns[name], errors[name] = self._quantile(values, known, p)
        errors = {f"se_{name}": error for name, error in errors.items()}
        return pd.DataFrame(columns | errors, index=labels)

    def _quantile(self, values, known, p):
        """Return quantiles of both sets of draws, with weights of either sign, and errors."""
        weights = (1.0 - self._slope * self._ratios[:, 0]) / len(values)
        of_learned = np.full(len(known), self._slope * self._ratios.mean() / len(known))
        weights, together = np.append(weights, of_learned), np.vstack([values, known])
        found, slopes = quantiles_and_slopes(together, weights, p)
        share, error = self.estimates(1.0 * (values <= found), 1.0 * (known <= found))
        return found - (share - p) * slopes, error * slopes


def _standard_error(values, most):
    spread = values.std()
    return spread / np.sqrt(min(arviz.ess(values, method="mean"), most)) if spread > 0 else 0.0


def _checked(idata, learned, model, name):
    """Return the Run; an error unless it and what was learned are of all variables of the model."""
    if not isinstance(learned, LearnedPosterior):
        raise TypeError(f"learned={learned!r} must be what kmc.learn() has returned.")
    run = Run.of(idata)
    n_steps = run.sampling.shape[2]
    names = {variable.name for variable in model.value_vars}
    if n_steps > 1 or learned.given or set(learned.names) != names:
        raise ValueError(
            f"{name} needs a run of one step with all variables, {sorted(names)}; learned is of"
            f" {sorted(learned.names)}, and idata of {n_steps} of this package's steps."
        )
    return run


def _has_zeros(run):
    return (run.sampling.values("kmc_zero_share") > 0).any()


def _compared(run, learned, model):
    """Return the Compared of a run; a ValueError if what was learned is of another model."""
    density = EmulatedDensity(model, learned, Coordinates.identity(learned.n_dimensions))
    emulated, n = density.composite, run.sampling.posterior.sizes
    natural = {
        name: run.sampling.posterior[name].values.reshape(-1, *values.shape[1:])
        for name, values in learned.variables.items()
    }
    X = emulated.model.unconstrained(natural, n["chain"] * n["draw"])
    with single_threaded_blas(), np.errstate(all="ignore"):
        at_positions = emulated(learned.positions)
        if not np.allclose(at_positions.mean, learned.log_densities, HOST_ROUNDING, HOST_ROUNDING):
            raise ValueError(
                "learned is of another model than this: its log densities are others. Pass what "
                "kmc.learn() has learned of this model."
            )
        log_densities = run.sampling.values("model_logp")[..., 0]
        log_ratios = emulated(X).penalised.reshape(log_densities.shape) - log_densities
    return Compared(X, natural, log_ratios, emulated, at_positions)


def _usable(log_ratios):
    """Return density ratios (chains, draws) with mean one, None if too little is known of them."""
    ratios, is_flat, n_effective = _weights(log_ratios)
    if is_flat or (
        n_effective >= FEWEST_CONTROLLED
        and _tail_index(log_ratios, n_effective) <= LARGEST_PARETO_K
    ):
        return ratios
    return None


def _weights(log_weights):
    """Return weights with mean one, whether all are nearly that, and their effective number."""
    log_mean = float(logsumexp(log_weights) - np.log(log_weights.size))
    weights = np.exp(log_weights - log_mean)
    is_flat = np.abs(log_weights - log_mean).max() < FLAT
    return weights, is_flat, float(arviz.ess(weights, method="mean"))


def _tail_index(log_weights, n_effective):
    """Return the Pareto k of nearly independent draws: repeated weights would hide the tail."""
    return pareto_k(log_weights[:, :: max(1, int(log_weights.size / n_effective))].ravel())
