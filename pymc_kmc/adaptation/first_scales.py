r"""The scale of each coordinate at a chain's start, from the target alone.

Along a coordinate of a Gaussian with standard deviation s the second difference of the log
density, :math:`\ell(x + h) + \ell(x - h) - 2 \ell(x)`, is :math:`-(h / s)^2` wherever x is, in the
bulk or far away. A search in h finds where it is -1. It costs two evaluations a coordinate where a
scale of 1 is about right, and some ten where it is wrong by orders of magnitude; a random walk
alone would take thousands of iterations to find such scales, or never find them. A variable that is
a logarithm isn't tried beyond one unit: its exponential would soon leave the numbers.
"""

import numpy as np

# Scales within this factor of 1 are left as they are: a random walk finds them at once.
USUAL = 10.0
# Bounds of the factor from one trial to the next: far away the log density may be of another form,
# and a function of the user's may fail.
FACTORS = (1e-3, 10.0)
# Largest number of trials a coordinate: ten orders of magnitude upwards.
MOST_TRIALS = 10
# Curvatures, in units of the one that is looked for, at which the search ends.
NEAR_ENOUGH = (0.25, 4.0)


def first_scales(log_density, position, value, may_grow=None):
    """Return a scale for each coordinate, 1 where it is about right or none was found.

    Parameters
    ----------
    log_density : callable
        ``log_density(x)`` of a position (d,).
    position : ndarray, shape (d,)
        The chain's start.
    value : float
        Log density there.
    may_grow : ndarray of bool, shape (d,), optional
        Whether a coordinate is tried beyond one unit; by default all are.

    Returns
    -------
    ndarray, shape (d,)
    """
    scales = np.ones(len(position))
    if not np.isfinite(value):
        return scales
    if may_grow is None:
        may_grow = np.ones(len(position), dtype=bool)
    for i in range(len(position)):
        found = _scale_along(i, log_density, position, value, may_grow[i])
        if not 1.0 / USUAL <= found <= USUAL:
            scales[i] = found
    return scales


def _scale_along(i, log_density, position, value, may_grow):
    def curvature(h):
        """Minus the second difference; infinite where the target is 0 on a side."""
        ends = []
        for sign in (1.0, -1.0):
            x = position.copy()
            x[i] += sign * h
            ends.append(log_density(x))
        if -np.inf in ends or np.isnan(ends).any():
            return np.inf
        return 2.0 * value - sum(ends)

    h = 1.0
    # What rounding makes of a difference of values of this size.
    smallest = 1e3 * np.finfo(np.float64).eps * max(1.0, abs(value))
    for _ in range(MOST_TRIALS):
        found = curvature(h)
        if NEAR_ENOUGH[0] <= found <= NEAR_ENOUGH[1]:
            return h / np.sqrt(found)
        if found < -NEAR_ENOUGH[0]:  # bent upwards: the start is in a tail, which has no scale
            return 1.0
        # Where it is flat nothing is seen at this distance yet.
        factor = 1.0 / np.sqrt(found) if found > smallest else np.inf
        if factor > 1.0 and h >= 1.0 and not may_grow:
            return 1.0
        h *= np.clip(factor, *FACTORS)
    return 1.0
