"""The verdict of a diagnosis: whether draws are enough, and what they cost.

References
----------
Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization,
folding, and localization: an improved R-hat for assessing convergence of MCMC. *Bayesian Analysis*
16, 667-718.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_kmc.runs import Phase, Run

# Vehtari et al. (2021): R-hat below 1.01, 400 effective draws of four chains, 100 of each.
LARGEST_R_HAT = 1.01
FEWEST_EFFECTIVE, FEWEST_A_CHAIN = 400, 100


def enough_effective(n_chains: int) -> int:
    """Return the number of effective draws, of all chains, from which on figures are reliable."""
    return max(FEWEST_EFFECTIVE, FEWEST_A_CHAIN * n_chains)


@dataclass(frozen=True)
class Effective:
    """Convergence figures over all variables, with the names of the worst variables.

    `summary` has `r_hat`, `ess_bulk` and `ess_tail`. The variables with the fewest effective draws
    overall and in the tails are `slowest` and `thinnest`, None if all are constant.
    """

    summary: dict[str, float]
    slowest: str | None
    thinnest: str | None

    @classmethod
    def of(cls, draws: xr.Dataset) -> "Effective":
        """Compute the figures of draws with dimensions chain and draw."""
        # A constant has no R-hat, and as many effective draws as draws; ArviZ warns of it.
        varying = {
            name: values
            for name, values in draws.data_vars.items()
            if np.issubdtype(values.dtype, np.number) and _varies(values.values)
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
    """Return the name of the variable with the least of elements' values; None if all are NaN."""
    return str(values.idxmin()).split("[")[0] if values.notna().any() else None


def _varies(values: np.ndarray) -> bool:
    """Return whether any element of a variable's draws (chain, draw, ...) changes."""
    return bool(np.any(values != values[:1, :1]))


@dataclass(frozen=True)
class EvaluationCounts:
    """Numbers of the target's evaluations by this package's steps, by purpose.

    Attributes
    ----------
    learning : int or None
        Number before the chains, once for all of them; None where it isn't known.
    tuning : int or None
        Number over all chains while they tuned; None where it isn't known.
    drawing : int
        Number over all chains while they drew.
    """

    learning: int | None
    tuning: int | None
    drawing: int

    @classmethod
    def of(cls, run: Run) -> "EvaluationCounts":
        """Return the counts of a run."""
        # A step that was learned beforehand was learned once for its chains.
        learning = _last(run.sampling, "kmc_n_learning_evaluations").max(axis=0)
        tuning = _last(run.sampling, "kmc_n_tuning_evaluations")
        if np.isnan(tuning).any() and run.tuning is not None:
            tuning = run.tuning.values("kmc_n_evaluations")
        drawing = run.sampling.values("kmc_n_evaluations")
        return cls(_total(learning), _total(tuning), int(np.nansum(drawing)))

    @property
    def known(self) -> int:
        """Sum of the counts that are known."""
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
    """Return a statistic's last value, (chain, step)."""
    return phase.values(name)[:, -1]


def _total(counts: np.ndarray) -> int | None:
    return None if np.isnan(counts).any() else int(counts.sum())


def verdict(
    effective: Effective, n_chains: int, doubts: Sequence[str], limits: Sequence[str]
) -> str:
    """Return a sentence about whether the draws can be used.

    `doubts` are findings that are a reason for doubt about the figures, `limits` those that are a
    reason for few effective draws.
    """
    figures, slowest = effective.summary, effective.slowest
    if slowest is None:
        return "Not yet: no variable has moved."
    r_hat, bulk, tail = (figures[name] for name in ("r_hat", "ess_bulk", "ess_tail"))
    fewest, where = (tail, " in its tails") if tail < bulk else (bulk, "")
    missing = []
    if r_hat > LARGEST_R_HAT:
        missing.append(f"R-hat is {r_hat:.3f}, above {LARGEST_R_HAT}")
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
