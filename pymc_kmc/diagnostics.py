r"""Diagnosis of a chain's limits: noise, the surrogate, tuning, length, or the model's cost.

A chain that is confined to half of the posterior may have many effective draws. The diagnosis
therefore examines, in this order, the agreement of the chains (R-hat) and long stays at one place;
the share of estimates of zero, the noise of the others, and the acceptance rate of perfect
proposals, :math:`2 \Phi(-s / \sqrt 2)` under Gaussian noise (Pitt, Silva, Giordani and Kohn, 2012);
the surrogate's errors at fresh values; variables that other steps move; and the use of time.

References
----------
Pitt, M. K., Silva, R. dos S., Giordani, P. and Kohn, R. (2012). On some properties of Markov chain
Monte Carlo simulation methods based on the particle filter. *Journal of Econometrics* 171, 134-151.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pymc_kmc import findings, notebook
from pymc_kmc.findings import (
    R_HAT_OF_CONVERGED,
    Effective,
    EvaluationCounts,
    enough_effective,
    verdict,
)
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.numerics.samples import robust_spread
from pymc_kmc.runs import Phase, Run

# Labels of the table's rows.
LABELS = {
    "evaluations": "evaluations a draw",
    "acceptance": "share of proposals accepted",
    "ideal": "the same of perfect proposals",
    "noise variance": "noise variance of the log likelihood",
    "zero estimates": "share of its estimates that were zero",
    "failed simulations": "share of simulations that failed",
    "surrogate error": "error of the surrogate, nats",
    "longest stay": "longest stay at a place, iterations",
    "invalid": "evaluations that were NaN or +inf",
    "tuning": "iterations of tuning",
    "tuning asked": "iterations of tuning it asks for",
    "fits": "fits of the surrogate",
    "random walks": "share of moves that are random walks",
    "transitions": "moves on the surrogate an evaluation",
    "evaluation ms": "milliseconds an evaluation",
    "own share": "share of time besides evaluations",
}
# Rows that only a noisy likelihood has.
OF_NOISE = ["ideal", "noise variance", "zero estimates", "failed simulations"]


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`.

    Attributes
    ----------
    verdict : str
        Whether the draws can be used, "Good ...", "In doubt ..." or "Not yet ...", and why not.
    evaluations : EvaluationCounts
        Numbers of evaluations of the target by this package's steps: `learning`, before the chains,
        `tuning` and `drawing`; None where the run has no such number.
    posterior : dict of str to float
        The largest `r_hat` and the smallest `ess_bulk` and `ess_tail` over all variables.
    findings : tuple of str
        Limits of the chains, each with a remedy; empty where none was found.
    chains : pandas.DataFrame
        One row for each chain and step, with the columns described at :func:`diagnose`.
    """

    verdict: str
    evaluations: EvaluationCounts
    posterior: dict[str, float]
    findings: tuple[str, ...]
    chains: pd.DataFrame

    def __str__(self) -> str:
        figures = ", ".join(f"{label} {number}" for number, label, _ in self._figures())
        findings = [f"- {finding}" for finding in self.findings]
        table = self._table().to_string(float_format=notebook.number, na_rep="")
        return "\n".join([self.verdict, str(self.evaluations), figures, *findings, "", table])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.result(
            notebook.paragraph(self.verdict, is_title=True),
            notebook.paragraph(str(self.evaluations)),
            notebook.figures(self._figures()),
            notebook.sentences(self.findings),
            notebook.table(self._table()),
        )

    def _figures(self) -> Iterator[tuple[str, str, bool]]:
        enough = enough_effective(self.chains.index.get_level_values(0).nunique())
        checks = {
            "r_hat": ("largest R-hat", self.posterior["r_hat"] <= R_HAT_OF_CONVERGED),
            "ess_bulk": ("fewest effective draws", self.posterior["ess_bulk"] >= enough),
            "ess_tail": ("fewest in the tails", self.posterior["ess_tail"] >= enough),
        }
        for name, (label, is_good) in checks.items():
            if not np.isnan(self.posterior[name]):  # one chain has no R-hat
                yield f"{self.posterior[name]:.4g}", label, is_good

    def _table(self) -> pd.DataFrame:
        chains = self.chains
        if not chains[[name for name in OF_NOISE if name != "ideal"]].any(axis=None):
            chains = chains.drop(columns=OF_NOISE)
        table = chains.T.dropna(how="all").rename(index=LABELS)
        table.columns = [
            f"chain {key[0]}, step {key[1]}" if isinstance(key, tuple) else f"chain {key}"
            for key in chains.index
        ]
        return table


def diagnose(idata: Any) -> Diagnosis:
    r"""Find what limits the chains of this package's steps, with remedies.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
        The result of `pm.sample`, or the same loaded by `arviz.from_netcdf`.

    Returns
    -------
    Diagnosis
        Prints, and shows in a notebook: a verdict; numbers of evaluations by purpose; R-hat and
        effective draws; limits of the chains; and a table. The columns of `chains`:

        - `evaluations`: number of evaluations of the target a draw.
        - `acceptance`: share of draws that moved.
        - `ideal`: acceptance rate of perfect proposals under the likelihood's noise.
        - `noise variance`: variance of the log estimate.
        - `zero estimates`: share of estimates that were zero where the chain was while tuning.
        - `failed simulations`: share of simulations with NaN or infinite results.
        - `surrogate error`: standard deviation of fresh values around the surrogate, in nats,
          without the noise's.
        - `longest stay`: most iterations at one place.
        - `invalid`: number of evaluations that were NaN or +inf.
        - `tuning`, `tuning asked`: tuning iterations, and their number that the step asks for.
        - `fits`: number of fits of the surrogate, 0 where it was given.
        - `random walks`: their share of the moves.
        - `transitions`: number of transitions on the surrogate for each evaluation of the target.
        - `evaluation ms`: milliseconds of one evaluation.
        - `own share`: share of the time that the step took besides evaluations.

        A figure that a step doesn't report, or that was never measured, is NaN.

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
    >>> kmc.diagnose(idata).verdict
    "Not yet: 'x' has ... effective draws..., fewer than 400."
    """
    run = Run.of(idata)
    sampling, evaluations = run.sampling, EvaluationCounts.of(run)
    chains, effective = _chains(sampling), Effective.of(sampling.posterior)
    doubts = [*findings.doubts(chains, effective)]
    limits = [*findings.limits(chains, effective, _moved_by_others(sampling))]
    others = [*findings.others(chains, effective, evaluations, bool(doubts or limits))]
    return Diagnosis(
        verdict(effective, sampling.shape[0], doubts, limits),
        evaluations,
        effective.summary,
        (*doubts, *limits, *others),
        chains,
    )


def _moved_by_others(sampling: Phase) -> frozenset[str]:
    """Return the names of variables that changed although this package's steps rejected."""
    accepted = np.asarray(sampling.values("kmc_accepted").astype(bool).any(axis=2))
    # Between draws that were thinned are iterations whose acceptance isn't known.
    still = ~accepted[:, 1:] & (np.diff(sampling.posterior["draw"].values) == 1)
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
    noise, asked = values("kmc_noise_variance")[:, -1], values("kmc_default_tune")[:, -1]
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
        "tuning": values("kmc_n_tuned")[:, -1],
        "tuning asked": np.where(asked > 0, asked, np.nan),
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
    """Return the standard deviation (chain, step) of fresh values around the surrogate.

    `errors` (chain, draw, step) are NaN without a prediction. The `noise` variance (chain, step) is
    subtracted, NaN as 0. Quantiles give the standard deviation: single proposals may be far off.
    """
    errors = np.where(np.isfinite(errors), errors, np.nan)
    found = np.full(noise.shape, np.nan)
    for index in np.ndindex(*noise.shape):
        finite = errors[index[0], :, index[1]]
        finite = finite[~np.isnan(finite)]
        if len(finite):
            variance = robust_spread(finite) ** 2 - np.nan_to_num(noise[index])
            found[index] = np.sqrt(max(0.0, variance))
    return found
