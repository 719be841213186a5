r"""How noisy a likelihood's estimate is, before anything is sampled.

Of a noisy likelihood two figures decide whether a chain moves and what it costs: the variance of
the log estimate, and the time that it takes. Perfect proposals would be accepted at the rate
:math:`2 \Phi(-s / \sqrt 2)` under Gaussian noise of variance s^2 (Pitt, Silva, Giordani and Kohn,
2012); a variance between 1 and 2 makes the most of the simulations (Doucet, Pitt, Deligiannidis
and Kohn, 2015).

References
----------
Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of Markov
chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

Pitt, M. K., Silva, R. dos S., Giordani, P. and Kohn, R. (2012). On some properties of Markov chain
Monte Carlo simulation methods based on the particle filter. *Journal of Econometrics* 171, 134-151.
"""

import numbers
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pandas as pd
from pymc.initial_point import make_initial_point_fn

from pymc_kmc.adaptation.noise_variance import ideal_acceptance
from pymc_kmc.diagnostics import NEEDLESSLY_GOOD, TOO_NOISY
from pymc_kmc.likelihoods.n_replicates import TARGET_VARIANCE
from pymc_kmc.model.target import TargetDensity

__all__ = ["NoiseEstimate", "estimate_noise"]


@dataclass(frozen=True)
class NoiseEstimate:
    """What :func:`estimate_noise` found.

    Attributes
    ----------
    likelihoods : pandas.DataFrame
        One row a noisy likelihood and one, "total", for their sum; its columns are described at
        :func:`estimate_noise`.
    variance : float
        Of the sum of the log estimates, as far as it matters to acceptance.
    ideal_acceptance : float
        Acceptance rate that perfect proposals would have at this point.
    factor : float
        How many times as many simulations, particles or replicates make that variance 2.
    advice : tuple of str
        What to do.
    """

    likelihoods: pd.DataFrame
    variance: float
    ideal_acceptance: float
    factor: float
    advice: tuple

    def __str__(self):
        table = self.likelihoods.T.to_string(float_format=lambda value: f"{value:.3g}")
        return "\n".join([table, *(f"- {line}" for line in self.advice)])

    __repr__ = __str__

    def _repr_html_(self):
        items = "".join(f"<li>{line}</li>" for line in self.advice)
        return f"{self.likelihoods.T.to_html(float_format='%.3g')}<ul>{items}</ul>"


def estimate_noise(model, point=None, n=100, *, rng=None):
    r"""Measure how noisy a model's likelihood is at one point, and what its estimates cost.

    Parameters
    ----------
    model : pymc.Model
        With a :func:`~pymc_kmc.PseudoMarginalPotential` or another noisy likelihood of this
        package, or a `pymc.Simulator`.
    point : dict of str to array_like, optional
        Where: values of variables by name, as for the `initvals` of `pymc.sample`; the others
        are at the model's initial point. Take one where the posterior has its mass: noise may
        depend on the place.
    n : int
        How many estimates are made; twice as many where noise is correlated. The variance's
        relative standard error is :math:`\sqrt{2 / n}`, .14 at 100.
    rng : numpy.random.Generator, int or None
        What the estimates' noise is drawn with.

    Returns
    -------
    NoiseEstimate
        Prints as a table and a list. The table's rows: `replicates`, of an estimate ("auto"
        begins with 1); `variance`, of the log estimate under independent noise; `of proposals`,
        half the mean squared difference of the log estimates at a proposal and at the chain's
        state, were both at this point: the same, unless noise is correlated; `ideal acceptance`;
        `zero` and `invalid`, shares of estimates whose log was -inf, and NaN or +inf (variances
        are those of the others); `seconds`, of an estimate; `suggested replicates`, in all, for
        a variance `of proposals` of 2 if it falls as one over their number. The total variance
        is that of the sum.

    Raises
    ------
    ValueError
        If the model has no noisy likelihood, or `point` has unknown names or wrong shapes.
    pymc.exceptions.SamplingError
        If `point` is impossible, whatever the estimate.
    EstimatorError
        If an estimator raises.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def estimator(x, rng):
    ...     return -0.5 * x**2 + 2.5 * rng.standard_normal()
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     _ = kmc.PseudoMarginalPotential("loglik", estimator, x)
    >>> noise = kmc.estimate_noise(model, {"x": 0.5}, rng=1)
    >>> 4 < noise.variance < 9
    True
    >>> print(noise.advice[0])
    The noise would limit a chain: ...
    """
    if not isinstance(n, numbers.Integral) or n < 2:
        raise ValueError(f"n must be a whole number, 2 or more, got {n!r}.")
    rng = np.random.default_rng(rng)
    point = complete_point(model, point)
    target = TargetDensity(model.continuous_value_vars, model, point)
    if not target.is_noisy:
        raise ValueError(
            "The model has no noisy likelihood: it needs a kmc.PseudoMarginalPotential or another "
            "of this package's, or a pm.Simulator. An exact likelihood has variance 0."
        )
    noise_of_the_model = target.noise
    try:
        target.start_chain(rng)
        if target.current(point).log_likelihood_estimate == 0.0:
            target.check_start(point)  # nothing is estimated where the rest is impossible
        terms = target.noisy_terms(point)
        measured = [Measured(term, n, rng) for term in terms]
    finally:
        target.noise = noise_of_the_model
    total = Total(measured)
    factor = total.proposal_variance / TARGET_VARIANCE
    rows = [each.row(factor) for each in (*measured, total)]
    table = pd.DataFrame(rows, index=[*(term.name for term in terms), "total"])
    return NoiseEstimate(
        table, total.proposal_variance, total.ideal_acceptance, factor, tuple(advise(total, factor))
    )


def complete_point(model, point):
    """Return the model's initial point with the values of `point`, on the unconstrained scale."""
    if point is None:
        return model.initial_point()
    shapes = model.eval_rv_shapes()
    unknown = sorted(set(point) - set(shapes) - {other.name for other in model.deterministics})
    if unknown:
        raise ValueError(
            f"point has {unknown}, which are no variables of the model: it has {sorted(shapes)}."
        )
    values = {name: np.asarray(point[name]) for name in shapes if name in point}
    for name, value in values.items():
        if value.shape != tuple(shapes[name]):
            raise ValueError(
                f"point has a value of {name!r} of shape {value.shape}, it must be {shapes[name]}."
            )
    return make_initial_point_fn(model=model, overrides=values)(0)


class Measured:
    """Log estimates of one noisy term.

    Attributes
    ----------
    first, second : ndarray, shape (n,)
        Under independent noise, and under that noise renewed as in a proposal.
    """

    def __init__(self, term, n, rng):
        noise = [term.noise.draw(term.n_replicates, rng) for _ in range(n)]
        begin = perf_counter()
        self.first = np.array([term.log_estimate(one) for one in noise])
        self.seconds = (perf_counter() - begin) / n
        self.n_replicates = term.n_replicates
        # Independent noise needs no second estimates for its pairs.
        self.second = np.roll(self.first, 1)
        if term.noise.correlation:
            renewed = (term.noise.renew(one, rng) for one in noise)
            self.second = np.array([term.log_estimate(one) for one in renewed])
        self.is_correlated = bool(term.noise.correlation)

    @property
    def variance(self):
        """Of the finite log estimates."""
        finite = self.first[np.isfinite(self.first)]
        return float(finite.var(ddof=1)) if len(finite) > 1 else np.nan

    @property
    def proposal_variance(self):
        """Half the mean squared difference of pairs, where both are finite."""
        if not self.is_correlated:
            return self.variance
        finite = np.isfinite(self.first) & np.isfinite(self.second)
        differences = self.first[finite] - self.second[finite]
        return float(0.5 * np.mean(differences**2)) if len(differences) else np.nan

    @property
    def zero(self):
        """Share of estimates whose log is -inf."""
        return float(np.mean(self.first == -np.inf))

    @property
    def invalid(self):
        """Share of estimates that are NaN or +inf."""
        return float(np.mean(np.isnan(self.first) | (self.first == np.inf)))

    @property
    def ideal_acceptance(self):
        """Of perfect proposals: those with estimates of zero, or none, are rejected."""
        return (1.0 - self.zero - self.invalid) * ideal_acceptance(self.proposal_variance)

    def row(self, factor):
        """Return the table's row, with `factor` times as many replicates suggested."""
        return {
            "replicates": self.n_replicates,
            "variance": self.variance,
            "of proposals": self.proposal_variance,
            "ideal acceptance": self.ideal_acceptance,
            "zero": self.zero,
            "invalid": self.invalid,
            "seconds": self.seconds,
            "suggested replicates": suggested(self.n_replicates, factor),
        }


class Total(Measured):
    """Sums of the log estimates of several terms."""

    def __init__(self, measured):
        with np.errstate(invalid="ignore"):  # inf - inf
            self.first = np.sum([one.first for one in measured], axis=0)
            self.second = np.sum([one.second for one in measured], axis=0)
        self.seconds = sum(one.seconds for one in measured)
        self.n_replicates = sum(one.n_replicates for one in measured)
        self.is_correlated = any(one.is_correlated for one in measured)


def suggested(n_replicates, factor):
    """Return so many times as many replicates, at least one; NaN if nothing is known."""
    return max(1, int(np.ceil(n_replicates * factor))) if np.isfinite(factor) else np.nan


def advise(total, factor):
    """Say what to do."""
    accepted = (
        f"perfect proposals would be accepted in {100 * total.ideal_acceptance:.0f} % of cases"
    )
    if total.invalid:
        yield (
            f"{100 * total.invalid:.0f} % of the estimates were NaN or +inf: proposals with such "
            "are rejected. Return -inf where the estimate is zero."
        )
    if total.zero:
        yield (
            f"{100 * total.zero:.0f} % of the estimates were zero, their log -inf: more replicates "
            "make that rarer, and the variance given here is only that of the others."
        )
    variance = total.proposal_variance
    if np.isnan(variance):
        yield "No variance can be given: take a point where the posterior has its mass."
    elif variance > TOO_NOISY:
        remedy = "" if total.is_correlated else " or correlated noise (n_normals=, correlation=)"
        yield (
            f"The noise would limit a chain: the log estimate has variance {variance:.2g}, "
            f"{accepted}. Use {int(np.ceil(factor))} times as many simulations or particles, "
            f"n_replicates='auto'{remedy}."
        )
    elif variance < NEEDLESSLY_GOOD:
        yield (
            f"The estimates are better than they need to be, variance {variance:.2g}: a share "
            f"{factor:.2g} of the simulations or particles would do."
        )
    else:
        yield f"The noise is bearable: variance {variance:.2g}, {accepted}."
