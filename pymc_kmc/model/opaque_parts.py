"""The nodes of a log density's graph that have no usable gradient."""

from typing import Any, NamedTuple

import pytensor.tensor as pt
from pymc.pytensorf import make_shared_replacements
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.null_type import NullType
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.type import TensorType, continuous_dtypes, discrete_dtypes

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp
from pymc_kmc.model.log_density import LogDensity
from pymc_kmc.model.noise_sources import EstimatedLikelihood, estimated_likelihoods, simulators


class OpaquePart(NamedTuple):
    """A node or noisy likelihood of the graph, with its variables there.

    Attributes
    ----------
    inputs : list of TensorVariable
        Those that depend on the model's variables. Of a node that another one feeds: the inputs of
        the other one.
    source : Op, EstimatedLikelihood, or LogDensity
        The last of a density that is opaque as a whole.
    flag : TensorVariable or None
        1 where a black box that may fail has not failed.
    is_fed : bool
        Whether another opaque node is on the way to it.
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
    def is_alone(self):
        """Whether its likelihood, black box or density evaluates it, given its inputs."""
        if not isinstance(self.source, BlackBoxOp):
            return isinstance(self.source, EstimatedLikelihood | LogDensity)
        # An argument that is a constant isn't among the inputs.
        return len(self.inputs) == len(self.source.parameter_names)


def dependent(variables, log_density):
    """Return the list of nodes of a graph that depend on variables, in order.

    The set of all variables that depend on them, themselves included, is returned too.
    """
    found, nodes = set(variables), []
    for node in toposort([log_density]):
        if found.intersection(node.inputs):
            found.update(node.outputs)
            nodes.append(node)
    return nodes, found


def merged(log_density):
    """Return a log density in which equal nodes are one.

    PyMC copies nodes that two terms of the log density share. A black box would be paid for and
    emulated once for each observed variable that depends on it, and once for its failures.
    """
    graph = FunctionGraph(outputs=[log_density], copy_inputs=False)
    MergeOptimizer().rewrite(graph)
    return graph.outputs[0]


def opaque_nodes(log_density, variables):
    """Return the nodes without gradient between variables and a log density, in graph order."""
    nodes, found = dependent(variables, log_density)
    return [node for node in nodes if not _has_gradient(node, found)]


def _has_gradient(node, varying):
    """Say whether a node's outputs can be differentiated by those inputs that vary.

    The derivatives of integers are zero, and an Op has to declare that.
    """
    outputs = [v for v in node.outputs if _is_number(v)]
    if not outputs:
        return True
    try:
        inputs, wanted = _differentiable(node.inputs, varying)
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            outputs = [v for v in node.op.make_node(*inputs).outputs if _is_number(v)]
        gradients = [
            gradient
            for output in outputs
            for gradient in grad(
                output.astype("float64").sum(),
                wanted,
                disconnected_inputs="ignore",
                null_gradients="return",
            )
        ]
    except (NotImplementedError, NullTypeGradError, AttributeError):
        return False
    return not any(isinstance(gradient.type, NullType) for gradient in gradients)


def _differentiable(inputs, varying):
    """Return inputs with those that vary as functions of floats, and these floats."""
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
    """An opaque node can't be taken out of a log density; the message has its name and why."""


def opaque_parts(log_density, variables):
    """Return the OpaqueParts of a graph; an InseparableError if it can't be taken apart."""
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
    """Give nodes that others feed the inputs of these; leave out nodes that feed others alone.

    An InseparableError where one of such a pair may fail or is estimated.
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
    return [
        part._replace(inputs=_before(part.inputs, behind, varying), is_fed=True)
        if part.output in fed
        else part
        for part in parts
        if part.output in seen
    ]


def _before(variables, behind, varying):
    """Return the nearest ancestors of variables that vary and are not `behind` opaque outputs."""
    found = {}
    for variable in variables:
        if variable in behind:
            found.update(dict.fromkeys(_before(variable.owner.inputs, behind, varying)))
        elif variable in varying:
            found[variable] = None
    return list(found)


def given_others(model, variables):
    """Return a model's log density given its other variables, and a dict of these.

    It maps each of the model's other value variables to the shared variable in its place.
    """
    log_density = merged(model.logp())
    others = make_shared_replacements(model.initial_point(0), variables, model)
    return (clone_replace(log_density, others) if others else log_density), others


def others_behind(log_density, variables, others, is_whole=False):
    """Return the names of the `others` that an opaque node depends on.

    `variables` are to be learned; `is_whole` says whether the whole density is opaque.
    """
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
    """Return why a model can't be learned apart from its chains, or None where it can be.

    `variables` are to be learned. An empty sentence where nothing is opaque. Nothing is compiled.
    """
    log_density, others = given_others(model, variables)
    try:
        parts = opaque_parts(log_density, variables)
    except InseparableError as error:
        return str(error)
    if not parts:
        return ""
    if noisy := [part.name for part in parts if part.is_noisy]:
        return f"{', '.join(noisy)} is an estimate with noise"
    if behind := others_behind(log_density, variables, others):
        return f"{', '.join(part.name for part in parts)} depends on {', '.join(behind)} too"
    return None
