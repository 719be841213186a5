"""Sentences about the limits of chains and their remedies, from the figures of a run.

The part of a sentence up to its first colon or full stop names the fault; the remedy follows.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pymc_kmc.likelihoods.n_replicates import (
    ENOUGH_ACCEPTANCE,
    MANY_ZEROS,
    TARGET_VARIANCE,
    remedy_of_zeros,
)
from pymc_kmc.likelihoods.simulations import MANY_FAILURES, MEANING_OF_FAILURES
from pymc_kmc.moves.noise_probe import TOO_NOISY
from pymc_kmc.verdict import LARGEST_R_HAT, Effective, EvaluationCounts, enough_effective

# Noise variance below which estimates are better than they need to be: between it and TOO_NOISY an
# evaluation's cost is used best (Doucet, Pitt, Deligiannidis and Kohn, 2015; Sherlock, Thiery,
# Roberts and Rosenthal, 2015: 1 to 3).
NEEDLESSLY_GOOD = 0.1
# A stay that is long for a chain that noise allows to move.
LONG_STAY = 200
# Variance of the log estimate below which it doesn't hold a chain for long.
HARMLESS_NOISE = 1.0
# Ratio of a chain's noise variance to the median of the others' from which on it is far above: two
# chains that tuned for 1000 iterations, 10 pairs of estimates, differ as much by Gaussian noise
# in one case of a thousand.
FAR_ABOVE = 10.0
# Share of the effective draws of the middle below which the tails are much less known.
FEW_IN_TAILS = 0.2
# Milliseconds of an evaluation from which on learning once, some seconds, saves time.
COSTLY = 1.0
# Share of the ideal acceptance below which the surrogate may be what limits a chain.
POOR_SHARE = 0.5
# Standard deviation of a surrogate's error, in nats, from which on it may limit a chain: with an
# error of variance 1 a perfect proposal is accepted in half of the cases.
LARGE_ERROR = 1.0
# Standard deviation, in nats, of a surrogate that says nothing of the target: its proposals are
# accepted in 3 % of cases, and those of random walks hide it.
USELESS_ERROR = 3.0
# Share of the time spent besides the model's evaluations above which it is worth mentioning.
MOST_OWN_TIME = 0.8


def doubts(chains: pd.DataFrame, effective: Effective) -> Iterator[str]:
    """Yield reasons for doubt about the chains' figures, each with a remedy."""
    if effective.summary["r_hat"] > LARGEST_R_HAT:
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
    """Return a sentence about a chain's long stay at one place, with a remedy."""
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
    if (short := _is_tuned_too_little(chains)).any():
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
    """Return for each chain whether its surrogate limits it.

    Its error must be more than noise's: under much noise the noise limits a chain. Noise that was
    not measured, NaN, may be all of the error.
    """
    error, noise = chains["surrogate error"], chains["noise variance"]
    few = chains["acceptance"] < POOR_SHARE * chains["ideal"].fillna(1.0)
    is_wrong = (error > LARGE_ERROR) & (error**2 > noise)
    return chains["random walks"].notna() & is_wrong & (few | (error > USELESS_ERROR))


def _is_tuned_too_little(chains: pd.DataFrame) -> pd.Series:
    """Return for each chain whether it tuned less than its step asks for; False if unknown."""
    return chains["tuning"] < chains["tuning asked"]


def _is_short(chains: pd.DataFrame, effective: Effective) -> bool:
    n_chains = chains.index.get_level_values(0).nunique()
    fewest = min(effective.summary["ess_bulk"], effective.summary["ess_tail"])
    return fewest < enough_effective(n_chains)
