"""Maxima of a posterior that searches have found, with their masses, as values to be kept."""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.maxima import is_same

# Most variables, and elements of each, that a sentence has.
MOST_NAMED, MOST_ELEMENTS = 4, 4


class LearnedMode(NamedTuple):
    """A maximum of the log density.

    Attributes
    ----------
    x : ndarray, shape (d,)
        Unconstrained; the best place that was evaluated there.
    log_density : float
    covariance : ndarray, shape (d, d)
        Of the Gaussian with the log density's curvature there.
    n_searches : int
        Number of searches that ended there; 0 for a maximum found by draws of the emulators.
    log_mass : float
        Logarithm of the integral of that Gaussian.
    was_left_out : bool
        Whether its mass is too small beside another's to be learned.
    variables : dict of str to ndarray
        Its place on the natural scale of the model's free variables.
    """

    x: np.ndarray
    log_density: float
    covariance: np.ndarray
    n_searches: int
    log_mass: float
    was_left_out: bool
    variables: dict


def learned_modes(found, opaque):
    """Return LearnedModes, given of each the Mode, number of searches, and if it was left out."""
    if not found:
        return ()
    natural = opaque.natural(np.array([mode.x for mode, _, _ in found]))
    return tuple(
        LearnedMode(
            mode.x,
            float(mode.log_density),
            mode.covariance,
            n,
            float(mode.log_mass),
            was_left_out,
            {name: np.asarray(values[i]) for name, values in natural.items()},
        )
        for i, (mode, n, was_left_out) in enumerate(found)
    )


def searched_modes(multistart, opaque):
    pairs = zip(multistart.found, multistart.have_mass, strict=True)
    return learned_modes([(mode, n, not has_mass) for (mode, n), has_mass in pairs], opaque)


def drawn_modes(drawn, known, opaque):
    """Return the maxima that draws have jumped between, without those of `known`."""
    copy = opaque.nearest_copy
    new = [mode for mode in drawn if not any(is_same(mode, each, copy) for each in known)]
    return learned_modes([(mode, 0, False) for mode in new], opaque)


def unseen_share(modes):
    """Return the estimated share of searches that would end at maxima not found yet.

    It is the share of searches whose maximum no other one has found (Good, 1953): 0 without any.

    References
    ----------
    Good, I. J. (1953). The population frequencies of species and the estimation of population
    parameters. *Biometrika* 40, 237-264.
    """
    n_searches = [mode.n_searches for mode in modes]
    return n_searches.count(1) / max(sum(n_searches), 1)


def sentences(modes):
    """Return the sentences about modes that were left out, and about those that may be unseen."""
    out = [mode for mode in modes if mode.was_left_out]
    return [*(_of_left_out(modes, out) if out else []), _of_unseen(modes)]


def _of_unseen(modes):
    n, k = sum(mode.n_searches for mode in modes), sum(mode.n_searches > 0 for mode in modes)
    missed = "one much narrower than the prior may have been missed"
    if not n:
        return f"No search for maxima was needed; {missed}."
    share = unseen_share(modes)
    elsewhere = f"about {100 * share:.0f} %" if share else f"less than about {100 / n:.0f} %"
    searches, maxima = f"{n} search{'es' * (n > 1)}", "one maximum" if k == 1 else f"{k} maxima"
    return (
        f"{searches} from all over the prior ended at {maxima}: {elsewhere} of further ones would "
        f"find others, and {missed}."
    )


def _of_left_out(modes, out):
    largest = max(out, key=lambda mode: mode.log_mass)
    lower = max(mode.log_mass for mode in modes) - largest.log_mass
    place = _place(largest.variables)
    if len(out) == 1:
        which = "A second maximum" if len(modes) == 2 else "Another maximum"
        return [f"{which}, {lower:.0f} nats of mass lower, was left out: {place}."]
    return [
        f"{len(out)} other maxima were left out; the largest is {lower:.0f} nats of mass lower: "
        f"{place}."
    ]


def _place(variables):
    named = list(variables.items())
    parts = [f"{name} = {_shown(value)}" for name, value in named[:MOST_NAMED]]
    return ", ".join([*parts, *["..."][: len(named) > MOST_NAMED]])


def _shown(value):
    if value.ndim == 0:
        return f"{value:.3g}"
    shown = [f"{element:.3g}" for element in value.ravel()[:MOST_ELEMENTS]]
    return f"[{', '.join([*shown, *['...'][: value.size > MOST_ELEMENTS]])}]"
