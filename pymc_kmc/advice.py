r"""Measurement of a likelihood's noise before sampling.

Under Gaussian noise of variance s^2 in the log estimate, perfect proposals are accepted at the rate
:math:`2 \Phi(-s / \sqrt 2)` (Pitt, Silva, Giordani and Kohn, 2012). A variance between 1 and 2
makes the best use of the simulations (Doucet, Pitt, Deligiannidis and Kohn, 2015).

References
----------
Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of Markov
chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

Pitt, M. K., Silva, R. dos S., Giordani, P. and Kohn, R. (2012). On some properties of Markov chain
Monte Carlo simulation methods based on the particle filter. *Journal of Econometrics* 171, 134-151.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from pymc.initial_point import make_initial_point_fn

from pymc_kmc import notebook
from pymc_kmc.findings import NEEDLESSLY_GOOD, TOO_NOISY
from pymc_kmc.likelihoods.checks import check_model, is_positive_integer
from pymc_kmc.likelihoods.replicates import (
    LARGEST_FACTOR,
    LEAST_FINITE,
    N_ESTIMATES,
    NEAR_ENOUGH,
    TARGET_VARIANCE,
    choose_n_replicates,
    remedy_of_zeros,
)
from pymc_kmc.model.target import TargetDensity
from pymc_kmc.moves.noise_probe import ideal_acceptance
from pymc_kmc.numerics.checks import check_rng
from pymc_kmc.runs import Run, stacked_draws

# Number of draws of a given run at which noise is measured.
N_MEASURED = 10
# Calls of the user's function in the search for numbers of replicates, at most, as a multiple of
# the measurement's.
SEARCH_BUDGET = 20


@dataclass(frozen=True)
class NoiseEstimate:
    """Noise of a model's likelihood, the result of :func:`pymc_kmc.estimate_noise`.

    Attributes
    ----------
    likelihoods : pandas.DataFrame
        A row for each noisy likelihood and one, "total", for their sum; see
        :func:`pymc_kmc.estimate_noise` for the columns.
    variance : float
        The total of the column `of proposals`, which determines acceptance.
    ideal_acceptance : float
        Acceptance rate of perfect proposals under this noise.
    factor : float
        Factor on the number of simulations, particles or replicates that brings the variance to
        about 2. It is measured if replicates can be chosen; else the variance is assumed to be
        inversely proportional to their number.
    advice : tuple of str
        Sentences about whether the noise limits a chain, and about remedies.
    """

    likelihoods: pd.DataFrame
    variance: float
    ideal_acceptance: float
    factor: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        table = self.likelihoods.T.to_string(float_format=lambda value: f"{value:.3g}")
        return "\n".join([table, *(f"- {line}" for line in self.advice)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.result(notebook.sentences(self.advice), notebook.table(self.likelihoods.T))


def estimate_noise(
    model: pm.Model,
    at: Any = None,
    n: int = 100,
    *,
    random_seed: np.random.Generator | int | None = None,
) -> NoiseEstimate:
    r"""Measure the noise of a model's likelihood, at one point or at draws of a chain.

    Parameters
    ----------
    model : pymc.Model
        Model with a :func:`pymc_kmc.PseudoMarginalPotential` or another noisy likelihood of this
        package, or a `pymc.Simulator`.
    at : dict of str to array_like, or a result of `pm.sample`, optional
        Places at which the noise is measured: ten draws of a run of this model, even a short one,
        since the noise at the chain's states matters. Before the first run, values of variables by
        name, as the `initvals` of `pymc.sample`, where the posterior has its mass; variables left
        out are at the model's initial point.
    n : int
        Number of estimates, doubled with correlated noise. The search for the number of replicates
        makes up to 20 times as many calls of the estimator. The relative standard error of the
        variance is :math:`\sqrt{2 / n}`, .14 at 100.
    random_seed : numpy.random.Generator, int or None
        Generator or seed of the estimates' noise.

    Returns
    -------
    NoiseEstimate
        Prints as a table and a list. The table's rows:

        - `replicates`: number of replicates an estimate; "auto" begins with 1.
        - `variance`: variance of the log estimate under independent noise.
        - `of proposals`: half the mean squared difference between the log estimates of a proposal
          and of the chain's state at one point: `variance`, unless noise is correlated.
        - `ideal acceptance`: acceptance rate of perfect proposals.
        - `zero`, `invalid`: shares of estimates whose log is -inf, and whose log is NaN or +inf.
          The variances are those of the other estimates.
        - `seconds`: time of an estimate.
        - `suggested replicates`: number of replicates that brings the total's `of proposals` to 2,
          found by a search; beyond its budget and with a `pymc.Simulator` the variance is assumed
          to be inversely proportional to the number.

        At draws of a run, variances and shares are means over these draws.

    Raises
    ------
    ValueError
        If the model has no noisy likelihood or no continuous variable, or `at` has unknown names or
        wrong shapes, or is a run of another model.
    pymc.exceptions.SamplingError
        If the place is impossible, whatever the estimate.
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
    >>> noise = kmc.estimate_noise(model, {"x": 0.5}, random_seed=1)
    >>> 4 < noise.variance < 9
    True
    >>> print(noise.advice[0])
    The noise would limit a chain: ...
    """
    if not is_positive_integer(n) or n == 1:
        raise ValueError(f"n must be a whole number, 2 or more, got {n!r}.")
    model, rng = check_model(model), check_rng(random_seed, "random_seed")
    points = points_of(model, at)
    target = noisy_target(model, points[0])
    noise_of_the_model = target.borrow()
    n_each = max(2, -(-n // len(points)))
    try:
        target.start_chain(rng)
        measured = measured_at(points, target, n_each, rng)
        total = LogEstimates.total(measured)
        excess = total.excess / TARGET_VARIANCE
        # At a run's middle draw: a search at each would cost ten times as much.
        terms = target.noisy_terms(points[len(points) // 2])
        suggested = [
            suggested_number(term, estimates, excess, rng)
            for term, estimates in zip(terms, measured, strict=True)
        ]
        failures = [record.failures() for record in target.simulations]
    finally:
        target.give_back(noise_of_the_model)
    factor = np.sum(suggested) / total.n_replicates
    if factor == 1.0 and not 1.0 / NEAR_ENOUGH <= excess <= NEAR_ENOUGH:
        factor = total.proposal_variance / TARGET_VARIANCE  # of particles in an estimate
    rows = [each.row(number) for each, number in zip(measured, suggested, strict=True)]
    rows.append(total.row(np.sum(suggested)))
    table = pd.DataFrame(rows, index=[*(term.name for term in terms), "total"])
    return NoiseEstimate(
        table,
        total.proposal_variance,
        total.ideal_acceptance,
        float(factor),
        tuple(filter(None, [*advise(total, factor, is_of_run=len(points) > 1), *failures])),
    )


def noisy_target(model, point):
    """Return a model's TargetDensity; a ValueError if nothing varies or no likelihood is noisy."""
    if not model.continuous_value_vars:
        raise ValueError(
            "The model has no free continuous variables, which the steps of pymc_kmc move and "
            f"estimate_noise needs; it has {[each.name for each in model.free_RVs]}. To measure "
            'the noise add one without effect, pm.Normal("unused").'
        )
    target = TargetDensity(model.continuous_value_vars, model, point)
    if not target.is_noisy:
        raise ValueError(
            "The model has no noisy likelihood: it needs a kmc.PseudoMarginalPotential or another "
            "noisy likelihood of this package, or a pm.Simulator. An exact likelihood has "
            "variance 0."
        )
    return target


def points_of(model, at):
    """Return points for the measurement: one, or draws of a run, which must have all variables."""
    # What pm.sample returned is a mapping, and its group posterior, too.
    is_run = hasattr(at, "posterior") or isinstance(at, xr.Dataset | xr.DataTree)
    if at is None or (isinstance(at, Mapping) and not is_run):
        return [complete_point(model, at)]
    draws = Run.draws_of(at, "at", "a dict of values by the variables' names, ")
    missing = sorted(variable.name for variable in model.free_RVs if variable.name not in draws)
    if missing:
        raise ValueError(
            f"at has no draws of {missing}: give a run of this model, or values of variables."
        )
    stacked = stacked_draws(draws)
    n = draws.sizes["chain"] * draws.sizes["draw"]
    names = [variable.name for variable in model.free_RVs]
    return [
        complete_point(model, {name: stacked[name][i] for name in names})
        for i in np.unique(np.linspace(0, n - 1, N_MEASURED).round().astype(int))
    ]


def measured_at(points, target, n, rng):
    """Return LogEstimates of each noisy term of the TargetDensity, n at each of the points."""
    parts = []
    for place in points:
        if target.current(place).log_likelihood_estimate == 0.0:
            target.check_start(place)  # where the rest is impossible, nothing is estimated
        parts.append([LogEstimates.of(term, n, rng) for term in target.noisy_terms(place)])
    return [LogEstimates.pooled(part) for part in zip(*parts, strict=True)]


def suggested_number(term, measured, excess, rng):
    """Return the number of replicates of a NoisyTerm that brings the total's variance to about 2.

    `measured` has the term's LogEstimates. `excess` is the total's variance over 2, infinite if
    many estimates are zero. The result is NaN if the variance is unknown.
    """
    n = term.n_replicates
    if np.isnan(excess):
        return np.nan
    if term.fewest is None or 1.0 / NEAR_ENOUGH <= excess <= NEAR_ENOUGH:
        is_known = np.isfinite(excess)
        return (
            max(1.0, np.ceil(n * (excess if term.fewest is None else 1.0))) if is_known else np.nan
        )
    budget = SEARCH_BUDGET * measured.first.size * n
    # The number at hand was measured already, with more estimates than the search makes.
    start = n * np.clip(excess, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR)
    start = max(term.fewest, int(np.ceil(start)))
    if start == n or start * N_ESTIMATES > budget:
        return start

    def log_estimates(number):
        nonlocal budget
        budget -= number * N_ESTIMATES
        noise = term.noise.draw(number, rng)
        while True:
            yield term.log_estimate(noise)
            noise = term.noise.renew(noise, rng)

    # Its share of the total variance stays what it is.
    wanted = measured.excess / excess if np.isfinite(excess) else TARGET_VARIANCE
    return choose_n_replicates(
        log_estimates, start, wanted, term.fewest, is_allowed=lambda k: k * N_ESTIMATES <= budget
    )[0]


def complete_point(model, point):
    """Return the model's initial point, unconstrained, with the values of `point`."""
    if point is None:
        return model.initial_point()
    shapes = model.eval_rv_shapes()
    unknown = sorted(set(point) - set(shapes) - {other.name for other in model.deterministics})
    if unknown:
        raise ValueError(
            f"at has {unknown}, which are not variables of the model. Its variables are "
            f"{sorted(shapes)}."
        )
    values = {name: np.asarray(point[name]) for name in shapes if name in point}
    for name, value in values.items():
        if value.shape != tuple(shapes[name]):
            raise ValueError(
                f"at has a value of {name!r} of shape {value.shape}; it must have shape "
                f"{tuple(shapes[name])}."
            )
    return make_initial_point_fn(model=model, overrides=values)(0)


@dataclass
class LogEstimates:
    """Log estimates (k, n) of one noisy term, or of a sum of terms, n at each of k points.

    `first` are under independent noise, `second` under that noise renewed as in a proposal.
    `seconds` and `n_replicates` are those of an estimate. `is_correlated` says whether renewed
    noise depends on the noise before.
    """

    first: np.ndarray
    second: np.ndarray
    seconds: float
    n_replicates: int
    is_correlated: bool

    @classmethod
    def of(cls, term, n, rng):
        noise = [term.noise.draw(term.n_replicates, rng) for _ in range(n)]
        begin = perf_counter()
        first = np.array([term.log_estimate(one) for one in noise])
        seconds = (perf_counter() - begin) / n
        is_correlated = bool(term.noise.correlation)
        if is_correlated:
            renewed = (term.noise.renew(one, rng) for one in noise)
            second = np.array([term.log_estimate(one) for one in renewed])
        else:
            second = np.roll(first, 1)  # independent pairs without further estimates
        return cls(first[None], second[None], seconds, term.n_replicates, is_correlated)

    @classmethod
    def pooled(cls, parts):
        last = parts[-1]
        return cls(
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.second for part in parts]),
            float(np.mean([part.seconds for part in parts])),
            last.n_replicates,
            last.is_correlated,
        )

    @classmethod
    def total(cls, terms):
        with np.errstate(invalid="ignore"):  # inf - inf
            first = np.sum([term.first for term in terms], axis=0)
            second = np.sum([term.second for term in terms], axis=0)
        return cls(
            first,
            second,
            seconds=sum(term.seconds for term in terms),
            n_replicates=sum(term.n_replicates for term in terms),
            is_correlated=any(term.is_correlated for term in terms),
        )

    @property
    def variance(self):
        """Mean over points of the finite log estimates' variance; NaN with too few of them."""
        finite = [row[np.isfinite(row)] for row in self.first]
        found = [row.var(ddof=1) for row in finite if len(row) > 1]
        return float(np.mean(found)) if found else np.nan

    @property
    def proposal_variance(self):
        """Half the mean squared difference of finite pairs; NaN without any."""
        if not self.is_correlated:
            return self.variance
        finite = np.isfinite(self.first) & np.isfinite(self.second)
        differences = self.first[finite] - self.second[finite]
        return float(0.5 * np.mean(differences**2)) if len(differences) else np.nan

    @property
    def excess(self):
        """The proposals' variance, infinite if more than a tenth of the estimates are zero."""
        if self.zero > 1.0 - LEAST_FINITE and self.zero < 1.0:
            return np.inf
        return self.proposal_variance

    @property
    def zero(self):
        return float(np.mean(self.first == -np.inf))

    @property
    def invalid(self):
        return float(np.mean(np.isnan(self.first) | (self.first == np.inf)))

    @property
    def ideal_acceptance(self):
        """Acceptance rate of perfect proposals, with zero and invalid estimates as rejections."""
        return (1.0 - self.zero - self.invalid) * ideal_acceptance(self.proposal_variance)

    def row(self, suggested):
        return {
            "replicates": self.n_replicates,
            "variance": self.variance,
            "of proposals": self.proposal_variance,
            "ideal acceptance": self.ideal_acceptance,
            "zero": self.zero,
            "invalid": self.invalid,
            "seconds": self.seconds,
            "suggested replicates": suggested,
        }


def advise(total: LogEstimates, factor: float, is_of_run: bool) -> Iterator[str]:
    has_many_zeros = total.zero > 1.0 - LEAST_FINITE
    accepted = (
        f"perfect proposals would be accepted in {100 * total.ideal_acceptance:.0f} % of cases"
    )
    if total.invalid:
        yield (
            f"{100 * total.invalid:.0f} % of the estimates were NaN or +inf: such proposals are "
            "rejected. Return -inf where the estimate is zero."
        )
    if total.zero:
        yield (
            f"{100 * total.zero:.0f} % of the estimates were zero, their log -inf: "
            + (
                remedy_of_zeros(total.zero, factor)
                if has_many_zeros
                else "more replicates make that rarer."
            )
            + " The variance given here is that of the others."
        )
    variance = total.proposal_variance
    if np.isnan(variance):
        yield "No variance can be given: take a point where the posterior has its mass."
    elif variance > TOO_NOISY:
        remedy = "" if total.is_correlated else " or correlated noise (n_normals=, correlation=)"
        yield (
            f"The noise would limit a chain: the log estimate has variance {variance:.2g}, "
            f"{accepted}. Use {int(np.ceil(factor))} times as many simulations or particles, "
            f"n_replicates='auto' (n_simulations='auto' with a simulator){remedy}."
        )
    elif has_many_zeros:
        return
    elif variance < NEEDLESSLY_GOOD and factor == 1.0:
        yield f"The noise is small, variance {variance:.2g}, with the fewest replicates."
    elif variance < NEEDLESSLY_GOOD:
        yield (
            f"The estimates are better than they need to be, variance {variance:.2g}: a share of "
            f"{factor:.2g} of the simulations or particles would do."
        )
    else:
        yield f"The noise is bearable: variance {variance:.2g}, {accepted}."
    if not is_of_run and variance <= TOO_NOISY:
        yield (
            "Noise depends on the place: after a short run, kmc.estimate_noise(model, idata) "
            "measures it where the chain was."
        )
