"""What a chain tells its user: checks of its own draws, warnings, its activity.

Each warning is given at most once. PyMC's R-hat compares several chains. In a single chain that is
still in burn-in, or hardly moves along a long ridge, parts of the draws differ from each other. On
an improper posterior a chain's range grows for ever. States are thinned: their memory doesn't grow
with the chain.

PyMC's own columns of the progress bar leave seven of 80 characters. While a chain tunes, this
column names the activity that takes its time, which PyMC's estimate of the time left doesn't
include; afterwards it shows the acceptance rate.
"""

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType
from rich.progress import TextColumn
from rich.table import Column
from scipy.stats import rankdata

from pymc_kmc.moves.base import MoveKind
from pymc_kmc.surrogates.exact_gp_evaluation import LARGEST_LOG

# Most states that are kept: a check costs some 0.1 ms a dimension.
MOST_STATES = 256
# Number of draws at the first check, for drift alone, and its factor from one check to the next.
FIRST_CHECK, CHECK_GROWTH = 64, 1.5
# Number of draws from which on their parts are compared: fewer show nothing.
FIRST_PARTS = 256
# Number of parts that are compared: eight find 96 % of the chains that drift like a Brownian
# motion, halves 60 %, at the same rate of false alarms.
N_PARTS = 8
# Rank-based R-hat above which parts differ: their means spread as much as the draws within them. By
# chance it is exceeded in .5 % of cases with 25 effective draws, in less than .02 % with 40.
R_HAT_OF_DIFFERENT_PARTS = 1.45
# Factor on the interquartile range since the first 256 iterations that shows an improper posterior,
# if the parts differ and if they don't: a proper one's scale is found before the first iteration.
DRIFT_OF_PARTS, DRIFT = 1e3, 1e6
# Range of the central 95 % of the draws, in interquartile ranges, above which tails are heavy:
# Gaussian 2.9, Laplace 4.3, Cauchy 12.7. Found in 145 of 150 chains on a Cauchy, 4 on a Laplace.
HEAVY_TAILS = 6.0
# Number of draws from which on tails are checked: fewer correlated draws don't show them.
FIRST_TAILS = 1000
# Iterations without an accepted proposal after which a chain is stuck: a chain that moves at all
# under noise of variance 3 in its log likelihood hardly ever stays longer.
STUCK_AFTER = 500
# The same from the start on: of chains that accept one proposal in twenty, one in 28,000 does so.
STUCK_FROM_START = 200


class OwnChecks:
    """Thinned states of a chain and checks of them; updated in place.

    `n_draws` counts draws since tuning; `n_expected` is the chain's number of draws, None if
    unknown.
    """

    def __init__(self):
        self.n_draws = 0
        self._all = Thinned()
        self._draws = Thinned()
        self._first_range = None
        self._next_check = FIRST_CHECK
        self.n_expected = None

    def observe(self, position, is_tuning):
        if self._all.append(position) and self._first_range is None:
            self._first_range = interquartile_range(self._all.states)
        if not is_tuning:
            self.n_draws += 1
            self._draws.append(position)

    def is_due(self):
        """Return whether a check is due (the last draw, if known, has one); plan the next one."""
        n = self.n_draws
        planned = (self.n_expected, FIRST_PARTS, FIRST_TAILS)
        if n < FIRST_CHECK or not (n >= self._next_check or n in planned):
            return False
        self._next_check = int(np.ceil(n * CHECK_GROWTH))
        return True

    def drifting(self, is_free):
        """Return indices of coordinates along which the chain seems to drift without bound.

        `is_free`, bool (d,), marks values that are a variable's own, not a transform of it.
        """
        states = self._all.states
        # A chain on its way to infinity ends at the limit of double precision.
        far = ~is_free & (np.median(np.abs(states), axis=0) > LARGEST_LOG)
        if self._first_range is None:
            return np.flatnonzero(far)
        with np.errstate(all="ignore"):
            growth = interquartile_range(states[len(states) // 2 :]) / self._first_range
            parts_differ = self.r_hat() > R_HAT_OF_DIFFERENT_PARTS
        grows = (growth > DRIFT) | ((growth > DRIFT_OF_PARTS) & parts_differ)
        grows &= self._first_range > 0
        return np.flatnonzero(far | grows | ~np.isfinite(states[-1]))

    def heavy_tailed(self):
        if self.n_draws < FIRST_TAILS:
            return np.array([], dtype=int)
        states = self._draws.states
        return np.flatnonzero(
            quantile_range(states, 0.95) > HEAVY_TAILS * interquartile_range(states)
        )

    def r_hat(self):
        """Return rank-based R-hat of the draws' parts (d,); NaN if constant or with few draws."""
        states = self._draws.states
        if self.n_draws < FIRST_PARTS:
            return np.full(states.shape[1], np.nan)
        ranks = rankdata(states, axis=0)
        n = len(ranks) // N_PARTS
        parts = ranks[len(ranks) - n * N_PARTS :].reshape(N_PARTS, n, -1)
        within = parts.var(axis=1, ddof=1).mean(axis=0)
        between = parts.mean(axis=1).var(axis=0, ddof=1)
        with np.errstate(all="ignore"):
            found = np.sqrt((n - 1) / n + between / within)
        return np.where(np.ptp(states, axis=0) > 0, found, np.nan)


def interquartile_range(states):
    return quantile_range(states, 0.5)


def quantile_range(states, share):
    """Return the range (d,) of the central `share` of states (n, d)."""
    low, high = np.quantile(states, [0.5 - 0.5 * share, 0.5 + 0.5 * share], axis=0)
    return high - low


class Thinned:
    """Evenly spaced states of a chain, at most `MOST_STATES`."""

    def __init__(self):
        self._kept = []
        self._stride = 1
        self._n = 0

    @property
    def states(self):
        return np.array(self._kept)

    def append(self, position):
        """Record the chain's next state; return whether the spacing was doubled."""
        self._n += 1
        if self._n % self._stride:
            return False
        self._kept.append(position)
        if len(self._kept) < MOST_STATES:
            return False
        self._kept = self._kept[1::2]
        self._stride *= 2
        return True


def first_new(messages, given, n_iterations):
    """Return a SamplerWarning of the first (key, text or None) whose key isn't `given`, or None.

    The key is added to `given`, the set of those that the chain has given.
    """
    for key, text in messages:
        if text is not None and key not in given:
            given.add(key)
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
