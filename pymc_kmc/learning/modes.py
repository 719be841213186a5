"""Maxima of a posterior that searches have found, with their masses, as a value to be kept."""

from typing import NamedTuple

import numpy as np

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
        Number of searches that ended there.
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


def learned_modes(arrival, opaque):
    """Return a :class:`LearnedMode` for each maximum that an arrival has found, as a tuple."""
    if not arrival.found:
        return ()
    natural = opaque.natural(np.array([mode.x for mode, _ in arrival.found]))
    return tuple(
        LearnedMode(
            mode.x,
            float(mode.log_density),
            mode.covariance,
            n,
            float(mode.log_mass),
            not has_mass,
            {name: np.asarray(values[i]) for name, values in natural.items()},
        )
        for i, ((mode, n), has_mass) in enumerate(
            zip(arrival.found, arrival.have_mass, strict=True)
        )
    )


def unseen_share(modes):
    """Return the estimated share of searches that would end at maxima nobody has found.

    That of searches whose maximum no other one has found (Good, 1953): 0 where there were none.

    References
    ----------
    Good, I. J. (1953). The population frequencies of species and the estimation of population
    parameters. *Biometrika* 40, 237-264.
    """
    n_searches = [mode.n_searches for mode in modes]
    return n_searches.count(1) / max(sum(n_searches), 1)


def sentences(modes):
    """Return what is to be said of modes that were left out, and of those that weren't seen."""
    out, share = [mode for mode in modes if mode.was_left_out], unseen_share(modes)
    said = _of_left_out(modes, out) if out else []
    if len(modes) > 1 and share > 0.0:
        said.append(f"About {100 * share:.0f} % of further searches would find other maxima.")
    return said


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
    """Return values of variables, the first of many."""
    named = list(variables.items())
    parts = [f"{name} = {_shown(value)}" for name, value in named[:MOST_NAMED]]
    return ", ".join([*parts, *["..."][: len(named) > MOST_NAMED]])


def _shown(value):
    if value.ndim == 0:
        return f"{value:.3g}"
    shown = [f"{element:.3g}" for element in value.ravel()[:MOST_ELEMENTS]]
    return f"[{', '.join([*shown, *['...'][: value.size > MOST_ELEMENTS]])}]"
