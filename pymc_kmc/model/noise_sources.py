"""The random parts of a model's graph: noisy likelihoods, and the simulators of PyMC.

Both have the same members: a `name` for messages, the source's `scheme`, a :class:`Noise`, the
number `n_start` of replicates at a chain's start, and `rows`, the noise of the chain's state.
"""

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_kmc.likelihoods.noise_schemes import Noise, Seeds
from pymc_kmc.likelihoods.noisy_log_likelihood import NoisyLogLikelihood
from pymc_kmc.model.noise_owner import NoiseOwner


class EstimatedLikelihood:
    """A node whose Op, `op`, is a :class:`NoisyLogLikelihood`.

    Its noise is the value of a shared variable, where all steps of a model read it: they see one
    density. `output` is the log estimate, `parameters` are those of the user's function.
    """

    is_noisy = True

    def __init__(self, node):
        self.op = node.op
        self.output = node.outputs[0]
        self._noise, *self.parameters = node.inputs

    @property
    def owner(self) -> NoiseOwner:
        """The owner of the noise, shared by steps on this model."""
        return NoiseOwner.of(self._noise)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def scheme(self) -> Noise:
        return self.op.noise

    @property
    def n_start(self) -> int:
        return self.op.n_start

    @property
    def rows(self):
        """Noise of the chain's state, an array with a row for each replicate."""
        return self._noise.get_value(borrow=True)

    @rows.setter
    def rows(self, rows):
        self._noise.set_value(rows, borrow=True)  # never written to


class Simulator:
    """The random generator of a `pymc.Simulator`.

    `model.logp()` makes a new generator at each call. No other step reads this one, so the noise is
    kept here.
    """

    name = "pm.Simulator"
    scheme = Seeds()
    n_start = 1

    def __init__(self, generator):
        self._generator = generator
        self.rows = None

    def use(self, rows):
        """Let the compiled density simulate with this noise."""
        self._generator.set_value(self.scheme.inputs(rows[0])["rng"], borrow=True)


def estimated_likelihoods(graph):
    """Return the :class:`EstimatedLikelihood` s of a graph, in the order of their names."""
    nodes = {
        variable.owner
        for variable in ancestors([graph])
        if variable.owner is not None and isinstance(variable.owner.op, NoisyLogLikelihood)
    }
    return [EstimatedLikelihood(node) for node in sorted(nodes, key=lambda node: node.op.name)]


def simulators(graph):
    """Return a :class:`Simulator` for each random generator that a graph depends on."""
    return [
        Simulator(variable)
        for variable in ancestors([graph])
        if isinstance(variable, SharedVariable) and isinstance(variable.type, RandomType)
    ]
