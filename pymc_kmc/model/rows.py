"""Many points at a time: arrays of variables as columns of a matrix, and functions of them.

Functions are evaluated node by node with NumPy. Nothing is compiled; a node costs a microsecond or
two and its arithmetic.
"""

from functools import reduce

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import local_check_parameter_to_ninf_switch
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import PerformLinker
from pytensor.raise_op import Assert
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.elemwise import Elemwise

from pymc_kmc.model.numpy_linker import NumPyLinker

REWRITES = RewriteDatabaseQuery(
    include=["fast_run", "local_check_parameter_to_ninf_switch"],
    exclude=["fusion", "BlasOpt", "inplace", "local_careduce_fusion"],
)
# Position among PyTensor's rewrites: after all of them.
LAST = 200.0
# What PyTensor's message begins with where shapes don't go together.
BROADCASTING = "Could not broadcast dimensions"


@node_rewriter([Elemwise])
def pairwise(fgraph, node):
    """Turn sums and products of many into those of two, the only ones that PyTensor gives to NumPy.

    All others would call a Python function for each element.
    """
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) < 3:
        return None
    return [reduce(node.op, node.inputs)]


@node_rewriter([Assert])
def without_row_checks(fgraph, node):
    """Leave out PyTensor's checks that arrays have the same number of rows, a third of the time."""
    return [node.inputs[0]] if node.op.msg.startswith(BROADCASTING) else None


def function(inputs, outputs, linker=PerformLinker):
    """Return PyTensor's function; its arguments must be arrays of the right types."""
    mode = Mode(linker=linker(), optimizer=REWRITES).register(
        (dfs_rewriter(pairwise, without_row_checks), LAST)
    )
    compiled = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    compiled.trust_input = True
    return compiled


def of_rows(inputs, outputs):
    """Return a function of many points at a time: every output gets a first axis."""
    rows = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in inputs]
    try:
        own_checks = _with_switches(outputs)
        vectorized = vectorize_graph(own_checks, dict(zip(inputs, rows, strict=True)))
    except Exception:  # whatever PyTensor can't vectorize: sparse matrices, for one
        return _row_by_row(inputs, outputs)
    n = rows[0].shape[0]
    # What doesn't depend on the inputs has no rows.
    full = [
        new if new.ndim > old.ndim else pt.broadcast_to(new, (n, *new.shape))
        for new, old in zip(vectorized, outputs, strict=True)
    ]
    return function(rows, full, NumPyLinker)


def _with_switches(outputs):
    """Return outputs that are -inf where a check of a distribution's parameters fails.

    PyTensor merges the checks of all rows into one: a row that fails would make the others fail.
    """
    # Shared variables, such as other steps' values and new data, are inputs too.
    graph = FunctionGraph(None, outputs, clone=True, copy_inputs=False)
    dfs_rewriter(local_check_parameter_to_ninf_switch).rewrite(graph)
    return graph.outputs


def _row_by_row(inputs, outputs):
    """Return a function of many points that evaluates one after another."""
    at_one = function(inputs, outputs, NumPyLinker)

    def at_all(*arrays):
        found = [at_one(*map(np.asarray, row)) for row in zip(*arrays, strict=True)]
        if not found:
            return [np.empty((0, *[n or 0 for n in v.type.shape]), v.dtype) for v in outputs]
        return [np.stack(values) for values in zip(*found, strict=True)]

    return at_all


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
