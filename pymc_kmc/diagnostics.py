r"""What limits a chain: noise, the surrogate, the chain's length, or what the model costs.

Effective sample size alone rewards a chain that is confined to half of the posterior. What can be
known is looked at in this order: whether chains agree (R-hat); whether they sat still for long;
how many of the likelihood's estimates are zero, how noisy the others are, and what acceptance
perfect proposals would have, measured where the chains were while tuning (under Gaussian noise it
is :math:`2 \Phi(-s / \sqrt 2)`: Pitt, Silva, Giordani and Kohn, 2012); how far fresh values are
from the surrogate; what other steps move; and where the time went.

References
----------
Pitt, M. K., Silva, R. dos S., Giordani, P. and Kohn, R. (2012). On some properties of Markov chain
Monte Carlo simulation methods based on the particle filter. *Journal of Econometrics* 171, 134-151.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_kmc import notebook
from pymc_kmc.likelihoods.n_replicates import (
    ENOUGH_ACCEPTANCE,
    MANY_ZEROS,
    TARGET_VARIANCE,
    remedy_of_zeros,
)
from pymc_kmc.likelihoods.simulations import MANY_FAILURES, MEANING_OF_FAILURES
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.runs import Phase, Run

# Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021): R-hat below 1.01, 100 draws a chain.
LARGEST_R_HAT = 1.01
FEWEST_EFFECTIVE = 100
# Noise variances: above the first a chain sticks; below the second, estimates are better than they
# need to be. In between is where an evaluation's cost is used best (Doucet, Pitt, Deligiannidis and
# Kohn, 2015; Sherlock, Thiery, Roberts and Rosenthal, 2015: 1 to 3).
TOO_NOISY, NEEDLESSLY_GOOD = 3.0, 0.1
# A stay that is long for a chain that noise allows to move.
LONG_STAY = 200
# Variance of the log estimate below which it doesn't hold a chain for long.
HARMLESS_NOISE = 1.0
# Share of the ideal acceptance below which the surrogate may be what limits a chain.
POOR_SHARE = 0.5
# Standard deviation of a surrogate's error, in nats, from which on it may limit a chain: with an
# error of variance 1 a perfect proposal is accepted in half of the cases.
LARGE_ERROR = 1.0
# Standard deviation, in nats, of a surrogate that says nothing of the target: its proposals are
# accepted in 3 % of cases, and those of random walks hide it.
USELESS_ERROR = 3.0
# Levels of the quantiles one standard deviation from a Gaussian's median.
ONE_SD = (0.1587, 0.8413)
# Share of the time spent besides the model's evaluations above which it is worth mentioning.
MOST_OWN_TIME = 0.8
# The table's rows: a mouse over them shows these.
MEANINGS = {
    "evaluations": "evaluations of the target a draw",
    "acceptance": "share of draws that moved",
    "ideal": "acceptance rate of perfect proposals under the likelihood's noise",
    "noise variance": "variance of the log likelihood's estimate",
    "zero estimates": "share of the likelihood's estimates that were zero, while tuning",
    "failed simulations": "share of simulations with NaN or infinite results, of weight 0",
    "surrogate error": "standard deviation of fresh values around the surrogate, noise left out",
    "longest stay": "iterations at one place",
    "invalid": "evaluations that were NaN or +inf",
    "fits": "of the surrogate, 0 where it was given",
    "random walks": "their share of the moves",
    "transitions": "on the surrogate for each evaluation of the target",
    "evaluation ms": "milliseconds of one evaluation",
    "own share": "share of the time that the step itself took",
}


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found.

    Attributes
    ----------
    chains : pandas.DataFrame
        One row a chain and step, with the columns described at :func:`diagnose`.
    posterior : dict of str to float
        `r_hat`, the largest, and `ess_bulk`, `ess_tail`, the smallest over all variables.
    findings : tuple of str
        What limits the chains, and the remedy; empty where nothing was found.
    """

    chains: pd.DataFrame
    posterior: dict[str, float]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        table = self.chains.T.to_string(float_format=lambda value: f"{value:.3g}")
        posterior = ", ".join(f"{name} {value:.4g}" for name, value in self.posterior.items())
        findings = "\n".join(f"- {finding}" for finding in self.findings)
        return f"{table}\n{posterior}\n{findings or 'Nothing to complain of.'}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        checks = {
            "r_hat": ("largest R-hat", self.posterior["r_hat"] <= LARGEST_R_HAT),
            "ess_bulk": ("smallest bulk ESS", self._is_enough("ess_bulk")),
            "ess_tail": ("smallest tail ESS", self._is_enough("ess_tail")),
        }
        table = self.chains.T.dropna(how="all")  # rows that say nothing
        table.columns = [
            f"chain {key[0]}, step {key[1]}" if isinstance(key, tuple) else f"chain {key}"
            for key in self.chains.index
        ]
        return notebook.result(
            notebook.figures(
                (f"{self.posterior[name]:.4g}", label, is_good)
                for name, (label, is_good) in checks.items()
                if not np.isnan(self.posterior[name])  # one chain has no R-hat
            ),
            notebook.sentences(self.findings, if_none="Nothing to complain of."),
            notebook.table(table, meanings=MEANINGS),
        )

    @property
    def _n_chains(self) -> int:
        return self.chains.index.get_level_values(0).nunique()

    def _is_enough(self, name: str) -> bool:
        return self.posterior[name] / self._n_chains >= FEWEST_EFFECTIVE


def diagnose(idata: Any) -> Diagnosis:
    r"""Say what limits the chains of this package's steps, and what to do about it.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        What `pm.sample` returned, or what `arviz.from_netcdf` has loaded of it.

    Returns
    -------
    Diagnosis
        Prints as a table and a list, and shows in a notebook. The table's columns: `evaluations`,
        of the target a draw; `acceptance`, the share of draws that moved; `ideal`, the acceptance
        rate that perfect proposals would have under the likelihood's noise; `noise variance`, of
        the log estimate; `zero estimates`, the share of estimates that were zero where the chain
        was while tuning; `failed simulations`, the share of a chain's simulations that had NaN or
        infinite results; `surrogate error`, the standard deviation, in nats, of fresh values around
        the surrogate, noise left out; `longest stay`, iterations at one place; `invalid`,
        evaluations that were NaN or +inf; `fits` of the surrogate, 0 where it was given;
        `random walks`, their share of the moves; `transitions`, on the surrogate for each
        evaluation of the target; `evaluation ms`, of one evaluation; `own share`, of the time that
        the step itself took. What a step doesn't report, or was never measured, is NaN.

    Raises
    ------
    ValueError
        If `idata` has no statistics of this package's steps.

    Examples
    --------
    >>> import pymc as pm, pymc_kmc as kmc
    >>> with pm.Model():
    ...     x = pm.Normal("x")
    ...     step = kmc.AdaptiveMetropolis()
    ...     idata = pm.sample(20, tune=50, step=step, chains=1, random_seed=1, progressbar=False)
    >>> kmc.diagnose(idata).findings[-1]
    '... effective draws a chain are few: draw more.'
    """
    sampling = Run.of(idata).sampling
    chains = _chains(sampling)
    effective = _effective(sampling.posterior)
    others = _moved_by_others(sampling)
    findings = tuple(_findings(chains, effective, others))
    return Diagnosis(chains, effective.summary, findings)


@dataclass(frozen=True)
class Effective:
    """Convergence figures over all variables, and where they are worst.

    Attributes
    ----------
    summary : dict of str to float
        `r_hat`, `ess_bulk`, `ess_tail`.
    slowest : str or None
        Name of the variable with the fewest effective draws; None if all are constant.
    """

    summary: dict[str, float]
    slowest: str | None


def _effective(draws: xr.Dataset) -> Effective:
    # A constant has no R-hat, and as many effective draws as there are draws; ArviZ warns of it.
    varying = {
        name: values
        for name, values in draws.data_vars.items()
        if np.issubdtype(values.dtype, np.number) and _varies(values.values)
    }
    if not varying:
        return Effective({"r_hat": np.nan, "ess_bulk": np.nan, "ess_tail": np.nan}, None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # elements that are constant
        summary = az.summary(xr.Dataset(varying), round_to="none").astype(float)
    fewest = summary[["ess_bulk", "ess_tail"]].min(axis=1)
    return Effective(
        {
            "r_hat": float(summary["r_hat"].max()),
            "ess_bulk": float(summary["ess_bulk"].min()),
            "ess_tail": float(summary["ess_tail"].min()),
        },
        str(fewest.idxmin()).split("[")[0] if fewest.notna().any() else None,
    )


def _varies(values: np.ndarray) -> bool:
    """Say whether an element of a variable's draws (chain, draw, ...) is not the same in all."""
    return bool(np.any(values != values[:1, :1]))


def _moved_by_others(sampling: Phase) -> frozenset[str]:
    """Return names of variables that changed where this package's steps rejected."""
    accepted = np.asarray(sampling.values("kmc_accepted").astype(bool).any(axis=2))
    still = ~accepted[:, 1:]
    moved = set()
    for name, values in sampling.posterior.data_vars.items():
        before, after = values.values[:, :-1], values.values[:, 1:]
        changed = (before != after) & ((before == before) | (after == after))  # NaN stays NaN
        if np.any(changed.any(axis=tuple(range(2, changed.ndim))) & still):
            moved.add(str(name))
    return frozenset(moved)


def _chains(sampling: Phase) -> pd.DataFrame:
    values = sampling.values
    n_chains, _, n_steps = sampling.shape
    # Of the steps on a surrogate: the others have one kind of move.
    moves = np.where(np.isnan(values("kmc_n_fits")), np.nan, values("kmc_move"))
    is_random_walk = np.where(np.isnan(moves), np.nan, moves == MoveKind.RANDOM_WALK)
    evaluation, own = values("kmc_evaluation_time"), values("kmc_proposal_time")
    noise = values("kmc_noise_variance")[:, -1]
    columns = {
        "evaluations": values("kmc_n_evaluations").mean(axis=1),
        "acceptance": values("kmc_accepted").mean(axis=1),
        "ideal": values("kmc_ideal_acceptance")[:, -1],
        "noise variance": noise,
        "zero estimates": values("kmc_zero_share")[:, -1],
        "failed simulations": values("kmc_failed_share")[:, -1],
        "surrogate error": _surrogate_errors(values("kmc_prediction_error"), noise),
        "longest stay": values("kmc_steps_since_accept").max(axis=1),
        "invalid": values("kmc_n_invalid")[:, -1],
        "fits": values("kmc_n_fits")[:, -1],
        "random walks": is_random_walk.mean(axis=1),
        "transitions": values("kmc_n_transitions").mean(axis=1),
        "evaluation ms": 1e3 * evaluation.mean(axis=1),
        "own share": own.sum(axis=1) / (own + evaluation).sum(axis=1),
    }
    names = ["chain"] if n_steps == 1 else ["chain", "step"]
    rows = [(chain, step)[: len(names)] for chain in range(n_chains) for step in range(n_steps)]
    index = pd.MultiIndex.from_tuples(rows, names=names)
    index = index.get_level_values(0) if n_steps == 1 else index
    return pd.DataFrame({name: column.ravel() for name, column in columns.items()}, index=index)


def _surrogate_errors(errors: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the standard deviation of fresh values around the surrogate, without the noise's.

    Parameters
    ----------
    errors : ndarray, shape (chain, draw, step)
        NaN where nothing was predicted.
    noise : ndarray, shape (chain, step)
        Variance of the log estimate; NaN counts as 0.

    Returns
    -------
    ndarray, shape (chain, step)
        From the quantiles one standard deviation from the median: single proposals may be far off.
    """
    errors = np.where(np.isfinite(errors), errors, np.nan)
    found = np.full(noise.shape, np.nan)
    for index in np.ndindex(*noise.shape):
        finite = errors[index[0], :, index[1]]
        finite = finite[~np.isnan(finite)]
        if len(finite):
            low, high = np.quantile(finite, ONE_SD)
            variance = (0.5 * (high - low)) ** 2 - np.nan_to_num(noise[index])
            found[index] = np.sqrt(max(0.0, variance))
    return found


def _findings(chains: pd.DataFrame, effective: Effective, others: frozenset[str]) -> Iterator[str]:
    limits = [*_limits(chains, effective, others)]
    yield from limits
    if chains["invalid"].max() > 0:
        yield (
            f"The log density was NaN or +inf {chains['invalid'].sum():.0f} times: return -inf "
            "where a parameter is impossible or an estimate is zero."
        )
    failed = chains["failed simulations"].max()
    if failed >= MANY_FAILURES:
        yield f"{100 * failed:.0f} % of the simulations failed. {MEANING_OF_FAILURES}"
    posterior = effective.summary
    n_chains = chains.index.get_level_values(0).nunique()
    fewest = min(posterior["ess_bulk"], posterior["ess_tail"]) / n_chains
    if fewest < FEWEST_EFFECTIVE:
        remedy = "mend the above first" if limits else "draw more"
        yield f"{fewest:.0f} effective draws a chain are few: {remedy}."
    if chains["own share"].max() > MOST_OWN_TIME:
        text = (
            f"An evaluation takes {chains['evaluation ms'].mean():.2g} ms, less than a proposal of "
            "the step. Where the model has a gradient, NUTS will be faster"
        )
        # More kernel functions for a surrogate that is poor, fewer for one that is good enough.
        cheaper = "; where it hasn't, kmc.KMC(n_landmarks=100) makes cheaper proposals"
        yield f"{text}{'' if _is_poor(chains).any() else cheaper}."


def _limits(chains: pd.DataFrame, effective: Effective, others: frozenset[str]) -> Iterator[str]:
    """Yield what holds chains up, each with a remedy."""
    noise, zeros = chains["noise variance"].max(), chains["zero estimates"].max()
    ideal = chains["ideal"].min()
    has_many_zeros = zeros > MANY_ZEROS
    is_too_noisy = noise > TOO_NOISY and not ideal > ENOUGH_ACCEPTANCE
    if effective.summary["r_hat"] > LARGEST_R_HAT:
        yield (
            f"R-hat is {effective.summary['r_hat']:.3f}: chains disagree about the posterior. Tune "
            "for longer and draw more; where they stay apart, some are confined to a part of it, "
            "and their effective sample sizes mean nothing."
        )
    if effective.slowest is None:
        yield "No variable has moved in any chain: these draws say nothing of the posterior."
    is_unmeasured = chains["noise variance"].isna().any()
    if chains["longest stay"].max() >= LONG_STAY:
        reason = (
            "The target is far above its surrogate there: tune for longer, or take the scale out "
            "of the parameters (non-centre a hierarchical model)."
        )
        if has_many_zeros:
            reason = "Most proposals' estimates may have been zero, see the next point."
        elif noise > HARMLESS_NOISE:
            reason = (
                "A lucky estimate of the likelihood does that: use more simulations or particles."
            )
        elif is_unmeasured:
            reason = (
                "A lucky estimate of the likelihood does that, and so do proposals whose estimates "
                "are zero; kmc.estimate_noise(model, idata) says which. More simulations or "
                "particles help in both cases."
            )
        elif chains["random walks"].isna().all():
            reason = "Tune for longer, or start where the posterior has its mass: initvals={...}."
        yield (
            f"A chain stayed at one place for {chains['longest stay'].max():.0f} iterations. "
            f"{reason}"
        )
    if has_many_zeros:
        yield (
            f"Zeros limit the chains: {100 * zeros:.0f} % of the likelihood's estimates were zero "
            f"where the chains were while tuning. {remedy_of_zeros(zeros)}"
        )
    elif is_too_noisy:
        factor = np.ceil(noise / TARGET_VARIANCE)
        yield (
            f"Noise limits the chains: the log of the likelihood's estimate has variance "
            f"{noise:.2g} where the chains are, and perfect proposals would be accepted in "
            f"{100 * ideal:.0f} % of cases. Use {factor:.0f} times as many "
            "simulations or particles, n_replicates='auto' (n_simulations='auto' with a "
            "simulator), or correlated noise (n_normals=, correlation=); "
            "kmc.estimate_noise(model, idata) tries them out."
        )
    elif 0 < noise < NEEDLESSLY_GOOD and not zeros > 0:
        yield (
            f"The likelihood's estimates are better than they need to be, variance {noise:.2g}: "
            "fewer simulations or particles would give more effective draws for the same cost."
        )
    elif is_unmeasured:
        yield (
            "The noise of the likelihood's estimates was not measured, which is done while tuning: "
            "tune for 1000 iterations, or see kmc.estimate_noise(model, idata)."
        )
    poor = _is_poor(chains)
    others_slow = bool(others) and effective.slowest in others
    if others_slow and _is_short(chains, effective):
        yield (
            f"{effective.slowest!r} has the fewest effective draws, and another step moves it: "
            "that step limits the chains. Let one step move all continuous variables, kmc.KMC() "
            "without vars, or give that step more iterations or a better proposal."
        )
    elif poor.any():
        yield _of_surrogate(chains[poor], others)


def _of_surrogate(chains: pd.DataFrame, others: frozenset[str]) -> str:
    """Return a sentence about chains whose surrogate is poor."""
    ideal = chains["ideal"].min()
    facts = (
        f"its error at fresh values has standard deviation {chains['surrogate error'].max():.2g} "
        f"nats, and acceptance is {chains['acceptance'].min():.2f}"
        + (f" where perfect proposals would have {ideal:.2f}" if ideal == ideal else "")
    )
    if others:
        return (
            f"Other steps limit the surrogate: they move {', '.join(sorted(others))}, on which it "
            f"may depend; {facts}. Let one step move all continuous variables: kmc.KMC() without "
            "vars."
        )
    if not chains["fits"].max() > 0:
        return (
            f"The given surrogate is not of this posterior: {facts}. Leave surrogate= out and "
            "tune, or fit it to more points."
        )
    return (
        f"The surrogate limits {'the chain' if len(chains) == 1 else 'chains'}: {facts}. Tune for "
        "longer; give it more kernel functions, kmc.KMC(n_landmarks=600); or reparametrise what "
        "is strongly curved."
    )


def _is_poor(chains: pd.DataFrame) -> pd.Series:
    """Say of which chains the surrogate is what limits them.

    Its error must be more than noise's: what limits a chain under much noise is the noise. Noise
    that was not measured, NaN, may be all of it.
    """
    error, noise = chains["surrogate error"], chains["noise variance"]
    few = chains["acceptance"] < POOR_SHARE * chains["ideal"].fillna(1.0)
    is_wrong = (error > LARGE_ERROR) & (error**2 > noise)
    return chains["random walks"].notna() & is_wrong & (few | (error > USELESS_ERROR))


def _is_short(chains: pd.DataFrame, effective: Effective) -> bool:
    n_chains = chains.index.get_level_values(0).nunique()
    fewest = min(effective.summary["ess_bulk"], effective.summary["ess_tail"])
    return fewest < n_chains * FEWEST_EFFECTIVE
