"""The warnings of a chain, each given at most once a chain."""

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_kmc.steps.own_checks import LARGEST_R_HAT

# Number of iterations without an accepted proposal that is worth a warning. A chain that moves at
# all under noise of variance 3 in its log likelihood hardly ever stays longer.
STUCK_AFTER = 500
# The same from the start on: of chains that accept one proposal in twenty, one in 28,000 does so.
STUCK_FROM_START = 200


class ChainWarnings:
    """Keys of the messages that a chain has given; updated in place."""

    def __init__(self):
        self.given = set()

    def first(self, messages, n_iterations):
        """Return a SamplerWarning of the first message not given before, or None.

        `messages` are pairs of a key and a text.
        """
        for key, text in messages:
            if key not in self.given:
                self.given.add(key)
                return SamplerWarning(WarningType.BAD_ACCEPTANCE, text, "warn", step=n_iterations)
        return None


def of_start(target, evaluation):
    """Return a message where a chain starts at an estimate of zero, else None."""
    if evaluation.log_density > -np.inf:
        return None
    return joined(
        "The chain starts where the estimate of the log likelihood is -inf.",
        *(record.failures() for record in target.simulations),
        "It will move to the first proposal with a finite one. If it doesn't, give a better start: "
        "pm.sample(initvals={...}).",
    )


def of_invalid(target, point, evaluation):
    """Return a message about a log density of NaN or +inf at a proposal."""
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
    """Return a message about a chain without tuning, or None.

    `instead` is source code of an argument that replaces tuning; None if one was passed.
    """
    if instead is None:
        return None
    return (
        "The step was not tuned (tune=0): it has learned nothing, and its proposals are those that "
        "a chain begins with. A chain never goes on with what an earlier one has learned, also "
        f"where the same step is used again. Tune: pm.sample(tune=1000){instead}."
    )


def of_rejections(target):
    """Return a message about black boxes that rejected points in this chain, else None."""
    failing = [
        f"{name!r} failed at {n_rejected} of {n_evaluations} points so far"
        for name, n_evaluations, n_rejected in target.rejections()
        if n_rejected
    ]
    if not failing:
        return None
    return (
        f"The black box {'; '.join(failing)}. They were rejected: the prior is cut "
        "off to the parameters where it succeeds (on_error='reject')."
    )


def of_failures(target):
    """Return a message about simulations that failed, where they are many, else None."""
    return joined(*(record.warn() for record in target.simulations)) or None


def of_own_checks(target, checks, is_local):
    """Return keys and messages about a chain that drifts away or has not converged.

    `is_local` says that all moves of the step are about as long as the posterior's middle is wide.
    """
    drifting = target.names_of(checks.drifting(target.is_free))
    if drifting:
        return [
            (
                "drift",
                f"The chain's range grows and grows along {', '.join(drifting)}: either the "
                "posterior isn't proper, and its mass escapes there (give these variables proper "
                "priors), or the chain is still on its way: start nearer, initvals={...}.",
            )
        ]
    tails = target.names_of(checks.heavy_tailed()) if is_local else []
    r_hat = checks.r_hat()
    if not np.nanmax(r_hat, initial=0.0) > LARGEST_R_HAT:
        return of_tails(tails)
    names = target.names_of(np.flatnonzero(r_hat > LARGEST_R_HAT))
    return [
        (
            "parts",
            f"Eight parts of this chain's {checks.n_draws} draws differ from each other along "
            f"{', '.join(names)} (R-hat of the parts {np.nanmax(r_hat):.2f}): it has not "
            "converged, or hardly moves there. Tune for longer, give variables of about the same "
            "scale, or start where the posterior has its mass: initvals={...}.",
        )
    ]


def of_tails(names):
    """Return keys and messages about variables with heavy tails, for a step of local moves."""
    if not names:
        return []
    return [
        (
            "tails",
            f"The draws have heavy tails along {', '.join(names)}. This step comes there seldom "
            "and stays for long, so that shares of the tails may be wrong by more than their "
            "standard errors say. kmc.KMC() makes moves that reach them.",
        )
    ]


def is_stuck(progress):
    """Return whether a chain accepts nothing, given its :class:`ChainProgress`."""
    still = progress.steps_since_accept
    return still >= (STUCK_FROM_START if still == progress.n_iterations else STUCK_AFTER)


def of_stillness(target, n_iterations):
    """Return a message about a chain that accepted nothing for so many iterations."""
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
    """Return the sentences that aren't empty, as one text."""
    return " ".join(filter(None, sentences))
