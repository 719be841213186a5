"""A chain's warnings, each given at most once, and its activity in the progress bar.

PyMC's own columns of the progress bar leave seven of 80 characters. While a chain tunes, this
column names the activity that takes its time, which PyMC's estimate of the time left doesn't
include; afterwards it shows the acceptance rate.
"""

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType
from rich.progress import TextColumn
from rich.table import Column

from pymc_kmc.moves.base import MoveKind
from pymc_kmc.steps.own_checks import R_HAT_OF_DIFFERENT_PARTS

# Iterations without an accepted proposal after which a chain is stuck: a chain that moves at all
# under noise of variance 3 in its log likelihood hardly ever stays longer.
STUCK_AFTER = 500
# The same from the start on: of chains that accept one proposal in twenty, one in 28,000 does so.
STUCK_FROM_START = 200


class ChainWarnings:
    """Keys of the messages that a chain has given; updated in place."""

    def __init__(self):
        self.given = set()

    def first(self, messages, n_iterations):
        """Return a SamplerWarning of the first (key, text or None) not given before, or None."""
        for key, text in messages:
            if text is not None and key not in self.given:
                self.given.add(key)
                return SamplerWarning(WarningType.BAD_ACCEPTANCE, text, "warn", step=n_iterations)
        return None


def of_start(target, evaluation):
    """Return a message if the estimate at a chain's start is zero, else None."""
    if evaluation.log_density > -np.inf:
        return None
    return joined(
        "The chain starts where the estimate of the log likelihood is -inf.",
        *(record.failures() for record in target.simulations),
        "It will move to the first proposal with a finite one. If it doesn't, give a better start: "
        "pm.sample(initvals={...}).",
    )


def of_invalid(target, point, evaluation):
    remedy = "Return -inf from the likelihood where a parameter is impossible"
    if target.likelihoods:
        remedy += ", and from an estimator whose estimate is zero"
    if target.simulators:
        remedy += ", and inf from a pm.Simulator whose simulation fails"
    values = target.point(point, evaluation.position)
    shown = ", ".join(f"{name}={values[name]}" for name in target.names)
    return (
        f"The log density was {evaluation.log_density} at a proposal ({shown}), which was "
        "rejected. kmc_n_invalid in the sample statistics counts such proposals; this warning is "
        f"given once a chain. {remedy}."
    )


def of_no_tuning(instead):
    """Return a message about a chain without tuning; None if an argument replaces tuning."""
    if instead is None:
        return None
    return (
        "The step was not tuned (tune=0): it has learned nothing, and its proposals are those that "
        "a chain begins with. A chain never goes on with what an earlier one has learned, also "
        f"where the same step is used again. Tune: pm.sample(tune=1000){instead}."
    )


def of_disagreement(seen, n_tune):
    """Return a message about a Disagreement; `n_tune` is the tuning that the chain now needs."""
    found = "weren't finite"
    if np.isfinite(seen.error):
        found = f"had errors of {seen.error:.2g} nats"
        if seen.noise_sd > 0.0:
            found += f", {seen.noise_sd:.2g} of them noise"
    share = f"{100 * seen.acceptance:.0f} % of proposals"
    if seen.ideal_acceptance < 1.0:
        share += f", where {100 * seen.ideal_acceptance:.0f} % are possible under the noise,"
    return (
        "What was learned before this chain is wrong where the chain is: its first "
        f"{seen.n_evaluations} evaluations {found}, and {share} were accepted. The chain goes on "
        "learning by itself for the rest of its tuning, and draws stay exact; that takes some "
        f"{n_tune} iterations: pm.sample(tune={n_tune}). Or learn more beforehand: "
        "kmc.KMC(kmc.learn(evaluations=step.evaluations, max_evaluations=...))."
    )


def of_evaluations(target, noise):
    """Return keys and messages about failed evaluations, and about the noise of a NoiseProbe."""
    messages = []
    if target.is_noisy:
        failures = joined(*(record.warn() for record in target.simulations)) or None
        messages = [("failed", failures), ("noise", noise.complaint)]
    failing = [
        f"{name!r} failed at {n_rejected} of {n_evaluations} points so far"
        for name, n_evaluations, n_rejected in target.rejections()
        if n_rejected
    ]
    if failing:
        rejected = (
            f"The black box {'; '.join(failing)}. They were rejected: the prior is cut "
            "off to the parameters where it succeeds (on_error='reject')."
        )
        messages.append(("rejected", rejected))
    return messages


def of_own_checks(target, checks, is_local):
    """Return a key and a message, or None: drift, no convergence, heavy tails (if `is_local`)."""
    drifting = target.names_of(checks.drifting(target.is_free))
    if drifting:
        return "drift", (
            f"The chain's range grows and grows along {', '.join(drifting)}: either the "
            "posterior isn't proper, and its mass escapes there (give these variables proper "
            "priors), or the chain is still on its way: start nearer, initvals={...}."
        )
    r_hat = checks.r_hat()
    largest = np.nanmax(r_hat, initial=0.0)
    if largest > R_HAT_OF_DIFFERENT_PARTS:
        names = target.names_of(np.flatnonzero(r_hat > R_HAT_OF_DIFFERENT_PARTS))
        return "parts", (
            f"Eight parts of this chain's {checks.n_draws} draws differ from each other along "
            f"{', '.join(names)} (R-hat of the parts {largest:.2f}): it has not "
            "converged, or hardly moves there. Tune for longer, give variables of about the same "
            "scale, or start where the posterior has its mass: initvals={...}."
        )
    tails = target.names_of(checks.heavy_tailed()) if is_local else []
    if not tails:
        return "tails", None
    return "tails", (
        f"The draws have heavy tails along {', '.join(tails)}. This step comes there seldom "
        "and stays for long, so that shares of the tails may be wrong by more than their "
        "standard errors say. kmc.KMC() makes moves that reach them."
    )


def is_stuck(progress):
    """Return whether a chain accepts nothing, given its :class:`ChainProgress`."""
    still = progress.steps_since_accept
    return still >= (STUCK_FROM_START if still == progress.n_iterations else STUCK_AFTER)


def of_stillness(target, n_iterations):
    """Return a message about a chain that has accepted nothing for `n_iterations`."""
    remedy = "Tune for longer, or start where the posterior has its mass: initvals={...}."
    if target.is_noisy and target.recycled.log_density > -np.inf:
        remedy = (
            "If the log of the likelihood estimate has a variance above 3 there, the chain sits on "
            f"a lucky one: use more simulations or particles. Otherwise: {remedy}"
        )
    return joined(
        f"No proposal was accepted for {n_iterations} iterations.",
        *(record.explain() for record in target.simulations),
        remedy,
    )


def joined(*sentences):
    return " ".join(filter(None, sentences))


def columns(n_chains=1):
    """Return the column, and its field's values before the first iteration of each chain."""
    column = Column("Doing", no_wrap=True, width=7)
    return [TextColumn("{task.fields[kmc_doing]}", table_column=column)], {
        "kmc_doing": [""] * n_chains
    }


def update(statistics):
    still = statistics["kmc_steps_since_accept"]
    return {
        "kmc_doing": "stuck" if still >= STUCK_FROM_START else doing(statistics),
        "failing": still >= STUCK_AFTER,
    }


def doing(statistics):
    """Return a chain's activity, in seven characters."""
    if not statistics["tune"]:
        return f"acc {statistics['kmc_recent_acceptance']:.2f}".replace("0.", ".")[:7]
    if statistics["kmc_move"] in (MoveKind.LEARNED_DRAW, MoveKind.STAY):
        return "settles"
    n_fits = statistics.get("kmc_n_fits")
    if n_fits is None:
        return "tunes"
    if n_fits:
        return f"fit {n_fits}"
    return "settles" if statistics["kmc_n_learning_evaluations"] else "arrives"
