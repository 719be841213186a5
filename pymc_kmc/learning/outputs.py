r"""Transforms of what opaque nodes return, into values that a Gaussian process is fitted to.

Where a posterior has no mass only the fact that it is low matters: depths below the best value
count less beyond a depth k. They may be compressed there to
:math:`k (1 + \log(\text{depth} / k))`, for a kernel whose length scale is of the posterior's size,
or be left as they are, for a polynomial. Other outputs are scaled to unit standard deviation where
the log density is high, or positive ones emulated by their logarithms: by marginal likelihood too.
"""

from typing import NamedTuple

import numpy as np

# Depth of a log density below its best, in nats a dimension, from which on it is compressed: draws
# at temperature 2 are hardly deeper, if one dimension counts for two.
COMPRESSION_DEPTH, FEWEST_DIMENSIONS = 3.0, 2
# Standard deviation of a deep value's error, as a share of what is beyond that depth. With .1 noisy
# values' deep ones bent the process where draws are: 400 evaluations in place of 280.
DEEP_ERROR = 0.25
# Largest depth of a value that isn't compressed, in depths of compression.
DEEPEST_PLAIN = 1e4
# Depth of a value that is -inf, in units of the deepest finite one.
INFINITE = 2.0
# Depth of values that are -inf or NaN, in nats, where nothing else is known.
DEEPEST = 1e6


class Compression(NamedTuple):
    """Compression of log densities that are deeper than `depth` below the `best` one."""

    best: float
    depth: float

    @classmethod
    def of(cls, values, n_dimensions):
        """Return the compression for log densities (n,), some of them finite.

        Where the best ones lie deep apart, far from a maximum, their median depth is used.
        """
        depths = np.sort(values[np.isfinite(values)].max() - values)
        usual = np.median(depths[: 4 * n_dimensions])
        if not np.isfinite(usual):
            usual = 0.0
        depth = COMPRESSION_DEPTH * max(n_dimensions, FEWEST_DIMENSIONS)
        return cls(values.max(), max(depth, usual))

    def __call__(self, values):
        with np.errstate(invalid="ignore"):
            depths = np.minimum(np.nan_to_num(self.best - values, nan=DEEPEST), DEEPEST)
        deep = self.depth * (1.0 + np.log(np.maximum(depths, self.depth) / self.depth))
        return self.best - np.where(depths > self.depth, deep, depths)

    def error(self, values):
        """Return the standard deviation of the errors that values, compressed or not, may have."""
        return DEEP_ERROR * np.maximum(self.best - values - self.depth, 0.0)

    def log_slopes(self, values):
        """Return the sum of the logarithms of the compression's derivatives at finite values."""
        return np.log(self.depth / np.maximum(self.best - values, self.depth)).sum()


def of_term(Y, log_densities, highest, d, transform, base=None):
    """Return a process's targets (n, 1), their noise (n,), offset, scale and log Jacobian.

    They are of a term's values Y (n, 1) as functions of d coordinates, less the `base` (n, 1).
    """
    values, jacobian = Y[:, 0], 0.0
    compression = Compression.of(np.minimum(values, highest), d)
    deepest = values[np.isfinite(values)].min()
    floor = compression.best - INFINITE * max(compression.best - deepest, compression.depth)
    values = np.where(np.isfinite(values), values, floor)
    if transform == "compressed":
        jacobian = compression.log_slopes(values)
        values = compression(values)
    else:
        values = np.maximum(values, compression.best - DEEPEST_PLAIN * compression.depth)
    noise, scales = compression.error(values) ** 2, np.ones(1)
    if base is not None:
        return values[:, None] - base, noise, np.zeros(1), scales, jacobian
    offset = np.array([compression.best - 0.5 * d])
    return (values - offset[0])[:, None], noise, offset, scales, jacobian


def of_outputs(Y, log_densities, highest, d, transform, base=None):
    """Return the same of outputs Y (n, m), which are positive where the transform is "log".

    The `base` (n, m) is in the transform's units.
    """
    compression = Compression.of(np.minimum(log_densities, highest), d)
    finite = np.where(np.isfinite(log_densities), log_densities, compression.best - 1e6)
    # The error of an output is of no interest where the log density is that low.
    noise = (compression.error(compression(finite)) / compression.depth) ** 2
    weights = 1.0 / (1.0 + np.maximum(compression.best - finite, 0.0) / compression.depth)
    weights, jacobian = weights / weights.sum(), 0.0
    if transform == "log":
        Y = np.log(Y)
        jacobian = -Y.sum()
    Y = Y if base is None else Y - base
    offset = weights @ Y
    scales = np.sqrt(weights @ (Y - offset) ** 2)
    scales = np.where(scales > 0, scales, 1.0)
    return (Y - offset) / scales, noise, offset, scales, jacobian - len(Y) * np.log(scales).sum()
