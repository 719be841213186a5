"""Earlier evaluations: kept where learning fails, and gone on from."""

import numpy as np

from pymc_kmc.learning.evaluations import Evaluations
from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.model.evaluated import Evaluated

# Relative difference of outputs at one place that rounding on another machine may explain.
ROUNDING = 1e-6


def keep(error, opaque):
    """Let an exception carry all evaluations of an :class:`OpaqueModel`, and say so.

    It gets the attribute `evaluations`, an :class:`Evaluated`, and a note below its message.
    """
    evaluated = opaque.evaluated()
    if not len(evaluated):
        return
    error.evaluations = evaluated
    error.add_note(
        f"Evaluations made: {len(evaluated)}; none is lost. They are the attribute "
        "`evaluations` of this exception (sys.last_value.evaluations in a notebook): "
        "kmc.learn(..., evaluations=error.evaluations) goes on from them."
    )


def remember(earlier, opaque, starts):
    """Let an :class:`OpaqueModel` remember earlier evaluations.

    Parameters
    ----------
    earlier : LearnedPosterior or Evaluated
    opaque : OpaqueModel
    starts : ndarray, shape (n, d)
        Of the searches.

    Returns
    -------
    Evaluations or None
        What learning begins with. None, if it begins at its starts as it did before an error: all
        that had been evaluated is remembered then, and the way goes on from there.
    """
    evaluated = _checked(earlier, opaque)
    if isinstance(earlier, LearnedPosterior):
        _try_out(earlier, opaque)
    opaque.log.remember(evaluated.X, evaluated.outputs, evaluated.seconds)
    if isinstance(earlier, Evaluated) and opaque.log.find(starts[:1])[1].all():
        return None
    return Evaluations.of(opaque, evaluated.X, evaluated.outputs)


def _checked(earlier, opaque):
    """Return earlier evaluations, an :class:`Evaluated`, if they are the same model's."""
    if isinstance(earlier, LearnedPosterior):
        found = earlier.evaluations
        values = found.log_densities
        earlier = Evaluated(earlier.names, found.X, found.outputs, values, earlier.seconds)
    if not isinstance(earlier, Evaluated):
        raise TypeError(
            f"evaluations={earlier!r} must be what kmc.learn() has returned, or the attribute "
            "`evaluations` of an exception that it has raised"
        )
    names = tuple(v.name for v in opaque.variables)
    m = opaque.nodes[-1].returned.stop
    n_dimensions, n_outputs = earlier.X.shape[1], earlier.outputs.shape[1]
    if earlier.names != names or n_dimensions != opaque.n_dimensions or n_outputs != m:
        raise ValueError(
            f"evaluations are of {list(earlier.names)} with {n_outputs} opaque outputs; "
            f"this model has {list(names)} and {m}: pass what was learned of the same model."
        )
    return earlier


def _try_out(earlier, opaque):
    """Raise a ValueError unless a learned posterior's best place has the outputs that it had.

    It may be of a file, and the functions may have changed since. Estimates are others each time.
    """
    if opaque.is_noisy:
        return
    X, _, outputs, log_densities = earlier.evaluations
    best = int(np.argmax(log_densities))
    now, before = opaque.evaluate(X[best : best + 1])[0], outputs[best]
    wrong = np.flatnonzero(~(np.abs(now - before) <= ROUNDING * np.abs(before).max()))
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            f"evaluations are of another model: at {X[best].tolist()}, on the unconstrained scale, "
            f"opaque output {i} was {before[i]}, and it is {now[i]} now. Learn anew, without "
            "evaluations=."
        )
