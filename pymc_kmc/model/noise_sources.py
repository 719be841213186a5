"""The random parts of a model's graph: noisy likelihoods, and the simulators of PyMC.

Both have the same members. `name` is for messages, `scheme` is the :class:`Noise` of the source,
`n_start` the number of replicates at a chain's start, and `rows` the noise of the chain's state.
"""

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_kmc.likelihoods.noise_schemes import Noise, Seeds
from pymc_kmc.likelihoods.noisy_log_likelihood import NoisyLogLikelihood
from pymc_kmc.model.noise_owner import NoiseOwner


class EstimatedLikelihood:
    """A node whose Op is a :class:`NoisyLogLikelihood`.

    Its noise is the value of a shared variable. All steps of a model read it there, so that they
    see one density.

    Attributes
    ----------
    op : NoisyLogLikelihood
    output : TensorVariable
        The log estimate.
    parameters : list of TensorVariable
        Parameters of the user's function.
    """

    def __init__(self, node):
        self.op = node.op
        self.output = node.outputs[0]
        self._noise, *self.parameters = node.inputs

    @property
    def owner(self) -> NoiseOwner:
        """What steps on this model tell each other of whose noise it is."""
        return NoiseOwner.of(self._noise)

    @property
    def name(self) -> str:
        """Name of the potential."""
        return self.op.name

    @property
    def scheme(self) -> Noise:
        """Scheme of the noise."""
        return self.op.noise

    @property
    def n_start(self) -> int:
        """Number of replicates at a chain's start."""
        return self.op.n_start

    @property
    def rows(self):
        """Noise of the chain's state, an array with a row for each replicate."""
        return self._noise.get_value(borrow=True)

    @rows.setter
    def rows(self, rows):
        self._noise.set_value(rows, borrow=True)  # never written to

    def start_chain(self):
        """Forget the last chain."""
        self.op.start_chain()

    def refresh(self, rows):
        """Keep the estimate under `rows` in memory, for when another step moves."""
        self.op.refresh(rows)


class Simulator:
    """The random generator of a `pymc.Simulator`.

    `model.logp()` makes a new generator at each call. No other step reads this one, so that the
    noise is kept here.
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

    def start_chain(self):
        """Forget the last chain: nothing is kept."""

    def refresh(self, rows):
        """Keep estimates in memory: there are none."""


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
