"""A run's limits and their remedies as sentences, and whether its draws are enough.

The part of a sentence up to its first colon or full stop names the fault; the remedy follows.

References
----------
Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization,
folding, and localization: an improved R-hat for assessing convergence of MCMC. *Bayesian Analysis*
16, 667-718.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_kmc.likelihoods.replicates import (
    ENOUGH_ACCEPTANCE,
    MANY_ZEROS,
    TARGET_VARIANCE,
    remedy_of_zeros,
)
from pymc_kmc.likelihoods.simulations import MANY_FAILURES, MEANING_OF_FAILURES
from pymc_kmc.moves.noise_probe import TOO_NOISY
from pymc_kmc.runs import Phase, Run

# Largest R-hat, fewest effective draws, and fewest a chain, of convergence (Vehtari et al., 2021).
R_HAT_OF_CONVERGED = 1.01
FEWEST_EFFECTIVE, FEWEST_A_CHAIN = 400, 100


def enough_effective(n_chains: int) -> int:
    """Return the number of effective draws of all chains from which on figures are reliable."""
    return max(FEWEST_EFFECTIVE, FEWEST_A_CHAIN * n_chains)


@dataclass(frozen=True)
class Effective:
    """Convergence figures over all variables, with the names of the worst variables.

    `summary` has `r_hat`, `ess_bulk` and `ess_tail`. `slowest` has the fewest effective draws,
    `thinnest` the fewest in the tails; both are None if all variables are constant.
    """

    summary: dict[str, float]
    slowest: str | None
    thinnest: str | None

    @classmethod
    def of(cls, draws: xr.Dataset) -> "Effective":
        # A constant has no R-hat, and as many effective draws as draws; ArviZ warns of it.
        varying = {
            name: values
            for name, values in draws.data_vars.items()
            if np.issubdtype(values.dtype, np.number)
            and np.any(values.values != values.values[:1, :1])
        }
        if not varying:
            return cls({"r_hat": np.nan, "ess_bulk": np.nan, "ess_tail": np.nan}, None, None)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # elements that are constant
            summary = az.summary(xr.Dataset(varying), round_to="none").astype(float)
        fewest = summary[["ess_bulk", "ess_tail"]].min(axis=1)
        return cls(
            {
                "r_hat": float(summary["r_hat"].max()),
                "ess_bulk": float(summary["ess_bulk"].min()),
                "ess_tail": float(summary["ess_tail"].min()),
            },
            _variable_of_least(fewest),
            _variable_of_least(summary["ess_tail"]),
        )


def _variable_of_least(values: pd.Series) -> str | None:
    """Return the name of the variable with the least element; None if all are NaN."""
    return str(values.idxmin()).split("[")[0] if values.notna().any() else None


@dataclass(frozen=True)
class EvaluationCounts:
    """Numbers of the target's evaluations by this package's steps, by purpose.

    Attributes
    ----------
    learning : int or None
        Number before the chains, once for all of them; None if unknown.
    tuning : int or None
        Number over all chains while they tuned; None if unknown.
    drawing : int
        Number over all chains while they drew.
    """

    learning: int | None
    tuning: int | None
    drawing: int

    @classmethod
    def of(cls, run: Run) -> "EvaluationCounts":
        # A step that was learned beforehand was learned once for its chains.
        learning = _last(run.sampling, "kmc_n_learning_evaluations").max(axis=0)
        tuning = _last(run.sampling, "kmc_n_tuning_evaluations")
        if np.isnan(tuning).any() and run.tuning is not None:
            tuning = run.tuning.values("kmc_n_evaluations")
        drawing = run.sampling.values("kmc_n_evaluations")
        return cls(_total(learning), _total(tuning), int(np.nansum(drawing)))

    @property
    def known(self) -> int:
        return (self.learning or 0) + (self.tuning or 0) + self.drawing

    def __str__(self) -> str:
        parts = [
            (self.learning, "to learn, before the chains and once for all of them"),
            (self.tuning, "while chains tuned"),
            (self.drawing, "while they drew"),
        ]
        known = ", ".join(f"{n:,} {what}" for n, what in parts if n)
        unknown = " and ".join(what for n, what in parts if n is None)
        text = f"{self.known:,} evaluations: {known}." if known else "No evaluations."
        return f"{text} How many {unknown}, the run doesn't say." if unknown else text


def _last(phase: Phase, name: str) -> np.ndarray:
    return phase.values(name)[:, -1]


def _total(counts: np.ndarray) -> int | None:
    return None if np.isnan(counts).any() else int(counts.sum())


def verdict(
    effective: Effective, n_chains: int, doubts: Sequence[str], limits: Sequence[str]
) -> str:
    """Return a sentence about whether the draws can be used.

    `doubts` are findings that make the figures doubtful, `limits` causes of few effective draws.
    """
    figures, slowest = effective.summary, effective.slowest
    if slowest is None:
        return "Not yet: no variable has moved."
    r_hat, bulk, tail = (figures[name] for name in ("r_hat", "ess_bulk", "ess_tail"))
    fewest, where = (tail, " in its tails") if tail < bulk else (bulk, "")
    missing = []
    if r_hat > R_HAT_OF_CONVERGED:
        missing.append(f"R-hat is {r_hat:.3f}, above {R_HAT_OF_CONVERGED}")
    if not fewest >= (enough := enough_effective(n_chains)):
        missing.append(f"{slowest!r} has {fewest:.0f} effective draws{where}, fewer than {enough}")
    if missing:
        reasons = [*doubts, *limits]
        because = f", because {_clause(reasons[0])}" if reasons else ""
        return f"Not yet: {' and '.join(missing)}{because}."
    good = f"at least {fewest:.0f} effective draws of everything"
    good = f"R-hat is at most {r_hat:.3f}, with {good}" if r_hat == r_hat else good
    if doubts:
        return f"In doubt: {good}, but {_clause(doubts[0])}."
    if n_chains == 1:
        return f"Good, as far as one chain can tell: {good}. Whether chains agree takes several."
    return f"Good: {good}."


def _clause(finding: str) -> str:
    """Return a finding up to its first colon or full stop, as a clause within a sentence."""
    text = finding.split(": ")[0].split(". ")[0]
    return text[0].lower() + text[1:]


# Noise variance below which estimates cost more than they need to: 1 to 3 make the best use of
# evaluations (Doucet, Pitt, Deligiannidis and Kohn, 2015; Sherlock, Thiery, Roberts and Rosenthal,
# 2015).
NEEDLESSLY_GOOD = 0.1
# Iterations at one place that are many for a chain that noise allows to move.
LONG_STAY = 200
# Variance of the log estimate below which it doesn't hold a chain for long.
HARMLESS_NOISE = 1.0
# Ratio of a chain's noise variance to the others' median that is suspect: by chance, estimates of
# two chains from 10 pairs each (1000 iterations of tuning) reach it in one case of a thousand.
FAR_ABOVE = 10.0
# Share of the effective draws in bulk below which those in the tails are few.
FEW_IN_TAILS = 0.2
# Milliseconds of an evaluation from which on learning once, which takes seconds, saves time.
COSTLY = 1.0
# Share of the ideal acceptance below which the surrogate may limit a chain.
POOR_SHARE = 0.5
# Standard deviation of a surrogate's error, in nats, from which on it may limit a chain: with an
# error of variance 1 a perfect proposal is accepted in half of the cases.
LARGE_ERROR = 1.0
# Standard deviation of a useless surrogate's error, in nats: its proposals are accepted in 3 % of
# cases, which the random walks' acceptance hides.
USELESS_ERROR = 3.0
# Share of time besides the model's evaluations above which it is mentioned.
MOST_OWN_TIME = 0.8


def doubts(chains: pd.DataFrame, effective: Effective) -> Iterator[str]:
    """Yield reasons for doubt about the chains' figures, each with a remedy."""
    if effective.summary["r_hat"] > R_HAT_OF_CONVERGED:
        yield (
            "Chains disagree about the posterior: tune for longer and draw more; where they stay "
            "apart, some are confined to a part of it, and their effective sample sizes mean "
            "nothing."
        )
    if effective.slowest is None:
        yield "No variable has moved in any chain: these draws say nothing of the posterior."
    if chains["longest stay"].max() >= LONG_STAY:
        yield _of_stay(chains)
    noise = chains["noise variance"].groupby(level=0).max()  # of a chain's steps
    if len(noise) > 1 and noise.max() > HARMLESS_NOISE:
        rest = noise.drop(noise.idxmax())
        if noise.max() > FAR_ABOVE * rest.median():
            yield (
                f"Chain {noise.idxmax()} has far noisier estimates than the others, variance "
                f"{noise.max():.2g} for {rest.min():.2g} to {rest.max():.2g}: it tuned "
                "elsewhere, or met a few estimates that are far off. Compare its draws with the "
                "others' (kmc.plots.plot_noise shows where); tune for longer or start nearer, "
                "initvals={...}."
            )


def _of_stay(chains: pd.DataFrame) -> str:
    noise = chains["noise variance"].max()
    reason = (
        "The target is far above its surrogate there: tune for longer, or take the scale out of "
        "the parameters (non-centre a hierarchical model)."
    )
    if chains["zero estimates"].max() > MANY_ZEROS:
        reason = "Most proposals' estimates may have been zero, see below."
    elif noise > HARMLESS_NOISE:
        reason = "A lucky estimate of the likelihood does that: use more simulations or particles."
    elif chains["noise variance"].isna().any():
        reason = (
            "A lucky estimate of the likelihood does that, and so do proposals whose estimates are "
            "zero; kmc.estimate_noise(model, idata) says which. More simulations or particles help "
            "in both cases."
        )
    elif chains["random walks"].isna().all():
        reason = "Tune for longer, or start where the posterior has its mass: initvals={...}."
    return (
        f"A chain stayed at one place for {chains['longest stay'].max():.0f} iterations. {reason}"
    )


def limits(chains: pd.DataFrame, effective: Effective, others: frozenset[str]) -> Iterator[str]:
    """Yield causes of few effective draws, each with a remedy."""
    noise, zeros = chains["noise variance"].max(), chains["zero estimates"].max()
    ideal = chains["ideal"].min()
    is_too_noisy = noise > TOO_NOISY and not ideal > ENOUGH_ACCEPTANCE
    if zeros > MANY_ZEROS:
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
    if (short := chains["tuning"] < chains["tuning asked"]).any():
        tuned, asked = chains.loc[short, ["tuning", "tuning asked"]].iloc[0]
        yield (
            f"Tuning was shorter than the step asks for, {tuned:.0f} iterations for {asked:.0f}: "
            f"pm.sample(tune={asked:.0f})."
        )


def others(
    chains: pd.DataFrame, effective: Effective, evaluations: EvaluationCounts, is_limited: bool
) -> Iterator[str]:
    """Yield faults that limit no chain by themselves, each with a remedy."""
    if chains["invalid"].max() > 0:
        yield (
            f"The log density was NaN or +inf {chains['invalid'].sum():.0f} times: return -inf "
            "where a parameter is impossible or an estimate is zero."
        )
    failed = chains["failed simulations"].max()
    if failed >= MANY_FAILURES:
        yield f"{100 * failed:.0f} % of the simulations failed. {MEANING_OF_FAILURES}"
    noise = chains["noise variance"]
    if 0 < noise.max() < NEEDLESSLY_GOOD and not chains["zero estimates"].max() > 0:
        yield (
            f"The likelihood's estimates are better than they need to be, variance "
            f"{noise.max():.2g}: fewer simulations or particles would give more effective draws "
            "for the same cost."
        )
    elif noise.isna().any():
        yield (
            "The noise of the likelihood's estimates was not measured, which is done while tuning: "
            "tune for 1000 iterations, or see kmc.estimate_noise(model, idata)."
        )
    n_chains = chains.index.get_level_values(0).nunique()
    bulk, tail = effective.summary["ess_bulk"], effective.summary["ess_tail"]
    enough = enough_effective(n_chains)
    if bulk < enough:
        remedy = "mend the above first" if is_limited else "draw more"
        yield f"{min(bulk, tail):.0f} effective draws are few, {enough} would do: {remedy}."
    elif tail < max(enough, FEW_IN_TAILS * bulk):
        yield (
            f"The tails are less known than the middle: {effective.thinnest!r} has {tail:.0f} "
            f"effective draws there, for {bulk:.0f}. Draw more before you use its outer quantiles "
            "or intervals."
        )
    tuning = evaluations.tuning or 0
    learns_alone = chains["fits"].max() > 0 and evaluations.learning == 0
    is_costly = chains["evaluation ms"].mean() > COSTLY
    if learns_alone and is_costly and (is_limited or tuning > 0.5 * evaluations.known):
        yield (
            f"Each chain learned by itself, from some {tuning / n_chains:.0f} evaluations: "
            "kmc.KMC(kmc.learn(model)) learns once, for all chains, often from some hundred."
        )
    if chains["own share"].max() > MOST_OWN_TIME:
        text = (
            f"An evaluation takes {chains['evaluation ms'].mean():.2g} ms, less than a proposal of "
            "the step. Where the model has a gradient, NUTS will be faster"
        )
        # More kernel functions for a surrogate that is poor, fewer for one that is good enough.
        cheaper = "; where it hasn't, kmc.KMC(n_landmarks=100) makes cheaper proposals"
        yield f"{text}{'' if _is_poor(chains).any() else cheaper}."


def _of_surrogate(chains: pd.DataFrame, others: frozenset[str]) -> str:
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
    """Return for each chain whether its surrogate's error, more than the noise, limits it."""
    error, noise = chains["surrogate error"], chains["noise variance"]
    few = chains["acceptance"] < POOR_SHARE * chains["ideal"].fillna(1.0)
    # Noise that was not measured, NaN, may be all of the error.
    is_wrong = (error > LARGE_ERROR) & (error**2 > noise)
    return chains["random walks"].notna() & is_wrong & (few | (error > USELESS_ERROR))


def _is_short(chains: pd.DataFrame, effective: Effective) -> bool:
    n_chains = chains.index.get_level_values(0).nunique()
    fewest = min(effective.summary["ess_bulk"], effective.summary["ess_tail"])
    return fewest < enough_effective(n_chains)
