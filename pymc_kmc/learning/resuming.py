"""Earlier evaluations: kept where learning fails, and a starting point for another call."""

import numpy as np

from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.model.evaluations import Evaluations

# Relative difference of outputs at one place that rounding on another machine may explain.
ROUNDING = 1e-6


def keep(error, opaque):
    """Attach all evaluations to an exception, as its attribute `evaluations`, with a note."""
    if not len(opaque.evaluations):
        return
    error.evaluations = opaque.evaluations
    error.add_note(
        f"Evaluations made: {len(opaque.evaluations)}; none is lost. They are the attribute "
        "`evaluations` of this exception (sys.last_value.evaluations in a notebook): "
        "kmc.learn(..., evaluations=error.evaluations) goes on from them."
    )


def remember(earlier, opaque, starts):
    """Let an :class:`OpaqueModel` remember earlier evaluations; return learning's first ones.

    None where the first of `starts` (n, d) is among the remembered places of evaluations other than
    a LearnedPosterior's: learning then repeats the same way without paying again.
    """
    is_posterior = isinstance(earlier, LearnedPosterior)
    evaluations = earlier.evaluations if is_posterior else earlier
    _check(evaluations, opaque)
    if is_posterior:
        _try_out(evaluations, opaque)
    remembered = opaque.remember(evaluations)
    is_on_the_way = not is_posterior and remembered.rows(starts[:1])[0] >= 0
    return None if is_on_the_way else remembered


def _check(earlier, opaque):
    """Raise unless earlier evaluations are :class:`Evaluations` of the same model."""
    if not isinstance(earlier, Evaluations):
        raise TypeError(
            f"evaluations={earlier!r} must be what kmc.learn() has returned, or the attribute "
            "`evaluations` of that, of a step or of an exception that kmc.learn() has raised"
        )
    own = opaque.evaluations
    n_outputs, m = earlier.outputs.shape[1], own.outputs.shape[1]
    is_as_long = earlier.X.shape[1] == opaque.n_dimensions
    if earlier.names != own.names or not is_as_long or n_outputs != m:
        raise ValueError(
            f"evaluations are of {list(earlier.names)} with {n_outputs} opaque outputs; "
            f"this model has {list(own.names)} and {m}: pass what was learned of the same model."
        )


def _try_out(earlier, opaque):
    """Raise a ValueError unless a learned posterior's best place still has the same outputs.

    It may come from a file, and the functions may have changed since. Noisy estimates always differ
    and are not compared.
    """
    if opaque.is_noisy:
        return
    best = earlier[[int(np.argmax(earlier.log_densities))]]
    now, (before,) = opaque.evaluate(best.X).outputs[0], best.outputs
    wrong = np.flatnonzero(~(np.abs(now - before) <= ROUNDING * np.abs(before).max()))
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            f"evaluations are of another model: at {best.X[0].tolist()}, on the unconstrained "
            f"scale, opaque output {i} was {before[i]}, and it is {now[i]} now. Learn anew, "
            "without evaluations=."
        )
