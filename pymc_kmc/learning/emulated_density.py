"""The emulated log density as the surrogate that chains move on.

It is the model's graph with emulators in place of its opaque nodes. Prior, transforms and
likelihood are exact and follow other steps' variables. Value and gradient are one compiled
function, which compiled trajectories call.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numba.extending import overload
from pytensor.compile.mode import get_mode
from pytensor.gradient import DisconnectedType, grad
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import basic as numba_basic

from pymc_kmc.adaptation.fitted import FittedSurrogate, LogWeights, fisher_information
from pymc_kmc.adaptation.transitions import learn_transitions
from pymc_kmc.dynamics import Metric, SurrogateHamiltonian
from pymc_kmc.learning.composite import Composite
from pymc_kmc.learning.display import Compiling, log
from pymc_kmc.learning.emulator import NodeEmulator, shrunk
from pymc_kmc.learning.region import FeasibleRegion, log_probability_graph
from pymc_kmc.likelihoods.black_box import CALL_ROUNDING
from pymc_kmc.model.differentiable import CompiledDensity, density_at
from pymc_kmc.model.log_density import compile_function
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.numerics.coordinates import IDENTITY, Coordinates
from pymc_kmc.numerics.evaluation import (
    INLINED,
    PythonParameters,
    gradient_in,
    log_density_in,
    workspace,
)
from pymc_kmc.numerics.jit import sources_digest
from pymc_kmc.numerics.linear_algebra import cholesky_factor, geometric_mean, single_threaded_blas
from pymc_kmc.surrogates.exact_gp_evaluation import outputs_at, packed, pulled_at
from pymc_kmc.surrogates.protocol import Predictor

# Minus the log correlation of starts and ends at which sequences end. With 6 they take .8 to 1.2 ms
# in three and four dimensions, with 3 .5 to .7, at the same effective sample size.
ENOUGH_DECORRELATION = 3.0
# Operations of a proposal's gradients for each emulator, and most emulators with a budget of their
# own. One budget takes two ms, a fifth of an evaluation of ten ms; twelve emulators share two (16
# ms on a slow machine).
OPERATIONS, MOST_BUDGETS = 12e6, 2
# Operations of a gradient besides emulators (two microseconds), and besides each emulator's (two
# thirds of one).
OVERHEAD, OVERHEAD_OF_ONE = 12e3, 4e3
# Fewest gradients of a proposal, some twelve trajectories. Glass has an ESS of 560 with 200, 520
# with 100, 440 with 60, 300 with 30.
FEWEST_GRADIENTS = 100
# Number of emulators above which this is the fewest gradients: a trajectory or two, 20 ms on a
# hundred.
MANY_EMULATORS, FEWEST_OF_MANY = 10, 20
# Number of the best evaluations that are compared with the model.
N_COMPARED = 8
# Last rounds whose evaluations weigh the surrogate by its errors.
N_WEIGHED = 2


class EmulatedDensity(Predictor):
    """A `Surrogate`: the log density with emulated outputs, given the values of other variables.

    The emulators are those of the LearnedPosterior `learned`. In `coordinates` the density has
    about unit curvature.
    """

    constant_ = 0.0

    def __init__(self, model, learned, coordinates):
        self.model, self.learned, self.coordinates = model, learned, coordinates
        self.variance_ = learned.noise**2
        self._point = None
        self.n_features_in_ = len(coordinates.origin)

    @cached_property
    def composite(self):
        learned = self.learned
        by_name = {variable.name: variable for variable in self.model.value_vars}
        variables = [by_name[name] for name in learned.names]
        # No noise is drawn, and nothing evaluated but an Op whose type doesn't say its shape.
        rng = np.random.default_rng(0)
        opaque = OpaqueModel(variables, self.model, rng, structure=learned.structure)
        if self._point is not None:
            opaque.follow(self._point)
        emulators: list = []
        for i, (node, state) in enumerate(zip(opaque.nodes, learned.emulators, strict=True)):
            is_first = node.function == i
            first = NodeEmulator.restored(node, state) if is_first else emulators[node.function]
            emulators.append(first if is_first else first.shared(node))
        region = learned.region and FeasibleRegion.restored(learned.region, opaque.is_noisy)
        return Composite(opaque, emulators, region)

    @cached_property
    def packed(self):
        """The emulators' :class:`Packed`, pickled too: another process might round otherwise."""
        return packed([part.packable for part in self.composite.parts])

    @property
    def operations(self):
        """Numbers (n,) of operations of each emulator's value and gradient."""
        counts = [len(getattr(part, "nodes", [part])) for part in self.composite.parts]
        return np.repeat(self.packed.operations, counts)

    @property
    def hamiltonian(self):
        return EmulatedHamiltonian(self)

    @property
    def parameters(self):
        """Parameters for evaluation, compiled once a process, or else PythonParameters."""
        if self._compiled is None:
            return PythonParameters(InCoordinates(self, self.coordinates))
        density, function = self._compiled
        coordinates = self.coordinates.origin, self.coordinates.inverse
        return EmulatedParameters(density.address, _shared_by(function), *coordinates)

    @cached_property
    def _compiled(self):
        """The CompiledDensity and its PyTensor function, or None if compilation failed."""
        composite, mode = self.composite, get_mode("NUMBA")
        # -inf where a parameter is impossible, in place of an exception.
        mode = mode.including("local_check_parameter_to_ninf_switch")
        try:
            x, *graphs = emulated_graph(composite, self.packed)
            function = compile_function([x], graphs, {"mode": mode})
            arguments = np.zeros(self.n_features_in_), *_shared_by(function)
            density = CompiledDensity.of(function, arguments)
            return density and (density, function)
        except Exception as error:
            # Many an exception of PyTensor's, numba's or LLVM's; NumPy evaluates the model too, but
            # rounds otherwise.
            log.debug(f"KMC: draws are evaluated by NumPy, for compilation failed: {error!r}")
            return None

    def __getstate__(self):
        # Addresses have no meaning in another process.
        left_out = "composite", "_compiled"
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __deepcopy__(self, memo):
        # PyMC copies a step's state before a chain; not all its models can be copied. Nothing here
        # changes but other steps' values, which each iteration brings anew.
        return self

    def follow(self, point):
        """Set the other variables to their values in PyMC's `point`."""
        self._point = {name: np.array(point[name]) for name in self.composite.model.others}
        self.composite.model.follow(self._point)

    def _log_densities(self, rows):
        return self._values(rows).penalised

    def _gradients(self, rows):
        return self._values(rows).gradient

    def _predictions(self, rows):
        values = self._values(rows)
        return values.penalised, np.sqrt(values.variance)

    def weight(self, value):
        """Return 0: chains learn from no value."""
        return 0.0

    def _values(self, rows):
        with np.errstate(all="ignore"), single_threaded_blas():
            return self.composite(rows, penalty=0.0)


def _shared_by(function):
    return tuple([storage[0] for storage in function.vm.inputs[1:]])


class EmulatedHamiltonian(SurrogateHamiltonian):
    """The Hamiltonian of an emulated density, compiled at its first use in a process."""

    def __init__(self, density):
        self.density, self.coordinates = density, density.coordinates
        self.metric = Metric(np.eye(density.n_features_in_))

    @property
    def parameters(self):
        return self.density.parameters


class InCoordinates:
    def __init__(self, surrogate, coordinates):
        self.surrogate, self.coordinates = surrogate, coordinates
        self.n_features_in_ = surrogate.n_features_in_

    def log_density(self, U):
        return self.surrogate.log_density(self.coordinates.backward(U))

    def gradient(self, U):
        return self.surrogate.gradient(self.coordinates.backward(U)) @ self.coordinates.inverse


def on_emulators(posterior, model) -> FittedSurrogate:
    """Return the FittedSurrogate of a LearnedPosterior of this model: its emulated log density."""
    X = posterior.positions
    with single_threaded_blas(), Compiling():
        covariance = shrunk(X)
        information = fisher_information(posterior.gradients, covariance)
        metric = geometric_mean(covariance, np.linalg.inv(information))
        coordinates = Coordinates(X.mean(axis=0), np.linalg.inv(cholesky_factor(metric)))
        density = EmulatedDensity(model, posterior, coordinates)
        _check_same_model(density, posterior.evaluations)
        transitions = learn_transitions(
            density.hamiltonian,
            X,
            np.random.default_rng(0),
            n_gradients(density.operations),
            most_decorrelation=ENOUGH_DECORRELATION,
        )
        fitted = FittedSurrogate(density, IDENTITY, transitions, LogWeights(density.hamiltonian))
        evaluations = posterior.evaluations
        n_last = sum(len(found.predicted) for found in posterior.rounds[-N_WEIGHED:])
        values = evaluations.log_densities[len(evaluations) - n_last :]
        finite = np.isfinite(values)
        if not finite.any():
            return fitted
        return fitted.weighed(evaluations.X[len(evaluations) - n_last :][finite], values[finite])


def _check_same_model(density, evaluations):
    """Raise a ValueError unless the best evaluations still have the same log densities."""
    best = evaluations[np.argsort(-evaluations.log_densities, kind="stable")[:N_COMPARED]]
    try:
        now = density.composite.model.values(best.X, best.outputs)
    except ValueError:  # other nodes, or outputs of other shapes
        now = np.full(len(best), np.nan)
    if not np.allclose(now, best.log_densities, rtol=CALL_ROUNDING, atol=CALL_ROUNDING):
        raise ValueError(
            f"the posterior was learned of another model: at its best place, with the same opaque "
            f"outputs, the log density was {best.log_densities[0]:.6g}, and is {now[0]:.6g} here. "
            "Where black boxes are the same, kmc.learn(evaluations=learned) takes over what was "
            "evaluated: kmc.KMC(kmc.learn(evaluations=learned))."
        )


def n_gradients(operations):
    """Return the number of gradients of a proposal, given each emulator's operations (n,)."""
    n = len(operations)
    total = OVERHEAD + n * OVERHEAD_OF_ONE + np.sum(operations)
    fewest = FEWEST_OF_MANY if n > MANY_EMULATORS else FEWEST_GRADIENTS
    return max(int(min(n, MOST_BUDGETS) * OPERATIONS / total), fewest)


# Emulators in place of opaque nodes, in a graph like any other


class EmulatorOp(Op):
    """The outputs of an emulator at points of its space.

    Inputs: points (c, k), numbers and layout of
    :class:`~pymc_kmc.surrogates.exact_gp_evaluation.Packed`, and the emulator's index in it.
    Outputs: those of c nodes (c, m), and a matrix for the gradient.
    """

    __props__ = ("n_outputs",)

    def __init__(self, n_outputs):
        self.n_outputs = n_outputs

    def make_node(self, points, numbers, layout, place):
        shape = points.type.shape[0], self.n_outputs
        outputs = pt.tensor(dtype="float64", shape=shape), pt.dmatrix()
        return Apply(self, [points, numbers, layout, place], outputs)

    def perform(self, node, inputs, output_storage):
        points, numbers, layout, place = inputs
        found = outputs_at(points, numbers, layout, int(place))
        for storage, value in zip(output_storage, found, strict=True):
            storage[0] = value

    def connection_pattern(self, node):
        return [[True, True], [False, False], [False, False], [False, False]]

    def pullback(self, inputs, outputs, cotangents):
        points, *packed = inputs
        by_outputs, _ = cotangents
        pulled = EmulatorPullOp()(points, by_outputs, *outputs, *packed)
        return [pulled, *[DisconnectedType()() for _ in packed]]

    L_op = pullback  # PyMC 5.28


class EmulatorPullOp(Op):
    """The gradients, by the points (c, k), of an emulator's weighted outputs."""

    __props__ = ()

    def make_node(self, points, by_outputs, outputs, memory, numbers, layout, place):
        inputs = [points, by_outputs, outputs, memory, numbers, layout, place]
        return Apply(self, inputs, [points.type()])

    def perform(self, node, inputs, output_storage):
        *arrays, place = inputs
        output_storage[0][0] = pulled_at(*arrays, int(place))


def _cache_key(op):
    """Return the cache key of an Op's compiled code, the same for any number of outputs."""
    return f"{type(op).__qualname__} {sources_digest()}"


@numba_basic.register_funcify_and_cache_key(EmulatorOp)
def _funcify_emulator(op, **kwargs):
    @numba_basic.numba_njit
    def emulator(points, numbers, layout, place):
        return outputs_at(points, numbers, layout, place.item())

    return emulator, _cache_key(op)


@numba_basic.register_funcify_and_cache_key(EmulatorPullOp)
def _funcify_pull(op, **kwargs):
    @numba_basic.numba_njit
    def pull(points, by_outputs, outputs, memory, numbers, layout, place):
        return pulled_at(points, by_outputs, outputs, memory, numbers, layout, place.item())

    return pull, _cache_key(op)


def emulated_graph(composite, packed):
    """Return x (d,), and graphs of a Composite's log density and gradient."""
    opaque, parts = composite.model, composite.parts
    numbers, layout = map(pytensor.shared, packed)
    x = pt.tensor("x", dtype="float64", shape=(opaque.n_dimensions,))

    def outputs_of(part, n_outputs, points):
        place = next(i for i, each in enumerate(parts) if each is part)
        outputs, _ = EmulatorOp(n_outputs)(points, numbers, layout, pt.constant(np.int64(place)))
        return outputs

    def emulate(family, inputs):
        emulator = next(e for e in parts if e.node is opaque.nodes[family[0]])
        n_outputs = emulator.node.n_outputs
        outputs = outputs_of(emulator, n_outputs, emulator.points(x, inputs))
        if not emulator.is_corrected:
            return outputs
        base = outputs_of(emulator.base, n_outputs, emulator.base.points(x, inputs))
        return outputs * base if emulator.is_log else outputs + base

    log_density = opaque.filled(x, emulate)
    if composite.region is not None:
        mean = outputs_of(composite.region, 1, x[None])[0, 0]
        log_density += log_probability_graph(mean, composite.region.smoothing)
    return x, log_density, grad(log_density, x)


# In compiled loops


class EmulatedParameters(NamedTuple):
    """A compiled log density with its gradient, in coordinates u: x = origin + inverse @ u.

    `address` is that of a :class:`~pymc_kmc.model.differentiable.CompiledDensity` in this process,
    `shared` are its arrays besides x. `origin` is (d,), `inverse` (d, d).
    """

    address: int
    shared: tuple
    origin: np.ndarray
    inverse: np.ndarray


def _is_emulated(parameters):
    return getattr(parameters, "instance_class", None) is EmulatedParameters


# The workspace has the last log density and the coordinates that it is of: a trajectory asks for
# the gradient first, which comes with it.
@overload(workspace, jit_options=INLINED)
def _overload_workspace(parameters):
    if not _is_emulated(parameters):
        return None
    return lambda parameters: np.full(1 + parameters.origin.shape[0], np.nan)


@overload(gradient_in, jit_options=INLINED)
def _overload_gradient_in(parameters, x, out, workspace):
    if not _is_emulated(parameters):
        return None

    def gradient(parameters, x, out, workspace):
        d = x.shape[0]
        position = np.empty(d)
        for i in range(d):
            position[i] = parameters.origin[i]
            for j in range(d):
                position[i] += parameters.inverse[i, j] * x[j]
        density = density_at(parameters.address, position, parameters.shared)
        value, slope = density((position,) + parameters.shared)
        workspace[0] = value[()]
        for j in range(d):
            workspace[1 + j] = x[j]
            out[j] = 0.0
            for i in range(d):
                out[j] += parameters.inverse[i, j] * slope[i]

    return gradient


@overload(log_density_in, jit_options=INLINED)
def _overload_log_density_in(parameters, x, workspace):
    if not _is_emulated(parameters):
        return None

    def log_density(parameters, x, workspace):
        for j in range(x.shape[0]):
            if workspace[1 + j] != x[j]:
                gradient_in(parameters, x, np.empty(x.shape[0]), workspace)
                break
        return workspace[0]

    return log_density
