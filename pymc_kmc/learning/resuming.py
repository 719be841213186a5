"""Earlier evaluations: attached to exceptions, and reused by another call."""

import warnings

import numpy as np

from pymc_kmc.learning.composite import NOT_BY_CHANCE
from pymc_kmc.learning.convergence import N_CONVERGED_ROUNDS, error_about_median, lowest_of_mass
from pymc_kmc.learning.placing import optimistic_draws
from pymc_kmc.learning.posterior import LearnedPosterior
from pymc_kmc.learning.rounds import BATCH_SIZE
from pymc_kmc.likelihoods.black_box import CALL_ROUNDING
from pymc_kmc.likelihoods.store import EvaluationStore
from pymc_kmc.model.evaluations import Evaluations

# Number of estimates that are made again, and the change, in nats, that is too small to matter.
N_REPEATED, SMALL_CHANGE = 8, 0.1
# Estimates at each of these places where the noise isn't known, and the places at which an earlier
# one is outside of their range: in one case of 380, since it is with probability 1/3 whatever the
# noise is. Of two priors the densities are equal somewhere, so that one place may be inside.
N_AT_EACH, N_OUTSIDE = 5, 7


def known_error(rounds, state, composite, draws):
    """Return the leave-one-out error of earlier evaluations if they suffice, else infinity."""
    evaluations, own = state.evaluations, np.sqrt(np.mean(draws.values.doubt))
    if rounds.is_noisy or rounds.loses_mass or not own <= rounds.limits.own:
        return np.inf
    left_out = [emulator.leave_one_out(evaluations)[0] for emulator in composite.emulators]
    predicted, _, _ = composite.model.log_density(evaluations.X, np.hstack(left_out))
    values, heights = evaluations.log_densities, draws.values.mean
    is_near = (values >= lowest_of_mass(heights)) & np.isfinite(predicted)
    error = error_about_median(values[is_near] - predicted[is_near])
    fewest = N_CONVERGED_ROUNDS * BATCH_SIZE // 2  # as many as the rounds that it replaces have
    if is_near.sum() < fewest or error >= rounds.limits.error:
        return np.inf
    few = draws.rows(slice(rounds.n_chains))
    gap = optimistic_draws(composite, few, state.factor, rounds.rng, state.maps).gap
    if gap > rounds.limits.gap(own) or len(rounds.not_excluded(composite, draws, 1)):
        return np.inf
    return error


def keep(error, opaque):
    """Attach all evaluations to an exception, with a note."""
    if not len(opaque.evaluations):
        return
    error.evaluations = opaque.evaluations
    error.add_note(
        f"Evaluations made: {len(opaque.evaluations)}; none is lost. They are the attribute "
        "`evaluations` of this exception (sys.last_value.evaluations in a notebook): "
        "kmc.learn(..., evaluations=error.evaluations) goes on from them."
    )


def remember(earlier, opaque, starts, most):
    """Let an :class:`OpaqueModel` remember earlier evaluations; return those to begin with.

    None is returned if they have the first of `starts` (n, d) and the log densities of this model,
    except of a LearnedPosterior: learning then repeats the same way without evaluating again.
    """
    is_compared = isinstance(earlier, EvaluationStore)  # with all arguments
    if is_compared:
        earlier = of_store(earlier, opaque, most // 2)
    is_posterior = isinstance(earlier, LearnedPosterior)
    evaluations = earlier.evaluations if is_posterior else earlier
    _check(evaluations, opaque)
    # Outputs are of functions that stay the same, log densities of the prior and the data besides.
    has_more = opaque.has_other_arguments and not is_compared
    if is_posterior or opaque.is_whole or has_more:
        _try_out(evaluations, opaque)
    if is_posterior and opaque.is_noisy:
        _repeat_estimates(earlier, opaque)
    elif opaque.is_noisy and opaque.is_whole and len(evaluations) >= N_REPEATED:
        _estimate_anew(evaluations, opaque)
    remembered = opaque.remember(evaluations)
    begins_there = not is_posterior and remembered.rows(starts[:1])[0] >= 0
    is_on_the_way = begins_there and _are_as_high(evaluations, remembered)
    return None if is_on_the_way else remembered


def known_modes(learned, remembered):
    """Return the modes of a LearnedPosterior whose evaluations the model has `remembered`.

    Under another prior or of other data, where log densities differ, the maxima are elsewhere.
    """
    return learned.modes if _are_as_high(learned.evaluations, remembered) else ()


def _are_as_high(earlier, remembered):
    """Return whether the model's log densities at earlier evaluations are those found then."""
    before = earlier.log_densities
    return np.allclose(remembered.log_densities, before, rtol=CALL_ROUNDING, atol=CALL_ROUNDING)


def of_store(store, opaque, most):
    """Return at most `most` of a store's evaluations of this model: best and evenly spaced ones."""
    if (op := opaque.stored_op) is None:
        raise ValueError(
            f"evaluations={store!r} needs a model with one opaque node that is a black box or a "
            f"noisy likelihood; this one has {[node.name for node in opaque.nodes]}."
        )
    is_noisy = opaque.is_noisy
    rows = [
        (parameters, op.combine(found) if is_noisy else np.ravel(found), seconds or 0.0)
        for parameters, noise, found, seconds, _ in store.rows(op.name)
        if found is not None and is_noisy == bool(noise)
    ]
    if not rows:
        raise ValueError(
            f"evaluations={store!r} has none of {op.name!r}, a function of "
            f"{list(op.parameter_names)}: leave evaluations= out, or pass its store."
        )
    columns = [np.array(values) for values in zip(*[row[0] for row in rows], strict=True)]
    free = {variable.name for variable in opaque.random_variables}
    pairs = zip(op.parameter_names, columns, strict=False)
    X = opaque.unconstrained({name: v for name, v in pairs if name in free}, len(rows))
    is_there = np.ones(len(X), dtype=bool)
    for stored, own in zip(columns, opaque.parameters(X), strict=False):
        stored, own = stored.reshape(len(X), -1), own.reshape(len(X), -1)
        largest = np.abs(stored).max(axis=1, keepdims=True)
        is_there &= (np.abs(stored - own) <= CALL_ROUNDING * largest).all(axis=1)
    if not is_there.any():
        raise ValueError(
            f"evaluations={store!r} has none of {op.name!r} that this model could make: its "
            f"parameters {list(op.parameter_names)} must be variables of the model, {sorted(free)}."
        )
    X, outputs = X[is_there], np.reshape([row[1] for row in rows], (len(rows), -1))[is_there]
    seconds, values = np.array([row[2] for row in rows])[is_there], opaque.values(X, outputs)
    found = Evaluations(opaque.names, X, opaque.inputs(X), outputs, values, seconds)
    if len(found) <= most:
        return found
    best = np.argsort(-values, kind="stable")
    others = np.sort(best[most // 2 :])
    even = others[np.linspace(0, len(others) - 1, most - most // 2).astype(int)]
    return found[np.sort(np.append(best[: most // 2], even))]


def _check(earlier, opaque):
    """Raise unless `earlier` are :class:`Evaluations` of the same model, which may become whole."""
    if not isinstance(earlier, Evaluations):
        raise TypeError(
            f"evaluations={earlier!r} must be what kmc.learn() has returned, or the attribute "
            "`evaluations` of that, of a step or of an exception that kmc.learn() has raised"
        )
    if not len(earlier):
        raise ValueError(f"evaluations={earlier!r} has none: leave evaluations= out.")
    is_as_long = earlier.X.shape[1] == opaque.n_dimensions
    are_named = earlier.names == opaque.names and is_as_long
    if earlier.is_whole and are_named and not opaque.is_whole:
        opaque.become_whole()
    own = opaque.evaluations
    n_outputs, m = earlier.outputs.shape[1], own.outputs.shape[1]
    if not are_named or n_outputs != m:
        raise ValueError(
            f"evaluations are of {list(earlier.names)} with {n_outputs} opaque outputs; "
            f"this model has {list(own.names)} and {m}: pass what was learned of the same model."
        )
    _check_inputs(earlier, opaque)


def _check_inputs(earlier, opaque):
    """Raise a ValueError if places on the unconstrained scale now are other inputs of the nodes."""
    before, now = earlier.inputs, opaque.inputs(earlier.X)
    if before.shape != now.shape:
        raise ValueError(
            f"evaluations have {before.shape[1]} inputs of opaque nodes each, those of this model "
            f"have {now.shape[1]}: pass what was learned of the same black boxes."
        )
    # Where terms of an input cancel, rounding is that of the terms.
    rounding = CALL_ROUNDING**2 * np.abs(before).max(axis=0, initial=0.0, where=np.isfinite(before))
    wrong = np.argwhere(~np.isclose(now, before, CALL_ROUNDING, rounding, equal_nan=True))
    if len(wrong):
        i, k = wrong[0]
        name = next(node.name for node in opaque.nodes if k < node.inputs.stop)
        raise ValueError(
            f"evaluations are of another model: at {earlier.X[i].tolist()}, on the unconstrained "
            f"scale, an input of {name} was {before[i, k]}, and it is {now[i, k]} now, as if the "
            "bounds of a prior had changed, or what a variable is multiplied by. Learn anew, "
            "without evaluations=, or from a kmc.EvaluationStore, whose places are on the natural "
            "scale: docs/learning.md, 'Another prior, more data'."
        )


def _repeat_estimates(learned, opaque):
    """Warn if estimates of a LearnedPosterior have changed by more than their noise."""
    # The highest by the other evaluations: the highest estimates owe it to their noise.
    heights = np.nan_to_num(learned.emulated.held_out, nan=-np.inf)
    best = learned.evaluations[np.argsort(-heights, kind="stable")[:N_REPEATED]]
    changes = (opaque.evaluate(best.X).outputs - best.outputs)[:, ~_are_exact(opaque)].sum(axis=1)
    changes = changes[np.isfinite(changes)]
    n, noise = max(len(changes), 1), 2.0 * learned.noise**2
    mean_square = float(np.sum(changes**2)) / n
    if mean_square > SMALL_CHANGE**2 + noise * (1.0 + NOT_BY_CHANCE * np.sqrt(2.0 / n)):
        _warn(
            f"{n} estimates made again at its best places "
            f"differ by {np.sqrt(mean_square):.2g} nats from those made then, at the root mean "
            f"square, and by noise they would differ by {np.sqrt(noise):.2g}. If the estimator "
            "uses other data now, or other constants, learn anew, without evaluations=."
        )


def _estimate_anew(earlier, opaque):
    """Warn if most estimates of the whole log density are outside of the range of new ones."""
    # The highest of all owe it to their noise; the upper half hardly does.
    upper = np.argsort(-earlier.log_densities, kind="stable")[: max(len(earlier) // 2, N_REPEATED)]
    some = earlier[upper[np.linspace(0, len(upper) - 1, N_REPEATED).astype(int)]]
    before = some.log_densities
    X = np.repeat(some.X, N_AT_EACH, axis=0)
    now = opaque.evaluate(X).log_densities.reshape(N_REPEATED, N_AT_EACH)
    lowest, highest = now.min(axis=1), now.max(axis=1)
    outside = (before < lowest - SMALL_CHANGE) | (before > highest + SMALL_CHANGE)
    if outside.sum() >= N_OUTSIDE:
        i = int(np.argmax(outside))
        _warn(
            f"its estimates at {outside.sum()} of {N_REPEATED} good places are outside of the "
            f"range of {N_AT_EACH} made now; at {some.X[i].tolist()}, on the unconstrained scale, "
            f"{before[i]:.4g} was found, and now {lowest[i]:.4g} to {highest[i]:.4g}. A whole log "
            "density holds for one prior and the same data: if these have changed, learn anew, "
            "without evaluations=."
        )


def _warn(why):
    warnings.warn(f"evaluations may be of another model: {why}", UserWarning, stacklevel=6)


def _are_exact(opaque):
    sizes = [node.returned.stop - node.returned.start for node in opaque.nodes]
    return np.repeat([not node.is_noisy for node in opaque.nodes], sizes)


def _try_out(earlier, opaque):
    """Raise a ValueError if the best place now has other outputs; noisy ones aren't compared."""
    compared = _are_exact(opaque)
    if not compared.any():
        return
    best = earlier[[int(np.argmax(earlier.log_densities))]]
    now, (before,) = opaque.evaluate(best.X).outputs[0], best.outputs
    rounding = CALL_ROUNDING * np.abs(before).max(initial=0.0, where=compared & np.isfinite(before))
    wrong = np.flatnonzero(compared & ~np.isclose(now, before, 0.0, rounding, equal_nan=True))
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            f"evaluations are of another model: at {best.X[0].tolist()}, on the unconstrained "
            f"scale, opaque output {i} was {before[i]}, and it is {now[i]} now. Learn anew, "
            "without evaluations=."
        )
