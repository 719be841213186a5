"""Findings: problems of an estimate from partial posteriors, with their remedies."""

import numpy as np

# Chains that agree, with 50 effective draws or more, have an R-hat below it.
R_HAT_OF_SHORT_RUNS = 1.05
# Smallest ESS of a run: Monte-Carlo error adds a share 1 / ESS to the variance of phi_t, here 2 %.
FEWEST_OF_RUN = 50
# Shares of suspect runs, of all and of a level's, above which there is a finding.
MOST_SUSPECT, MOST_AT_A_LEVEL = 0.05, 0.5
# Replications whose standard error has itself a relative error of a fifth; fewer are a finding.
FEWEST_REPLICATIONS = 12
# Share of the squared deviations above which one replication decides the standard error.
LARGEST_SQUARE = 0.5
# Standard errors by which a rate must differ from a value: 95 % of a normal law.
CLEAR_ERRORS = 2.0
# Fewest replications at a level for the standard error to contain its variance.
FEWEST_AT_A_LEVEL = 3
# Ratio of successive interquartile ranges of an improper posterior; regular ones have 1.4.
IMPROPER_FACTOR = 100.0
# Share of divergent draws above which there is a finding.
MOST_DIVERGENT = 0.01


def is_suspect(r_hat, ess):
    """Return whether a run's chains disagree or are too short; False if unknown (NaN)."""
    return (r_hat > R_HAT_OF_SHORT_RUNS) | (ess < FEWEST_OF_RUN)


def findings_of(result):
    """Yield the problems of a :class:`PartialPosteriors`, each with its remedy."""
    yield from _numbers(result)
    yield from _interrupt(result)
    yield from _improper(result)
    yield from _runs(result)
    yield from _replications(result)
    yield from _rate(result)


def _numbers(result):
    bad = [r for r, path in enumerate(result.paths) if not np.isfinite(path).all()]
    if bad:
        yield (
            f"The functional isn't finite in {len(bad)} replications, the first of them {bad[0]}: "
            "see .paths. The estimate can't be used; leaving these out would bias it."
        )


def _interrupt(result):
    if result.interrupted:
        planned = int(result.replications.attrs["n_planned"])
        yield (
            f"Interrupted: {result.n_replications} of {planned} replications have ended. Those "
            "with large subsets take longest and are likelier to be missing, which biases the "
            "estimate."
        )


def _improper(result):
    spreads = result.replications["spread"].transpose("replication", "level", "checked").values
    sizes = result.schedule.sizes
    with np.errstate(all="ignore"):
        medians = [
            np.nanmedian(spreads[result.levels >= t, t], axis=0)
            for t in range(result.levels.max() + 1)
        ]
        for t, (here, there) in enumerate(zip(medians[:-1], medians[1:], strict=True)):
            if np.any(here > IMPROPER_FACTOR * there) or not np.isfinite(here).all():
                yield (
                    f"The posterior given {sizes[t]} data is at least {IMPROPER_FACTOR:g} times as "
                    f"wide as that given {sizes[t + 1]}: it may be improper. Give a larger "
                    "first_size, or a proper prior."
                )
                return


def _runs(result):
    runs = result.runs
    if runs["r_hat"].isna().all():
        yield (
            "The runs have too few draws, or no continuous variables, for R-hat and ESS: nothing is"
            " known about the convergence of their chains."
        )
    shares = runs.groupby("level")["suspect"].mean()
    marked = runs[runs["suspect"]]
    if len(marked) > MOST_SUSPECT * len(runs) or shares.max() > MOST_AT_A_LEVEL:
        levels = shares.index[shares > 0.0]
        sizes = ", ".join(f"{result.schedule.sizes[level]:,}" for level in levels)
        yield (
            f"Chains are too short: {len(marked)} of {len(runs)} runs have R-hat above "
            f"{R_HAT_OF_SHORT_RUNS} or fewer than {FEWEST_OF_RUN} effective draws (largest "
            f"R-hat {runs['r_hat'].max():.3g}, smallest ESS {runs['ess'].min():.3g}), on subsets "
            f"of {sizes} data; .runs marks them. Draw or tune more (sample={{'draws': ..., 'tune': "
            "...}), or use another step: what biases chains on large subsets biases the estimate."
        )
    divergent = runs["divergences"].sum()
    if divergent > MOST_DIVERGENT * max(1, runs["evaluations"].sum()):
        yield f"There were {int(divergent)} divergent draws: the runs may be biased. Tune more."


def _replications(result):
    n = result.n_replications
    if n < 2:
        yield "One replication has no standard error: give a larger n_replications."
        return
    if n < FEWEST_REPLICATIONS:
        error = 1.0 / np.sqrt(2.0 * (n - 1))
        yield (
            f"{n} replications are few for an honest standard error: its own relative error is "
            f"{error:.2g} at best. Use .interval, which allows for that, or n_replications of "
            f"{FEWEST_REPLICATIONS} or more."
        )
        return
    deviations = (result.debiased - result.estimate).reshape(n, -1) ** 2
    total = deviations.sum(axis=0)
    share = deviations[:, total > 0.0].max(axis=0, initial=0.0) / total[total > 0.0]
    if share.size and share.max() > LARGEST_SQUARE:
        where = _labels(result, np.flatnonzero(total > 0.0)[share > LARGEST_SQUARE])
        yield (
            f"One replication has {100 * share.max():.0f} % of the squared deviations of {where}: "
            "the standard error rests on it. Give a larger n_replications, or a smaller alpha."
        )


def _rate(result):
    schedule, rate = result.schedule, result.rate
    if len(schedule.sizes) == 1:
        yield "first_size is the number of data: every replication is a run on all data."
        return
    known = np.isfinite(rate.exponent)
    if not known.any():
        yield (
            "Too few replications went beyond the first subsets to see how fast the partial "
            "posteriors converge, and whether the variance is bounded: give a larger "
            "n_replications, or a smaller alpha."
        )
        return
    excess = (schedule.alpha - rate.exponent) / rate.standard_error
    too_large = np.flatnonzero(known & (excess > CLEAR_ERRORS))
    if too_large.size:
        slowest = too_large[np.argmax(excess[too_large])]
        beta = rate.exponent[slowest]
        advice = (
            f"Give alpha below {beta:.2g}, or a larger first_size."
            if beta > 0.05
            else "The expectations don't converge at these sizes: give a larger first_size."
        )
        yield (
            f"alpha = {schedule.alpha:g} is too large for {_labels(result, too_large)}: mean "
            f"squared differences fall as n^-{beta:.2g} ({rate.standard_error[slowest]:.1g}), and "
            f"the variance grows with the data, as N^{schedule.alpha - beta:.2g}. {advice}"
        )
    slow = np.flatnonzero(known & (rate.exponent - 1.0 > CLEAR_ERRORS * rate.standard_error))
    if schedule.alpha <= 1.0 and slow.size == np.count_nonzero(known):
        beta = rate.exponent[known].min()
        yield (
            f"At the sizes seen, mean squared differences fall as n^-{beta:.2g}, faster than costs "
            f"grow. If that lasts, alpha between 1 and {beta:.2g} bounds both the cost and the "
            "variance, however many data; with alpha below 1 the cost grows with the data. For "
            "posterior means it mostly slows down to n^-1."
        )
    yield from _unseen(result)


def _unseen(result):
    """Yield a finding if levels that few replications reached have most of the variance."""
    reached = np.array([np.sum(result.levels >= t) for t in range(len(result.schedule.sizes))])
    terms = (result.rate.mean_squares / result.schedule.reach[:, None])[1:]
    rare = reached[1:] < FEWEST_AT_A_LEVEL
    with np.errstate(all="ignore"):
        share = terms[rare].sum(axis=0) / terms.sum(axis=0)
    large = np.flatnonzero(share > 0.5)
    if large.size:
        yield (
            f"By the rate seen, {100 * share[large].max():.0f} % of the variance of "
            f"{_labels(result, large)} is due to subsets that fewer than {FEWEST_AT_A_LEVEL} "
            "replications have reached: the standard error doesn't contain it. It is honest as "
            "long as rare levels stay away. For less of this, give a smaller alpha, a larger "
            "first_size or more replications."
        )


def _labels(result, indices):
    names = [result.labels[index] for index in indices]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
