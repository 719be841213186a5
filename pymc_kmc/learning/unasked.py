"""Learning by a step before its chains, and whether chains can start from the result."""

import warnings

from pymc_kmc.learning.display import log
from pymc_kmc.learning.learning_run import (
    N_STARTS,
    TOLERANCE,
    LearningRun,
    dimensions,
    learned_by,
    limits_by_default,
    most_evaluations,
    of_limit,
    of_noise,
    why_doubtful,
)
from pymc_kmc.learning.modes import of_searches
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.likelihoods.black_box_op import BlackBoxError
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.model.structure import why_not_learned

# Most dimensions in which a step learns unasked, by outputs and by numbers. A number of 20 takes
# some 300 evaluations and 22 seconds, of fifty 2000 and 1000 seconds. Outputs were tried up to 29.
MOST_DIMENSIONS, MOST_BY_NUMBERS = 50, 20
# The same with many small nodes, as a box for each group: a hundred boxes, 205 values, took ten
# minutes of a processor and 40 evaluations of each.
MOST_OF_SMALL_NODES = 250
# What happens if the result isn't trusted.
AS_THEY_ARE = "each chain learns by itself, from these evaluations and its own"


def learn_unasked(model, variables, rng, executor=None, n_parallel=None):
    """Learn a model's posterior for a step of these variables, where that is safe.

    Return the LearnedPosterior, None if chains can't start from one, and all Evaluations, None if
    there are none. `executor`, a LazyExecutor, runs evaluations of functions without their own,
    `n_parallel` at once. The log says why nothing was learned, or why the result isn't used. A
    failure of learning is no failure of the step; one of a black box is.
    """
    why = why_not_learned(model, variables)
    if why == "":
        return None, None
    d = dimensions(model, variables)
    opaque = None
    try:
        if why is None and d <= MOST_OF_SMALL_NODES:
            opaque = OpaqueModel(variables, model, rng.spawn(1)[0], executor, n_parallel=n_parallel)
        if why is None:
            why = why_too_large(d, opaque)
        if why is None:
            return _unasked(opaque, rng)
    except (BlackBoxError, EstimatorError):
        raise
    except Exception as error:
        evaluations = getattr(opaque, "evaluations", None)
        after = f"after {len(evaluations or ())} evaluations ({type(error).__name__}: {error})"
        log.info(f"KMC: learning beforehand failed {after}; {AS_THEY_ARE}")
        return None, evaluations
    log.info(f"KMC: nothing is learned beforehand, each chain learns by itself: {why}")
    return None, None


def why_too_large(d, opaque):
    """Return why a model of d values takes too long to learn, or None; `opaque` may be None."""
    if opaque is None:
        return f"{d} values are more than the {MOST_OF_SMALL_NODES} that are learned unasked"
    if d > MOST_DIMENSIONS and not opaque.has_small_nodes:
        return f"{d} values are more than the {MOST_DIMENSIONS} that are learned unasked"
    if d > MOST_BY_NUMBERS and not opaque.returns_outputs:
        return (
            f"a log likelihood of {d} values takes long to learn, and more than "
            f"{MOST_BY_NUMBERS} aren't learned unasked. kmc.KMC(kmc.learn()) does"
        )
    return None


def _unasked(opaque, rng):
    names = ", ".join(node.name for node in opaque.nodes)
    log.info(f"KMC: learning {names} for all chains")
    limits = limits_by_default(most_evaluations(opaque.n_dimensions), opaque)
    run = LearningRun(opaque, *limits, None, N_STARTS, TOLERANCE, rng)
    run.is_asked = False
    learned = learned_by(run, True)
    why = why_not_trusted(learned, run)
    if why is None:
        may_miss = run.multistart.may_hide_modes
        missed = of_searches(learned.modes, run.multistart) if may_miss else None
        for text in filter(None, [of_limit(learned, TOLERANCE), of_noise(learned), missed]):
            warnings.warn(text, stacklevel=7)  # that of the caller of a step's constructor
        return learned, opaque.evaluations
    log.info(
        f"KMC: after {learned.n_evaluations} evaluations chains can't start from what was learned "
        f"of {names}: {why}; {AS_THEY_ARE}. kmc.KMC(kmc.learn(max_evaluations=...)) goes on"
    )
    return None, opaque.evaluations


def why_not_trusted(learned, run):
    """Return why chains can't start from a learned posterior, or None if they can."""
    if run.rounds.is_hopeless:
        return "predictions didn't improve, as where outputs jump"
    if (why := why_doubtful(learned, run.opaque)) is not None:
        return why
    # In many dimensions chains by themselves would rather end in wrong maxima, each in another one.
    # What has not converged is where they begin, and they go on learning.
    if run.opaque.returns_outputs or run.multistart.may_hide_modes:
        return None
    if not learned.has_converged:
        return (
            f"the log density's error at the last new draws was {learned.error:.2g} nats at the "
            f"limit of {run.limit} evaluations; below {TOLERANCE:g} in three rounds running, and "
            "emulators that are sure of all draws, would do"
        )
    return why_searches_disagree(learned)


def why_searches_disagree(learned):
    """Return why searches don't confirm the best maximum, or None; None too without searches."""
    if not any(mode.n_searches for mode in learned.modes):
        return None
    best, *others = sorted(learned.modes, key=lambda mode: -mode.log_density)
    if best.n_searches <= 1:
        lower = f", {best.log_density - others[0].log_density:.1f} nats above" if others else ""
        return f"one search alone ended at the best maximum{lower}"
    rise = learned.evaluations.log_densities.max() - best.log_density
    if rise >= COMPRESSION_DEPTH * learned.n_dimensions:
        return f"a place {rise:.1f} nats above all maxima was found, where no search ended"
    return None
