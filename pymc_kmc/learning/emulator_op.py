"""Emulators in place of opaque nodes in a model's graph, for compiled code.

The log density is then a graph like any other: PyTensor differentiates it and compiles value and
gradient as one function.
"""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import basic as numba_basic

from pymc_kmc.learning.region import log_probability_graph
from pymc_kmc.numerics.jit import sources_digest
from pymc_kmc.surrogates.exact_gp_evaluation import outputs_at, pulled_at


class EmulatorOp(Op):
    """The outputs of an emulator at a point of its space.

    Inputs: the point (k,), numbers and layout of
    :class:`~pymc_kmc.surrogates.exact_gp_evaluation.Packed`, and the emulator's place among those
    packed. Outputs: those of the node, raveled, and a vector that the gradient needs.
    """

    __props__ = ("n_outputs",)

    def __init__(self, n_outputs):
        self.n_outputs = n_outputs

    def make_node(self, point, numbers, layout, place):
        outputs = pt.tensor(dtype="float64", shape=(self.n_outputs,)), pt.dvector()
        return Apply(self, [point, numbers, layout, place], outputs)

    def perform(self, node, inputs, output_storage):
        point, numbers, layout, place = inputs
        found = outputs_at(point, numbers, layout, int(place))
        for storage, value in zip(output_storage, found, strict=True):
            storage[0] = value

    def connection_pattern(self, node):
        return [[True, True], [False, False], [False, False], [False, False]]

    def pullback(self, inputs, outputs, cotangents):
        point, *packed = inputs
        by_outputs, _ = cotangents
        pulled = EmulatorPullOp()(point, by_outputs, *outputs, *packed)
        return [pulled, *[DisconnectedType()() for _ in packed]]

    L_op = pullback  # PyMC 5.28


class EmulatorPullOp(Op):
    """The derivative of an emulator's weighted outputs by the point."""

    __props__ = ()

    def make_node(self, point, by_outputs, outputs, memory, numbers, layout, place):
        inputs = [point, by_outputs, outputs, memory, numbers, layout, place]
        return Apply(self, inputs, [point.type()])

    def perform(self, node, inputs, output_storage):
        *arrays, place = inputs
        output_storage[0][0] = pulled_at(*arrays, int(place))


def _key(op):
    """Return the cache key of an Op's compiled code, the same for any number of outputs."""
    return f"{type(op).__qualname__} {sources_digest()}"


@numba_basic.register_funcify_and_cache_key(EmulatorOp)
def _funcify_emulator(op, **kwargs):
    @numba_basic.numba_njit
    def emulator(point, numbers, layout, place):
        return outputs_at(point, numbers, layout, place.item())

    return emulator, _key(op)


@numba_basic.register_funcify_and_cache_key(EmulatorPullOp)
def _funcify_pull(op, **kwargs):
    @numba_basic.numba_njit
    def pull(point, by_outputs, outputs, memory, numbers, layout, place):
        return pulled_at(point, by_outputs, outputs, memory, numbers, layout, place.item())

    return pull, _key(op)


def emulated_graph(composite, packed):
    """Return graphs of x (d,), of a Composite's log density and of its gradient.

    `packed` has its parts.
    """
    opaque, emulators, parts = composite.model, composite.emulators, composite.parts
    numbers, layout = map(pytensor.shared, packed)
    x = pt.tensor("x", dtype="float64", shape=(opaque.n_dimensions,))

    def outputs_of(part, n_outputs, point):
        place = next(i for i, each in enumerate(parts) if each is part)
        outputs, _ = EmulatorOp(n_outputs)(point, numbers, layout, pt.constant(np.int64(place)))
        return outputs

    def emulate(i, inputs):
        emulator = emulators[i]
        n_outputs = emulator.node.n_outputs
        outputs = outputs_of(emulator, n_outputs, emulator.point(x, inputs))
        if not emulator.is_corrected:
            return outputs
        base = outputs_of(emulator.base, n_outputs, emulator.base.point(x, inputs))
        return outputs * base if emulator.is_log else outputs + base

    log_density = opaque.filled(x, emulate)
    if composite.region is not None:
        log_density += log_probability_graph(outputs_of(composite.region, 1, x)[0])
    return x, log_density, grad(log_density, x)
