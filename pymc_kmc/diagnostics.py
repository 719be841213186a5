r"""What limits a chain: noise, the surrogate, the chain's length, or what the model costs.

Effective sample size alone rewards a chain that is confined to half of the posterior. What can be
known is looked at in this order: whether chains agree (R-hat); whether they sat still for long;
how noisy the likelihood's estimates are, and what acceptance perfect proposals would have under
that noise, :math:`2 \Phi(-s / \sqrt 2)` (Pitt, Silva, Giordani and Kohn, 2012); how far the
proposals stay behind it; and where the time went.

References
----------
Pitt, M. K., Silva, R. dos S., Giordani, P. and Kohn, R. (2012). On some properties of Markov chain
Monte Carlo simulation methods based on the particle filter. *Journal of Econometrics* 171, 134-151.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_kmc import notebook
from pymc_kmc.likelihoods.n_replicates import TARGET_VARIANCE
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
# Share of the ideal acceptance below which the surrogate is what limits a chain.
POOR_SHARE = 0.5
# Share of the time spent besides the model's evaluations above which it is worth mentioning.
MOST_OWN_TIME = 0.8
# The table's rows: a mouse over them shows these.
MEANINGS = {
    "evaluations": "evaluations of the target a draw",
    "acceptance": "share of draws that moved",
    "ideal": "acceptance rate of perfect proposals under the likelihood's noise",
    "noise variance": "variance of the log likelihood's estimate",
    "longest stay": "iterations at one place",
    "invalid": "evaluations that were NaN or +inf",
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
        the log estimate;
        `longest stay`, iterations at one place; `invalid`, evaluations that were NaN or +inf;
        `random walks`, their share of the moves; `transitions`, on the surrogate for each
        evaluation of the target; `evaluation ms`, of one evaluation; `own share`, of the time that
        the step itself took. What a step doesn't report is NaN.

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
    posterior = _posterior(sampling.posterior)
    return Diagnosis(chains, posterior, tuple(_findings(chains, posterior)))


def _chains(sampling: Phase) -> pd.DataFrame:
    values = sampling.values
    n_chains, _, n_steps = sampling.shape
    # Of the steps on a surrogate: the others have one kind of move.
    moves = np.where(np.isnan(values("kmc_n_fits")), np.nan, values("kmc_move"))
    is_random_walk = np.where(np.isnan(moves), np.nan, moves == MoveKind.RANDOM_WALK)
    evaluation, own = values("kmc_evaluation_time"), values("kmc_proposal_time")
    columns = {
        "evaluations": values("kmc_n_evaluations").mean(axis=1),
        "acceptance": values("kmc_accepted").mean(axis=1),
        "ideal": values("kmc_ideal_acceptance")[:, -1],
        "noise variance": values("kmc_noise_variance")[:, -1],
        "longest stay": values("kmc_steps_since_accept").max(axis=1),
        "invalid": values("kmc_n_invalid")[:, -1],
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


def _posterior(draws: xr.Dataset) -> dict[str, float]:
    summary = az.summary(draws, round_to="none").astype(float)
    # A constant variable has no R-hat.
    return {
        "r_hat": float(summary["r_hat"].max()),
        "ess_bulk": float(summary["ess_bulk"].min()),
        "ess_tail": float(summary["ess_tail"].min()),
    }


def _findings(chains: pd.DataFrame, posterior: dict[str, float]) -> Iterator[str]:
    noise, ideal = chains["noise variance"].max(), chains["ideal"].min()
    is_noisy = noise > 0
    if posterior["r_hat"] > LARGEST_R_HAT:
        yield (
            f"R-hat is {posterior['r_hat']:.3f}: chains disagree about the posterior. Tune for "
            "longer and draw more; where they stay apart, some are confined to a part of it, and "
            "their effective sample sizes mean nothing."
        )
    if chains["longest stay"].max() >= LONG_STAY:
        yield (
            f"A chain stayed at one place for {chains['longest stay'].max():.0f} iterations. "
            + (
                "A lucky estimate of the likelihood does that: use more simulations or particles."
                if is_noisy
                else "The target is far above its surrogate there: tune for longer, or take the "
                "scale out of the parameters (non-centre a hierarchical model)."
            )
        )
    if noise > TOO_NOISY:
        factor = np.ceil(noise / TARGET_VARIANCE)
        yield (
            f"Noise limits the chains: the log of the likelihood's estimate has variance "
            f"{noise:.2g} where the chains are, and perfect proposals would be accepted in "
            f"{100 * ideal:.0f} % of cases. Use {factor:.0f} times as many "
            "simulations or particles, n_replicates='auto' (n_simulations='auto' with a "
            "simulator), or correlated noise (n_normals=, correlation=); "
            "kmc.estimate_noise(model) tries them out."
        )
    elif 0 < noise < NEEDLESSLY_GOOD:
        yield (
            f"The likelihood's estimates are better than they need to be, variance {noise:.2g}: "
            "fewer simulations or particles would give more effective draws for the same cost."
        )
    has_surrogate = chains["random walks"].notna()
    poor = has_surrogate & (chains["acceptance"] < POOR_SHARE * chains["ideal"])
    if poor.any():
        yield (
            f"The surrogate limits {'the chain' if len(chains) == 1 else 'chains'}: acceptance is "
            f"{chains['acceptance'].min():.2f} where perfect proposals would have {ideal:.2f}. "
            "Tune for longer; give it more kernel functions, kmc.KMC(n_landmarks=600); or "
            "reparametrise what is strongly curved."
        )
    if chains["invalid"].max() > 0:
        yield (
            f"The log density was NaN or +inf {chains['invalid'].sum():.0f} times: return -inf "
            "where a parameter is impossible."
        )
    n_chains = chains.index.get_level_values(0).nunique()
    fewest = min(posterior["ess_bulk"], posterior["ess_tail"]) / n_chains
    if fewest < FEWEST_EFFECTIVE:
        yield f"{fewest:.0f} effective draws a chain are few: draw more."
    if chains["own share"].max() > MOST_OWN_TIME:
        yield (
            f"An evaluation takes {chains['evaluation ms'].mean():.2g} ms, less than a proposal of "
            "the step. Where the model has a gradient, NUTS will be faster; where it hasn't, "
            "kmc.KMC(n_landmarks=100) makes cheaper proposals."
        )
