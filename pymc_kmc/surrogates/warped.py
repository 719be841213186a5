"""A surrogate in other coordinates, as a function of the given ones."""

import numpy as np

from pymc_kmc.numerics.checks import as_rows

# Step of the central differences that the warp's derivatives are, relative to a coordinate's size.
STEP = 1e-6


class WarpedSurrogate:
    """The density of x for a fitted surrogate of the density of y = warp.forward(x)."""

    def __init__(self, surrogate, warp):
        self.surrogate, self.warp = surrogate, warp
        self.n_features_in_ = surrogate.n_features_in_

    def log_density(self, X):
        """Return the log density at X, (d,) or (n, d): a float or (n,)."""
        rows, single = as_rows(X, self.n_features_in_)
        out = self.surrogate.log_density(self.warp.forward(rows)) - self.warp.log_volume(rows)
        return float(out[0]) if single else out

    def gradient(self, X):
        """Return the gradient of the log density at X, (d,) or (n, d), in the shape of X."""
        rows, single = as_rows(X, self.n_features_in_)
        gradients = self.surrogate.gradient(self.warp.forward(rows))
        out = np.empty(rows.shape)
        for i in range(rows.shape[1]):
            step = np.zeros(rows.shape)
            step[:, i] = STEP * np.maximum(1.0, np.abs(rows[:, i]))
            ahead, behind = rows + step, rows - step
            change = self.warp.forward(ahead) - self.warp.forward(behind)
            growth = self.warp.log_volume(ahead) - self.warp.log_volume(behind)
            out[:, i] = (np.sum(gradients * change, axis=1) - growth) / (2.0 * step[:, i])
        return out[0] if single else out


class WarpedPredictor(WarpedSurrogate):
    """The same for a surrogate with predictions and their standard deviations."""

    def predict(self, X, return_std=False):
        """Return predictions at X, (d,) or (n, d), with the constant; `return_std` adds stds."""
        rows, single = as_rows(X, self.n_features_in_)
        found = self.surrogate.predict(self.warp.forward(rows), return_std=return_std)
        means, stds = found if return_std else (found, None)
        means = means - self.warp.log_volume(rows)
        if not return_std:
            return float(means[0]) if single else means
        return (float(means[0]), float(stds[0])) if single else (means, stds)
