"""What was learned of a target, put together by hand."""

import cloudpickle
import numpy as np

from pymc_kmc.adaptation.fitted import FittedSurrogate, LogWeights
from pymc_kmc.adaptation.transitions import SurrogateTransitions, whitened_hamiltonian
from pymc_kmc.numerics.coordinates import IDENTITY, ScaleWarp


def short_transitions(hamiltonian, states=None, rng=None):
    """Return transitions of a few short trajectories; takes no time, unlike learning them."""
    return SurrogateTransitions(
        hamiltonian, step_size=0.6, n_steps=4, n_transitions=6, decorrelation=2.0
    )


def fitted_surrogate(surrogate, states, log_densities, warp=IDENTITY, transitions=None):
    """Return a surrogate with the log weights of a chain's states (n, d), and short transitions."""
    if transitions is None:
        transitions = short_transitions(whitened_hamiltonian(surrogate))
    weights = LogWeights.of(
        transitions.hamiltonian, warp.forward(states), log_densities + warp.log_volume(states)
    )
    return FittedSurrogate(surrogate, warp, transitions, weights)


def stretching_warp(warp_class=ScaleWarp):
    """Return coordinates in which the first one's scale changes with the second: a bad choice."""
    return warp_class(
        drivers=np.array([1]),
        driven=np.array([0]),
        others=np.array([1]),
        centre=np.zeros(2),
        location=np.array([0.5]),
        location_slopes=np.array([[-0.7]]),
        scale_slopes=np.array([[0.6]]),
        lowest=np.array([-1.5]),
        highest=np.array([1.0]),
    )


def snapshot(value):
    """Return all bits of a value, whatever it holds, to tell whether it has been changed."""
    return cloudpickle.dumps(value)


def assert_same_parameters(first, second):
    """Two surrogates' parameters are the same, bit for bit."""
    assert type(first) is type(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
