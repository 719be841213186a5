"""What chains leave."""

import numpy as np

from pymc_kmc.adaptation.history import History
from pymc_kmc.model.log_density import Evaluation


def banana(X, bend=0.3):
    """Log density of x_1 ~ N(0, 9), x_2 ~ N(bend (x_1^2 - 9), 1) at X, (n, 2) or (2,); (n,)."""
    X = np.atleast_2d(X)
    return -0.5 * X[:, 0] ** 2 / 9 - 0.5 * (X[:, 1] - bend * (X[:, 0] ** 2 - 9)) ** 2


def banana_draws(n, rng, bend=0.3):
    x = 3.0 * rng.standard_normal(n)
    return np.column_stack([x, bend * (x**2 - 9) + rng.standard_normal(n)])


def history_of(states, log_densities, points=None, values=None):
    """The history of a chain that was at states and evaluated points: the states, unless given."""
    history = History(states.shape[1])
    for pair in zip(states, log_densities, strict=True):
        add_state(history, *pair)
    evaluations = (states, log_densities) if points is None else (points, values)
    for pair in zip(*evaluations, strict=True):
        add_evaluation(history, *pair)
    return history


def add_state(history, state, log_density):
    history.states.append(state)
    history.log_densities.append(log_density)


def add_evaluation(history, position, log_density):
    history.append_evaluation(Evaluation(log_density, 0.0, position, ()))
