"""Functions of many points at a time, with variables as columns of a matrix.

NumPy functions evaluate the graph node by node, without compilation. A node costs one or two
microseconds and its arithmetic; PyTensor's Python linker takes some 15 microseconds a node.
"""

from functools import cached_property, partial, reduce
from operator import itemgetter, methodcaller

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import local_check_parameter_to_ninf_switch
from pytensor.compile.mode import Mode
from pytensor.compile.ops import DeepCopyOp
from pytensor.gradient import grad
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.raise_op import Assert
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.basic import Join, MakeVector, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

REWRITES = RewriteDatabaseQuery(
    include=["fast_run", "local_check_parameter_to_ninf_switch"],
    exclude=["fusion", "BlasOpt", "inplace", "local_careduce_fusion"],
)
# Position of this module's rewrites among PyTensor's: after all of them.
LAST = 200.0
# Start of PyTensor's message about shapes that can't be broadcast.
BROADCASTING = "Could not broadcast dimensions"


@node_rewriter([Elemwise])
def pairwise(fgraph, node):
    """Split sums and products of many into those of two: PyTensor gives only these to NumPy."""
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) < 3:
        return None
    return [reduce(node.op, node.inputs)]


@node_rewriter([Assert])
def without_row_checks(fgraph, node):
    """Remove PyTensor's checks that arrays have equal numbers of rows: a third of the time."""
    return [node.inputs[0]] if node.op.msg.startswith(BROADCASTING) else None


@node_rewriter([Join, MakeVector])
def sliced(fgraph, node):
    """Turn a join of a variable's entries, ``stack([x[0], x[1], ...])``, into a slice or a take.

    Otherwise a function of each group in turn has hundreds of nodes, each of which is compiled.
    """
    axis, parts = _joined(node)
    if axis is None or len(parts) < 2:
        return None
    inner = parts
    if not (is_stack := isinstance(node.op, MakeVector)):
        expanded = [_before_expansion(part, axis) for part in parts]
        is_stack = all(part is not None for part in expanded)
        inner = expanded if is_stack else parts
    entries = [_entry(part) for part in inner]
    if any(entry is None for entry in entries):
        return None
    bases, places, numbers, others = zip(*entries, strict=True)
    base, place, first, step = bases[0], places[0], numbers[0], numbers[1] - numbers[0]
    are_alike = all(each is base for each in bases) and all(each == others[0] for each in others)
    if not are_alike or len(set(places)) > 1 or len(set(numbers)) < len(numbers):
        return None
    indices = [slice(None) if k is None else k for k in others[0]]
    last, indices[place] = first + step * len(parts), slice(None)
    along = others[0][:place].count(None)
    if abs(step) == 1 and numbers == tuple(range(first, last, step)):
        indices[place] = slice(first, last if last >= 0 else None, step)
        found = base[tuple(indices)]
    else:
        found = pt.take(base[tuple(indices)], np.array(numbers), axis=along)
    found = pt.moveaxis(found, along, axis)
    if not is_stack:
        shape = [found.shape[i] for i in range(found.ndim)]
        joined = shape[axis] * shape[axis + 1]
        found = found.reshape((*shape[:axis], joined, *shape[axis + 2 :]))
    return [node.outputs[0].type.filter_variable(found)]


def _joined(node):
    """Return the axis and the parts of a join, or of a vector made of numbers."""
    if isinstance(node.op, MakeVector):
        return 0, node.inputs
    axis, parts = getattr(node.op, "axis", None), node.inputs
    if axis is None:  # PyTensor 2
        axis, *parts = node.inputs
        axis = int(axis.data) if isinstance(axis, Constant) else None
    return (None if axis is None else axis % node.outputs[0].ndim), parts


def _before_expansion(variable, axis):
    """Return the variable to which `axis` was added, or None."""
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle):
        return None
    order = list(range(variable.ndim - 1))
    order.insert(axis, "x")
    return node.inputs[0] if list(node.op.new_order) == order else None


def _entry(variable):
    """Return (base, place, number, indices) of a variable that is an entry of another, or None.

    `number` is the last index that is a number, `place` its position. `indices` are all up to
    there, None for a whole axis, with 0 at `place`.
    """
    node = variable.owner
    if node is None or not isinstance(node.op, Subtensor):
        return None
    base, *numbers = node.inputs
    indices = []
    for index in indices_from_subtensor(numbers, node.op.idx_list):
        if isinstance(index, slice):
            if index != slice(None):
                return None
            indices.append(None)
        elif isinstance(index, Constant) and index.data >= 0:
            indices.append(int(index.data))
        else:
            return None
    place = max((i for i, index in enumerate(indices) if index is not None), default=None)
    if place is None:
        return None
    number, indices[place] = indices[place], 0
    return base, place, number, indices


def with_slices(output):
    """Return a graph's output with :func:`sliced` joins."""
    graph = FunctionGraph(None, [output], clone=True, copy_inputs=False)
    dfs_rewriter(sliced).rewrite(graph)
    return graph.outputs[0]


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
    """Return outputs that are -inf if a check of a distribution's parameters fails."""
    # PyTensor merges the checks of all rows into one: a failing row would make the others fail.
    # Shared variables, such as other steps' values and new data, are inputs too.
    graph = FunctionGraph(None, outputs, clone=True, copy_inputs=False)
    dfs_rewriter(local_check_parameter_to_ninf_switch).rewrite(graph)
    return graph.outputs


def _row_by_row(inputs, outputs):
    at_one = function(inputs, outputs, NumPyLinker)

    def at_all(*arrays):
        found = [at_one(*map(np.asarray, row)) for row in zip(*arrays, strict=True)]
        if not found:
            return [np.empty((0, *[n or 0 for n in v.type.shape]), v.dtype) for v in outputs]
        return [np.stack(values) for values in zip(*found, strict=True)]

    return at_all


class Columns:
    """Arrays of given shapes and dtypes, by default float64, as a matrix with a row a point.

    Graphs take variables one by one: slices of a joined vector would cost a loop over points.
    """

    def __init__(self, shapes, dtypes=None):
        self.shapes = shapes
        self.dtypes = dtypes or len(shapes) * ["float64"]
        self.sizes = [int(np.prod(shape)) for shape in shapes]
        self.ends = np.cumsum([0, *self.sizes])

    def split(self, X):
        """Return the arrays (n, ...) of a matrix (n, k)."""
        parts = zip(self.ends[:-1], self.ends[1:], self.shapes, self.dtypes, strict=True)
        return [X[:, i:j].reshape(len(X), *shape).astype(dtype) for i, j, shape, dtype in parts]

    def join(self, arrays):
        """Return the matrix (n, k) of arrays (n, ...)."""
        rows = [np.reshape(a, (len(a), k)) for a, k in zip(arrays, self.sizes, strict=True)]
        return np.hstack(rows).astype(float, copy=False)


class Stacked:
    """Graphs of variables as columns of one matrix at many points, and its derivatives.

    `columns` are the Columns of the variables. Each function is compiled at its first call.
    """

    def __init__(self, variables, columns, graphs):
        self._variables, self._columns, self._graphs = variables, columns, graphs

    def __call__(self, X):
        """Return the matrix (n, k) at points (n, d)."""
        arrays = self._values(*self._columns.split(X))
        return np.hstack([array.reshape(len(X), -1) for array in arrays])

    def pull(self, X, weights):
        """Return the derivative (n, d) by X of the matrix's sum, weighted by `weights` (n, k)."""
        weights = Columns([v.type.shape for v in self._graphs]).split(weights)
        return self._columns.join(self._pulled(*self._columns.split(X), *weights))

    @cached_property
    def _values(self):
        return of_rows(self._variables, self._graphs)

    @cached_property
    def _pulled(self):
        weights = [pt.tensor(dtype="float64", shape=v.type.shape) for v in self._graphs]
        weighted = sum((v * w).sum() for v, w in zip(self._graphs, weights, strict=True))
        pulled = grad(weighted, self._variables, disconnected_inputs="ignore")
        return of_rows([*self._variables, *weights], pulled)


class NumPyLinker(JITLinker):
    """Evaluates a graph's nodes one after another, most of them by a NumPy function."""

    required_rewrites = (*JITLinker.required_rewrites, "py_only")
    incompatible_rewrites = (*JITLinker.incompatible_rewrites, "cxx_only")

    def fgraph_convert(self, fgraph, order, **storages):
        return straight(fgraph, order)

    def create_thunk_inputs(self, storage_map):
        return [storage_map[variable] for variable in self.fgraph.inputs]

    def jit_compile(self, fn):
        return fn


def straight(fgraph, order):
    """Return a function of arrays that evaluates a graph's nodes in this order."""
    places = {variable: i for i, variable in enumerate(fgraph.inputs)}
    wanted = [*[v for node in order for v in node.inputs], *fgraph.outputs]
    constants = dict.fromkeys(v for v in wanted if isinstance(v, Constant) and v not in places)
    places |= {variable: len(places) + i for i, variable in enumerate(constants)}
    data, calls, n_values = [variable.data for variable in constants], [], len(places)
    for node in order:
        calls.append((numpy_function(node), [places[v] for v in node.inputs]))
        if len(node.outputs) > 1:
            calls += [(itemgetter(i), [n_values]) for i in range(len(node.outputs))]
            n_values += 1
        for variable in node.outputs:
            places[variable] = n_values
            n_values += 1
    results = [places[variable] for variable in fgraph.outputs]

    def evaluate(*arguments):
        values = [*arguments, *data]
        with np.errstate(all="ignore"):
            for call, sources in calls:
                values.append(call(*[values[i] for i in sources]))
        # NumPy makes numbers of arrays without dimensions.
        return [np.asarray(values[i]) for i in results]

    return evaluate


def numpy_function(node):
    """Return a function of a node's inputs that returns its output, or a list of several."""
    op = node.op
    if isinstance(op, Elemwise):
        return _elementwise(node) or _performed(node)
    if isinstance(op, CAReduce) and op.axis is not None:
        return _reduction(op, node.outputs[0].dtype)
    if isinstance(op, DimShuffle):
        return _shuffle(op)
    if isinstance(op, Shape_i):
        return lambda array: np.array(array.shape[op.i], dtype=np.int64)
    if isinstance(op, DeepCopyOp):
        return methodcaller("copy")
    if isinstance(op, Blockwise) and isinstance(op.core_op, Split):
        return _split(node)
    return _performed(node)


def _elementwise(node):
    op, name = node.op, getattr(node.op, "nfunc_spec", None)
    if name is None or name[1:] != (len(node.inputs), 1) or op.inplace_pattern:
        return None
    op.prepare_node(node, None, None, "py")
    function, signature = op.nfunc, getattr(node.tag, "sig", None)
    if signature is not None:
        function = partial(function, sig=signature)
    dtype = np.dtype(node.outputs[0].dtype)
    ones = [np.ones(v.ndim * (1,), dtype=v.dtype) for v in node.inputs]
    if np.asarray(function(*ones)).dtype == dtype:
        return function
    return lambda *arrays: np.asarray(function(*arrays), dtype=dtype)


def _reduction(op, dtype):
    reduce, axis, within = op.ufunc.reduce, op.axis, op.acc_dtype or dtype

    def reduction(array):
        return np.asarray(reduce(array, axis=axis, dtype=within), dtype=dtype)

    return reduction


def _shuffle(op):
    # The kept axes come first, then those that are dropped.
    kept, dropped, augment = list(op.shuffle), list(op.drop), list(op.augment)
    axes, n_kept = kept + dropped, len(kept)

    def shuffle(array):
        array = np.transpose(array, axes)
        shape = list(array.shape[:n_kept])
        for place in augment:
            shape.insert(place, 1)
        return array.reshape(shape)

    return shuffle


def _split(node):
    """Return a function that splits all rows at once; PyTensor may do so one by one."""
    n_before, n = node.op.batch_ndim(node), len(node.outputs)
    own_axis = getattr(node.op.core_op, "axis", None)

    def split(array, *axis_and_sizes):
        *axis, sizes = axis_and_sizes  # the same for each row
        place = int(axis[0].flat[0]) if axis else own_axis
        ends = np.cumsum(sizes.reshape(-1, n)[0])[:-1]
        return np.split(array, ends, axis=place + n_before if place >= 0 else place)

    return split


def _performed(node):
    sources, targets = [[None] for _ in node.inputs], [[None] for _ in node.outputs]
    storage = dict(zip([*node.inputs, *node.outputs], [*sources, *targets], strict=True))
    # The same variable twice has one storage.
    sources = [storage[variable] for variable in node.inputs]
    compute_map = {variable: [variable in node.inputs] for variable in storage}
    thunk = node.op.make_thunk(node, storage, compute_map, [], "py")
    is_array = [hasattr(variable.type, "ndim") for variable in node.inputs]

    def performed(*arguments):
        for source, value, converts in zip(sources, arguments, is_array, strict=True):
            source[0] = np.asarray(value) if converts else value
        thunk()
        found = [target[0] for target in targets]
        for place in (*sources, *targets):
            place[0] = None
        return found if len(found) > 1 else found[0]

    return performed
