"""A derivative-free Gauss-Newton search for a maximum of the log density.

Around the best point the opaque outputs, or their logarithms, are linear in the variables, by
weighted regression on the nearest evaluations; the model's prior and likelihood are exact. The
resulting log density is maximised in a box, whose size follows from how well its last rise was
predicted (a trust region; Nocedal and Wright, 2006, section 4.1; for least squares without
derivatives, Cartis and Roberts, 2019). A step costs one evaluation. While all outputs are equal the
search steps out, ever farther. Searches from several starts run side by side, with one place of
each in a batch. If more evaluations run at once, a step has three radii, and places beside the best
one for the regression.

References
----------
Cartis, C. and Roberts, L. (2019). A derivative-free Gauss-Newton method. *Mathematical Programming
Computation* 11, 631-674.

Nocedal, J. and Wright, S. J. (2006). *Numerical Optimization*. Springer.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.modes import climb, covariance_of
from pymc_kmc.numerics.linear_algebra import symmetric
from pymc_kmc.surrogates.exact_gp_evaluation import LARGEST_LOG

# The trust region's half width at first, at most, and where a search gives up; all lengths here are
# in units of the variables' scales.
FIRST_REACH, LARGEST_REACH, SMALLEST_REACH = 0.3, 1.0, 1e-3
# Length of the first steps along each variable.
FIRST_STEP = 0.1
# Points of the regression for each variable, besides one.
POINTS_PER_VARIABLE = 1.6
# Shares of the predicted rise above which the region grows, and below which it shrinks.
GOOD, BAD = 0.7, 0.2
# Predicted rise, in nats, below which a search ends.
LAST_RISE = 0.15
# Ridge of the regression: a step of so many scales along each variable, without a change.
RIDGE = 1e-4
# Half width of the region for variables that outputs don't depend on: the model is exact there.
FREE_REACH = 3.0
# Most iterations of the maximisation of the linear model.
LINEAR_ITERATIONS = 60
# Step of the differences for curvatures, in the variables' scales.
LINEAR_CURVATURE_STEP = 1e-4
# Steps while all outputs are equal: beyond four scales hardly any prior has mass.
STEPS_OUT = (1.0, -1.0, 2.0, -2.0, 4.0, -4.0)


class LinearModel(NamedTuple):
    """The log density with outputs that are linear around a point x (d,).

    Outputs depend on the variables `moves`; logarithms are linear where `is_log` (m,). `outputs`
    (m,), or their logarithms, are those at x, `jacobian` (m, k) their derivatives by `moves`.
    """

    model: object
    moves: np.ndarray
    is_log: np.ndarray
    x: np.ndarray
    outputs: np.ndarray
    jacobian: np.ndarray

    def __call__(self, X):
        linear = self.outputs + (X - self.x)[:, self.moves] @ self.jacobian.T
        exponential = np.exp(np.minimum(np.where(self.is_log, linear, 0.0), LARGEST_LOG))
        outputs = np.where(self.is_log, exponential, linear)
        value, gradient, by_outputs = self.model.log_density(X, outputs)
        slopes = by_outputs * np.where(self.is_log, exponential, 1.0)
        gradient = gradient.copy()
        gradient[:, self.moves] += slopes @ self.jacobian
        return value, gradient

    def maximum(self, radius, scales):
        """Return the place of the maximum within a radius of x, and its log density."""
        size = np.full(len(self.x), FREE_REACH)
        size[self.moves] = radius
        start, bounds = np.zeros(len(self.x)), np.column_stack([-size, size])
        found = climb(self, self.x, np.diag(scales), start, LINEAR_ITERATIONS, bounds)
        return self.x + found.x * scales, -found.fun

    def covariance(self, x, scales):
        """Return the covariance (d, d) of the Gaussian at a maximum x (d,)."""
        steps = LINEAR_CURVATURE_STEP * np.diag(scales)
        ahead, behind = self(x + steps)[1], self(x - steps)[1]
        H = -(ahead - behind) / (2.0 * LINEAR_CURVATURE_STEP * scales[:, None])
        H = symmetric(H) * np.outer(scales, scales)
        return covariance_of(H if np.isfinite(H).all() else np.eye(len(scales)), scales)


def linear_model(model, moves, X, outputs, best, radius, scales):
    """Return a :class:`LinearModel` around point `best` of X (n, d) with outputs (n, m)."""
    usable = np.isfinite(outputs).all(axis=1)
    is_log = (outputs[usable] > 0).all(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(is_log, np.log(outputs), outputs)
    steps = (X - X[best])[:, moves] / scales[moves]
    distances = np.where(usable, np.linalg.norm(steps, axis=1), np.inf)
    n_near = 1 + int(np.ceil(POINTS_PER_VARIABLE * len(moves)))
    near = np.argsort(distances, kind="stable")[:n_near]
    near = near[np.isfinite(distances[near]) & (near != best)]
    weights = 1.0 / (1.0 + (distances[near] / radius) ** 2)
    design = np.vstack([steps[near] * weights[:, None], RIDGE * np.eye(len(moves))])
    changes = (values[near] - values[best]) * weights[:, None]
    changes = np.vstack([changes, np.zeros((len(moves), values.shape[1]))])
    jacobian = np.linalg.lstsq(design, changes, rcond=None)[0].T / scales[moves]
    return LinearModel(model, moves, is_log, X[best], values[best], jacobian)


def search(model, start, scales, rng, most, is_known=lambda x, value: False):
    """Search for a maximum of the log density, a generator, from `start` (d,) in `scales` (d,).

    It yields the points (k, d) to evaluate next, about `most` in all, and is sent their outputs (k,
    m) and the number of points beyond one that it may ask for. It ends at a known maximum, where
    ``is_known(x, log_density)``. The OpaqueModel's nodes are no terms.

    It returns all places (n, d), their outputs (n, m), and the LinearModel around the best point:
    None if no log density was finite, or all outputs were equal.
    """
    moves = np.unique(np.concatenate([node.moves_with for node in model.nodes]))
    X = np.tile(start, (1 + len(moves), 1))
    signs = rng.choice([-1.0, 1.0], size=len(moves))
    X[1 + np.arange(len(moves)), moves] += FIRST_STEP * scales[moves] * signs
    outputs, n_more = yield X
    direction = rng.standard_normal(len(moves)) / np.sqrt(len(moves))
    for step in STEPS_OUT:
        if not are_constant(outputs):
            break
        point = start.copy()
        point[moves] += step * scales[moves] * direction
        new, n_more = yield point[None]
        X, outputs = np.vstack([X, point]), np.vstack([outputs, new])
    if are_constant(outputs):
        return X, outputs, None
    radius, fitted, was_bad = FIRST_REACH, None, False
    while len(X) < most and radius >= SMALLEST_REACH:
        values = model.values(X, outputs)
        best = int(np.argmax(values))
        if not np.isfinite(values[best]):
            break
        fitted = linear_model(model, moves, X, outputs, best, radius, scales)
        radii = _radii(radius, n_more, was_bad)
        found = [fitted.maximum(size, scales) for size in radii]
        rises = [predicted - fitted(X[best][None])[0][0] for _, predicted in found]
        if rises[0] < LAST_RISE or is_known(X[best], values[best]):
            break
        points = [end for end, _ in found]
        for _ in range(min(n_more + 1 - len(radii), len(moves))):
            points.append(_beside(X[best], moves, 0.5 * radius * scales, rng))
        new, n_more = yield np.array(points)
        X, outputs = np.vstack([X, points]), np.vstack([outputs, new])
        reached = model.values(X[-len(points) :], new)[: len(radii)]
        k = int(np.argmax(reached))
        share = (reached[k] - values[best]) / rises[k]
        was_bad = not share >= BAD
        if was_bad:
            radius = 0.5 * min(radii)
            if not n_more:
                point = _beside(X[best], moves, 0.5 * radius * scales, rng)[None]
                new, n_more = yield point
                X, outputs, was_bad = np.vstack([X, point]), np.vstack([outputs, new]), False
        else:
            is_widest = radii[k] == max(radii)
            radius = min(2.0 * radii[k], LARGEST_REACH) if share > GOOD and is_widest else radii[k]
    return X, outputs, fitted


def _radii(radius, n_more, was_bad):
    """Return the radii of a step that may have `n_more` points beyond one."""
    radii = [radius]
    if n_more > 1 or (n_more == 1 and not was_bad):
        radii.append(2.0 * radius if 2.0 * radius <= LARGEST_REACH else 0.5 * radius)
    if n_more > 2:
        radii.append(0.5 * min(radii))
    return radii


def are_constant(outputs):
    return bool(np.all((outputs == outputs[0]) | (np.isnan(outputs) & np.isnan(outputs[0]))))


def _beside(x, moves, radii, rng):
    """Return a point at `radii` (d,) from x (d,), in a random direction of variables `moves`."""
    direction = rng.standard_normal(len(moves))
    point = x.copy()
    point[moves] += radii[moves] * direction / np.linalg.norm(direction)
    return point


def side_by_side(searches, evaluate, begin=None, n_parallel=1):
    """Run generators of :func:`search` at the same time; return the list of their results.

    A batch has `n_parallel` points if searches ask for so many. ``evaluate(X)`` returns outputs (n,
    m). With `begin` an executor starts on points (n, d) early, and no search waits for others'
    outputs; the evaluations and their order are the same.
    """
    found = [None] * len(searches)
    wanted = {i: next(one) for i, one in enumerate(searches)}
    if begin is not None:
        for points in wanted.values():
            begin(points)
    while wanted:
        now = list(wanted)
        if begin is None:
            ends = np.cumsum([len(points) for points in wanted.values()])
            outputs = iter(np.split(evaluate(np.vstack(list(wanted.values()))), ends[:-1]))
        else:
            outputs = (evaluate(wanted[i]) for i in now)
        for i, part in zip(now, outputs, strict=True):
            try:
                n = max(n_parallel // len(wanted), 2 if len(wanted) == 1 else 1)
                wanted[i] = searches[i].send((part, n - 1))
            except StopIteration as end:
                found[i] = end.value
                del wanted[i]
            else:
                if begin is not None:
                    begin(wanted[i])
    return found
