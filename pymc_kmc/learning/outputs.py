r"""Transforms of opaque nodes' outputs into targets of a Gaussian process.

The depths of a term below its best value count less beyond a depth k. They may be compressed there
to :math:`k (1 + \log(\text{depth} / k))`, for a kernel whose length scale is that of the posterior,
or left as they are, for a polynomial. Other outputs are scaled to unit standard deviation where the
log density is high; positive ones may be emulated by their logarithms.
"""

from typing import NamedTuple

import numpy as np

# Depth below the best log density, in nats a dimension, beyond which it is compressed, and fewest
# dimensions that are counted: draws at temperature 2 are hardly deeper.
COMPRESSION_DEPTH, FEWEST_DIMENSIONS = 3.0, 2
# Largest number of dimensions that are few: a quadratic in more has so many coefficients that
# rounds learn them faster than searches, and compressed values determine them badly.
FEW_DIMENSIONS = 10
# Standard deviation of a deep value's error, as a share of its depth beyond. With .1 noisy deep
# values bent the process at draws: learning took 400 evaluations in place of 280.
DEEP_ERROR = 0.25
# Largest depth of a value that isn't compressed, in compression depths.
DEEPEST_PLAIN = 1e4
# Depth of a value of -inf, in units of the deepest finite one.
INFINITE = 2.0
# Depth, in nats, of values that are -inf or NaN, where no other is known.
DEEPEST = 1e6


class Compression(NamedTuple):
    """Compression of log densities more than `depth` below the `best` one."""

    best: float
    depth: float

    @classmethod
    def of(cls, values, n_dimensions):
        """Return the compression for log densities (n,), deeper if the best ones are far apart."""
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
        """Return standard deviations of errors of values, compressed or not."""
        return DEEP_ERROR * np.maximum(self.best - values - self.depth, 0.0)

    def log_slopes(self, values):
        """Return the log Jacobian of the compression at finite values."""
        return np.log(self.depth / np.maximum(self.best - values, self.depth)).sum()


def of_term(Y, log_densities, highest, d, transform, base=None):
    """Return a process's targets (n, 1), noise (n,), offset, scale and log Jacobian.

    They are of a term's values Y (n, 1), less `base` (n, 1), in d coordinates.
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
    """Return the same of outputs Y (n, m); `base` (n, m) is in the transform's units."""
    compression = Compression.of(np.minimum(log_densities, highest), d)
    finite = np.where(np.isfinite(log_densities), log_densities, compression.best - DEEPEST)
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
