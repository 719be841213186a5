"""PyTensor's graphs as a list of NumPy calls.

PyTensor's own linker for Python checks shapes, dtypes and error states at each node. That takes
some 15 microseconds, ten times as long as NumPy's arithmetic on some points.
"""

from functools import partial
from operator import itemgetter, methodcaller

import numpy as np
from pytensor.compile.ops import DeepCopyOp
from pytensor.graph.basic import Constant
from pytensor.link.basic import JITLinker
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i


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
    """Return a function of arrays that evaluates a graph, given the order of its nodes."""
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
    """Return a function of a node's inputs; it returns the output, or a list of several."""
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


def _performed(node):
    """Return a function that calls the node's Op in Python."""
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
