"""Arrays of variables, at many points, as columns of a matrix, and back."""

import numpy as np


class Columns:
    """Arrays of given shapes and dtypes, by default float64, as a matrix with a row for each point.

    Variables go through the graph one by one: slices of a joined vector would cost a loop over
    points.
    """

    def __init__(self, shapes, dtypes=None):
        self.shapes = shapes
        self.dtypes = dtypes or len(shapes) * ["float64"]
        self.sizes = [int(np.prod(shape)) for shape in shapes]
        self.ends = np.cumsum([0, *self.sizes])

    def split(self, X):
        """Return the arrays (n, ...) of a matrix (n, k)."""
        return [
            X[:, begin:end].reshape(len(X), *shape).astype(dtype)
            for begin, end, shape, dtype in zip(
                self.ends[:-1], self.ends[1:], self.shapes, self.dtypes, strict=True
            )
        ]

    def join(self, arrays):
        """Return the matrix (n, k) of arrays (n, ...)."""
        rows = [np.reshape(a, (len(a), k)) for a, k in zip(arrays, self.sizes, strict=True)]
        return np.hstack(rows).astype(float, copy=False)
