"""The structure of a model's graph: the nodes without a usable gradient, and their role in it.

The graph has the nodes. Evaluations at some points show which nodes are terms of a sum, and which
variables their inputs depend on; :class:`~pymc_kmc.model.opaque.OpaqueModel` checks both later.
"""

import math
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.pytensorf import make_shared_replacements
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.null_type import NullType
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.type import TensorType, continuous_dtypes, discrete_dtypes

from pymc_kmc.likelihoods.black_box_op import GRAPH_ROUNDING, BlackBoxOp
from pymc_kmc.model.log_density import LogDensity
from pymc_kmc.model.noise_sources import EstimatedLikelihood, estimated_likelihoods, simulators
from pymc_kmc.model.rows import with_slices

# Number of points at which the graph is evaluated first, and their distances from the initial one
# in each variable: near it, as far as PyMC's jitter, and as far as priors reach.
N_TRIED, SPREADS = 12, (0.1, 1.0, 3.0)
# Sizes of the outputs with which their derivatives are compared, several and a single one: bounds,
# kinks and saturation may lie anywhere between. A single output is emulated as it is in any case.
SIZES, SIZES_OF_NUMBER = (1.0, 1e2, 1e4), (1.0,)
# Fewest points with a finite log density for a derivative to be called constant.
FEWEST_FINITE = 3
# Relative error of a log density that is computed in two ways.
ROUNDING_OF_SUM = 1e-7


class OpaquePart(NamedTuple):
    """A node or noisy likelihood of the graph, with its variables there.

    `inputs` are those that depend on the model's variables; if another opaque node feeds it
    (`is_fed`), that node's inputs. `source` is an Op, an EstimatedLikelihood, or the LogDensity
    that is opaque as a whole. `flag` is the variable that is 1 if a black box that may fail hasn't
    failed, else None.
    """

    name: str
    output: Any
    inputs: list
    source: Any
    flag: Any = None
    is_fed: bool = False

    @property
    def is_noisy(self):
        is_density = isinstance(self.source, EstimatedLikelihood | LogDensity)
        return is_density and self.source.is_noisy

    @property
    def has_other_arguments(self):
        """Whether it depends on data or constants besides its inputs, as no estimate does."""
        if isinstance(self.source, EstimatedLikelihood | LogDensity):
            return False
        above = ancestors([self.output], blockers=self.inputs)
        return any(isinstance(v, SharedVariable | Constant) for v in above)

    @property
    def function(self):
        """A key that is common to parts that are one function of all their arguments; else None."""
        node, source = self.output.owner, self.source
        if not isinstance(source, Op) or self.is_fed or len(self.inputs) < len(node.inputs):
            return None
        called, types = id(source), [v.type for v in [*node.inputs, self.output]]
        if isinstance(source, BlackBoxOp):
            called, types = id(source.function), [*types, source.vectorized]
        return called, node.outputs.index(self.output), *types

    @property
    def is_alone(self):
        """Whether its likelihood, black box or density can evaluate it, given its inputs."""
        if not isinstance(self.source, BlackBoxOp):
            return isinstance(self.source, EstimatedLikelihood | LogDensity)
        # An argument that is a constant isn't among the inputs.
        return len(self.inputs) == len(self.source.parameter_names)


def dependent(variables, log_density):
    """Return the nodes of a graph that depend on variables, and all such variables, a set."""
    found, nodes = set(variables), []
    for node in toposort([log_density]):
        if found.intersection(node.inputs):
            found.update(node.outputs)
            nodes.append(node)
    return nodes, found


def merged(log_density):
    """Return a log density in which equal nodes are one."""
    # PyMC copies nodes that several terms share: each copy of a black box would be evaluated.
    graph = FunctionGraph(outputs=[log_density], copy_inputs=False)
    MergeOptimizer().rewrite(graph)
    return graph.outputs[0]


def with_coarse(log_density):
    """Return a log density with the coarse versions of its black boxes."""
    nodes = [v.owner for v in ancestors([log_density]) if v.owner is not None]
    replaced = {}
    for node in nodes:
        if isinstance(node.op, BlackBoxOp) and node.op.coarse is not None:
            coarse = node.op.coarse.make_node(*node.inputs).outputs
            replaced.update(zip(node.outputs, coarse, strict=True))
    return clone_replace(log_density, replaced)


def opaque_nodes(log_density, variables):
    """Return the nodes without gradient between variables and a log density, in graph order."""
    nodes, found = dependent(variables, log_density)
    return [node for node in nodes if not _has_gradient(node, found)]


def _has_gradient(node, varying):
    outputs = [v for v in node.outputs if _is_number(v)]
    if not outputs:
        return True
    try:
        # The derivatives of integers are zero, and an Op has to declare that.
        inputs, wanted = _differentiable(node.inputs, varying)
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            outputs = [v for v in node.op.make_node(*inputs).outputs if _is_number(v)]
        sums = [output.astype("float64").sum() for output in outputs]
        options: dict = {"disconnected_inputs": "ignore", "null_gradients": "return"}
        gradients = [gradient for value in sums for gradient in grad(value, wanted, **options)]
    except (NotImplementedError, NullTypeGradError, AttributeError):
        return False
    return not any(isinstance(gradient.type, NullType) for gradient in gradients)


def _differentiable(inputs, varying):
    """Return inputs, with integers that vary as functions of floats, and all floats that vary."""
    found, floats = [], []
    for v in inputs:
        if v in varying and _is_continuous(v):
            floats.append(v)
        elif v in varying and _is_number(v):  # an integer
            floats.append(pt.tensor(dtype="float64", shape=v.type.shape))
            v = v.type.filter_variable(floats[-1].astype(v.dtype))
        found.append(v)
    return found, floats


def _is_number(variable):
    if not isinstance(variable.type, TensorType):
        return False
    return variable.type.dtype in continuous_dtypes or variable.type.dtype in discrete_dtypes


def _is_continuous(variable):
    return getattr(variable.type, "dtype", None) in continuous_dtypes


class InseparableError(Exception):
    """An opaque node can't be separated from a log density; the message has its name and why."""


def opaque_parts(log_density, variables):
    """Return the OpaqueParts of a graph; an InseparableError if they can't be separated."""
    if found := simulators(log_density):
        raise InseparableError(f"{found[0].name} is a pm.Simulator, whose value is an estimate")
    likelihoods = estimated_likelihoods(log_density)
    noisy = [likelihood.output.owner for likelihood in likelihoods]
    parts = [
        OpaquePart(likelihood.name, likelihood.output, list(likelihood.parameters), likelihood)
        for likelihood in likelihoods
    ]
    _, varying = dependent(variables, log_density)
    matters = set(ancestors([log_density]))
    for node in opaque_nodes(log_density, variables):
        if node in noisy:
            continue
        op, outputs, flag = node.op, [v for v in node.outputs if v in matters], None
        name = op.name if isinstance(op, BlackBoxOp) else str(op)
        if isinstance(op, BlackBoxOp) and op.rejects:
            outputs, flag = node.outputs[:1], node.outputs[1]
        if not all(map(_is_continuous, outputs)):
            raise InseparableError(f"{name} returns integers, between which nothing is smooth")
        inputs = [v for v in node.inputs if v in varying]
        names = [name] if len(outputs) == 1 else [f"{name}[{i}]" for i in range(len(outputs))]
        parts += [OpaquePart(*pair, inputs, op, flag) for pair in zip(names, outputs, strict=True)]
    return _unfed(parts, log_density, varying)


def _unfed(parts, log_density, varying):
    """Replace the inputs of fed nodes by the feeding ones'; drop nodes that only feed others.

    An InseparableError if one of such a pair may fail or is estimated.
    """
    outputs = {part.output for part in parts}
    feeding = {part.output: outputs.intersection(ancestors(part.inputs)) for part in parts}
    if not any(feeding.values()):
        return parts
    fed = {output for output, others in feeding.items() if others}
    involved = fed.union(*feeding.values())
    for part in parts:
        if part.output in involved and (part.flag is not None or part.is_noisy):
            what = "is an estimate" if part.is_noisy else "may fail"
            raise InseparableError(f"{part.name} {what}, and feeds another or is fed by one")
    _, behind = dependent(outputs, log_density)
    seen = set(ancestors([log_density], outputs))
    kept = [part for part in parts if part.output in seen]
    unfed = [_before(part.inputs, behind, varying) for part in kept]
    return [
        part._replace(inputs=inputs, is_fed=True) if part.output in fed else part
        for part, inputs in zip(kept, unfed, strict=True)
    ]


def _before(variables, behind, varying):
    """Return the nearest ancestors of variables that vary and don't depend on opaque outputs."""
    found = {}
    for variable in variables:
        if variable in behind:
            found.update(dict.fromkeys(_before(variable.owner.inputs, behind, varying)))
        elif variable in varying:
            found[variable] = None
    return list(found)


def given_others(model, variables):
    """Return a model's log density given its other variables, and shared replacements of these."""
    log_density = merged(model.logp())
    others = make_shared_replacements(model.initial_point(0), variables, model)
    return (clone_replace(log_density, others) if others else log_density), others


def others_behind(log_density, variables, others, is_whole=False):
    """Return the names of `others` that an opaque node, or the density if whole, depends on."""
    if not others:
        return []
    names, shared = {s: v.name for v, s in others.items()}, set(others.values())
    nodes = opaque_nodes(log_density, [*variables, *shared])
    # Of an integer nothing has a gradient, so that one has to look for black boxes.
    every = {v.owner for v in ancestors([log_density]) if v.owner is not None}
    nodes += [node for node in every if isinstance(node.op, BlackBoxOp)]
    behind = ancestors([log_density] if is_whole else [v for node in nodes for v in node.inputs])
    return sorted(names[v] for v in shared.intersection(behind))


def why_not_learned(model, variables):
    """Return why `variables` can't be learned before the chains, or None if they can be.

    The reason is "" if nothing in the model is opaque. Nothing is compiled.
    """
    log_density, others = given_others(model, variables)
    try:
        parts = opaque_parts(log_density, variables)
    except InseparableError as error:
        return str(error)
    if not parts:
        return ""
    if behind := others_behind(log_density, variables, others):
        return f"{', '.join(part.name for part in parts)} depends on {', '.join(behind)} too"
    return None


class StructureError(Exception):
    """An evaluation has refuted the structure read off a model's graph."""


class OpaqueNode(NamedTuple):
    """A part of the log density without usable gradient.

    `n_outputs` values are emulated: 1 for a term of the log density (`is_term`), which is a
    weighted sum of its outputs. `is_noisy` says that it is an estimate. The slices `inputs`,
    `outputs` and `returned` are its own among all opaque inputs, all emulated outputs and all
    returned values, raveled. `moves_with` has the positions of the unconstrained values that its
    inputs depend on. `shape` is that of its outputs, () for a term; `weights` are a term's, else
    None. `function` is the number of the first node that is the same function of its inputs.
    """

    name: str
    n_outputs: int
    is_term: bool
    is_noisy: bool
    inputs: slice
    outputs: slice
    moves_with: np.ndarray
    shape: tuple
    returned: slice = slice(0, 1)
    weights: np.ndarray | None = None
    function: int = 0

    def emulated(self, returned):
        """Return the emulated values (n, n_outputs), given all returned values (n, k)."""
        own = returned[:, self.returned]
        if not self.is_term:
            return own
        with np.errstate(invalid="ignore"):  # infinities of both signs
            return (own * self.weights).sum(axis=1, keepdims=True)


class Structure(NamedTuple):
    """The structure of a model's graph that no evaluation has refuted.

    `is_whole` says whether the density is opaque as a whole; `are_terms` and `moves_with` are those
    of each :class:`OpaqueNode`.
    """

    is_whole: bool
    are_terms: tuple
    moves_with: tuple


def tried_points(start):
    """Return points (n, d) at which a graph is evaluated; the first one is `start` (d,)."""
    rng = np.random.default_rng(0)
    spreads = np.repeat(SPREADS, -(-N_TRIED // len(SPREADS)))[:N_TRIED, None]
    return np.vstack([start, start + spreads * rng.standard_normal((N_TRIED, len(start)))])


def term_weights(given, X, sizes):
    """Return the weights (k,) of each part's outputs in the log density; None if it is no term.

    ``given(X, outputs)`` returns log densities (n,), and derivatives by X and by all outputs; it is
    evaluated at X (n, d). `sizes` are the numbers of the parts' outputs.
    """
    rng = np.random.default_rng(1)
    found = []
    for scales in (SIZES, SIZES_OF_NUMBER):
        raw = np.resize(scales, len(X))[:, None] * rng.standard_normal((len(X), sum(sizes)))
        with np.errstate(all="ignore"):
            values, _, derivatives = given(X, raw)
        # Where the log density isn't finite a derivative says nothing.
        found.append(derivatives[np.isfinite(values)])
    weights, begin = [], 0
    for size in sizes:
        tried = found[int(size == 1)][:, begin : begin + size]
        begin += size
        if size == 1:
            tried = tried[tried != 0.0][:, None]
        first = tried[0] if len(tried) else np.zeros(size)
        same = len(tried) >= FEWEST_FINITE and np.allclose(tried, first, GRAPH_ROUNDING, 0.0)
        weights.append(first if same and first.any() else None)
    return weights


def dependence(inputs_at, X):
    """Return the mask (d, k) of variables that `inputs_at`, (n, k), moves with at X (n, d)."""
    inputs = inputs_at(X)
    depends = np.empty((X.shape[1], inputs.shape[1]), dtype=bool)
    for j in range(len(depends)):
        moved = X.copy()
        moved[:, j] = np.roll(X[:, j], 1)
        depends[j] = _differ(inputs_at(moved), inputs).any(axis=0)
    return depends


def dependent_besides(inputs_at, X, inputs, start, node):
    """Return positions of variables that a node's inputs depend on besides its `moves_with`.

    `inputs` (n, k) are the opaque inputs at X (n, d); the other variables are held at `start` (d,).
    """
    held = np.setdiff1d(np.arange(len(start)), node.moves_with)
    own, last = X.copy(), inputs[:, node.inputs]
    own[:, held] = start[held]
    if not len(held) or not _differ(inputs_at(own)[:, node.inputs], last).any():
        return np.array([], dtype=int)
    # One after another: at least one of them changes something.
    own, found = X.copy(), []
    for j in held:
        own[:, j] = start[j]
        now = inputs_at(own)[:, node.inputs]
        if _differ(now, last).any():
            found.append(j)
        last = now
    return np.array(found)


def described_nodes(parts, input_sizes, holes, depends, weights):
    """Return an OpaqueNode for each of the parts.

    `input_sizes` has the sizes of all parts' inputs, `holes` the Columns of their outputs;
    `depends` is that of :func:`dependence`, `weights` those of :func:`term_weights`.
    """
    nodes, sizes, functions = [], iter(input_sizes), []
    inputs = outputs = returned = slice(0, 0)
    for part, shape, size, own in zip(parts, holes.shapes, holes.sizes, weights, strict=True):
        is_term = own is not None
        inputs = _after(inputs, sum(islice(sizes, len(part.inputs))))
        outputs = _after(outputs, 1 if is_term else size)
        returned = _after(returned, size)
        moves_with = np.flatnonzero(depends[:, inputs].any(axis=1))
        if not len(moves_with):
            moves_with = np.arange(len(depends))
        places = inputs, outputs, moves_with, () if is_term else tuple(map(int, shape)), returned
        n_outputs, key = outputs.stop - outputs.start, None if is_term else part.function
        functions.append((key or len(nodes), inputs.stop - inputs.start, shape))
        described = part.name, n_outputs, is_term, part.is_noisy, *places, own
        nodes.append(OpaqueNode(*described, functions.index(functions[-1])))
    return nodes


def _after(last, n):
    return slice(last.stop, last.stop + n)


def shared_out(weights):
    """Return a term's outputs (k,) for a weighted sum of 1."""
    return weights / (weights @ weights)


class Family(NamedTuple):
    """Successive parts that are one function; most families have one part.

    `parts` are the c parts' numbers, `inputs` is the graph of their inputs (c, k), `shape` that of
    all their outputs: (c, ...), without c if it is 1.
    """

    parts: list
    inputs: Any
    shape: tuple


def by_function(parts):
    """Return parts in an order in which those of one function follow each other."""
    keys = [part.function or i for i, part in enumerate(parts)]
    order = sorted(range(len(parts)), key=lambda i: keys.index(keys[i]))
    return [parts[i] for i in order]


def families(parts, shapes, input_shapes):
    """Return the Families of parts, given the shapes of their outputs and of all their inputs."""
    found, left = [], iter(input_shapes)
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        of_inputs = tuple(islice(left, len(part.inputs)))
        found.append((part.function or i, tuple(shape), of_inputs))
    return [
        _family(list(numbers), parts, *key[1:])
        for key, numbers in groupby(range(len(parts)), key=found.__getitem__)
    ]


def _family(numbers, parts, shape, input_shapes):
    n, columns = len(numbers), []
    of_each = zip(*[parts[i].inputs for i in numbers], strict=True)
    for variables, own in zip(of_each, input_shapes, strict=True):
        columns.append(pt.stack(variables).reshape((n, math.prod(own))).astype("float64"))
    inputs = with_slices(pt.concatenate(columns, axis=1))
    return Family(numbers, inputs, shape if n == 1 else (n, *shape))


def entries(values, n):
    """Return the list of n entries of a variable, or the variable itself if n is 1."""
    return [values] if n == 1 else [values[i] for i in range(n)]


def _differ(a, b):
    """Return the mask where two arrays differ; NaN is equal to NaN."""
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))
