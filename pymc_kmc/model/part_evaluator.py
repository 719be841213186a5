"""Evaluations of a model's opaque parts at many points, on their executors."""

from itertools import islice, tee

import numpy as np

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp
from pymc_kmc.model.log_density import LogDensity
from pymc_kmc.model.rows import function, of_rows


class PartEvaluator:
    """Evaluates opaque parts at many points.

    `variables` are those of `columns`, the Columns of a matrix of points; `parts` are OpaqueParts.
    `executor`, a LazyExecutor or None, runs parts that have none of their own; `rng` draws the
    noise of estimates.
    """

    def __init__(self, variables, columns, parts, executor, rng):
        self._columns, self._parts = columns, parts
        self._executor, self._rng = executor, rng
        self._arguments = of_rows(variables, [v for part in parts for v in part.inputs])
        # A node that feeds another is evaluated with it, once.
        chained = any(part.is_fed for part in parts)
        self._together = [p for p in parts if not p.is_alone or (chained and not p.is_noisy)]
        self._outputs = function(variables, [part.output for part in self._together])

    def arguments(self, X):
        """Return the inputs of all parts at X (n, d), a list of arrays (n, ...)."""
        return self._arguments(*self._columns.split(X))

    def output_shapes(self, x):
        """Return the shapes of all outputs, and the number of evaluations at x (d,) for them."""
        shapes = [part.output.type.shape for part in self._parts]
        if not any(n is None for shape in shapes for n in shape):
            return shapes, 0
        for part, value in zip(self._together, self._outputs_at(x), strict=True):
            shapes[self._parts.index(part)] = np.shape(value)
        return shapes, 1

    def _outputs_at(self, x):
        return self._outputs(*[row[0] for row in self._columns.split(x[None])])

    def rows(self, X):
        """Yield numbers of a point and a part, and its output there, as soon as it is available."""
        arrays = iter(self.arguments(X))
        together = enumerate(tee((self._outputs_at(x) for x in X), len(self._together)))
        for number, part in enumerate(self._parts):
            arguments, source = list(islice(arrays, len(part.inputs))), part.source
            if isinstance(source, LogDensity):
                sources = [*source.likelihoods, *source.simulators]
                rows = (source.evaluate(x, self._noise(sources)).log_density for x in X)
            elif part.is_noisy:
                # Each estimate is under noise of its own.
                calls = [(self._noise([source])[0], row) for row in zip(*arguments, strict=True)]
                rows = source.op.each(calls, self._executor)
            elif part not in self._together:
                rows = source.each(arguments, self._executor)
            else:
                k, found = next(together)
                rows = (outputs[k] for outputs in found)
            for i, row in enumerate(rows):
                yield i, number, row

    def _noise(self, sources):
        return tuple(source.scheme.draw(source.n_start, self._rng) for source in sources)

    @property
    def n_workers(self):
        """Number of evaluations that the executors run at once; 1 without one."""
        return min(map(self._n_workers, self._parts))

    def _n_workers(self, part):
        if isinstance(part.source, LogDensity) or part in self._together:
            return 1
        try:
            return getattr(part.source, "op", part.source).n_workers(self._executor) or 1
        except ValueError:  # it has no workers
            raise
        except Exception:  # it recurs at the first task, where it is explained
            return 1

    @property
    def runs_ahead(self):
        """Whether evaluations can begin beside others, before they are asked for."""
        source = self._parts[0].source
        if len(self._parts) > 1 or self._together or not isinstance(source, BlackBoxOp):
            return False
        return source.runs_ahead(self._executor)

    def begin(self, X):
        """Start evaluations at X (n, d) on the executor, if :attr:`runs_ahead`."""
        self._parts[0].source.begin(self.arguments(X), self._executor)

    def end(self):
        """End evaluations no longer needed, and the workers of an executor made here."""
        if self.runs_ahead:
            self._parts[0].source.abandon()
        if self._executor is not None:
            self._executor.forget()
