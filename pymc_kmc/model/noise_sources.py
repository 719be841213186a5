"""The random parts of a model's graph: noisy likelihoods, and the simulators of PyMC.

Both have a `name` for messages, a noise `scheme` (:class:`Noise`), the number `n_start` of
replicates at a chain's start, and `rows`, the noise of the chain's state.

The noise of an estimated likelihood is in a shared variable of the model, where all steps of a
chain read it. Two samplings of one model in one process would write into the same variable. A step
therefore keeps its chain's noise, and accepts other noise in the model only from the steps of its
own chain, which are recognised as follows:

- PyMC begins a chain with all of its steps, before the first iteration of any of them. Steps that
  begin so are of one session.
- A step is given a point with the values that the step before it has returned. If a step of all
  variables is given its own last point although another step has moved, that one is of another
  chain.
"""

from typing import Any
from uuid import uuid4

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.random.type import RandomType

from pymc_kmc.likelihoods.noise_schemes import Noise, Seeds
from pymc_kmc.likelihoods.noisy_log_likelihood import NoisyLogLikelihood


class NoiseOwner:
    """The owner of the noise in a model, shared by the model's steps and updated in place.

    `session` is that of the step that last began a chain or made an iteration; `has_moved` says
    whether a step of it has made one. `last` is the last step's token, `values` are those that it
    returned.
    """

    def __init__(self):
        self.session, self.has_moved = "", True
        self.last, self.values = "", {}

    @classmethod
    def of(cls, shared):
        """Return the owner of a shared variable's noise, one for all steps that read it."""
        if not hasattr(shared.tag, "kmc_noise_owner"):
            shared.tag.kmc_noise_owner = cls()
        return shared.tag.kmc_noise_owner


class NoiseClaim:
    """One step's claim to the model's noise; `has_all` if `names` are all value variables."""

    def __init__(self, owner, names, has_all):
        self.owner = owner
        self.names = names
        self.has_all = has_all
        self.token = uuid4().hex
        self.session = ""
        self.returned: dict[str, Any] = {}

    def begin(self):
        """Begin a chain: join the session of the steps that have just begun theirs."""
        owner = self.owner
        if owner.has_moved:
            owner.session, owner.has_moved = uuid4().hex, False
        self.session = owner.session
        self.returned = {}
        owner.last, owner.values = self.token, {}

    def was_taken(self, point):
        """Return whether another chain's step has taken the noise since this step's iteration."""
        owner = self.owner
        if owner.last == self.token:
            return False
        if owner.session != self.session:
            return True
        if not self.has_all:
            return False
        if not self.returned:
            return True  # a chain begins with its own noise
        return same(self.returned, point) and not same(owner.values, point)

    def is_own(self):
        return self.owner.last == self.token

    def take(self):
        owner = self.owner
        owner.session, owner.has_moved = self.session, True
        owner.last, owner.values = self.token, self.returned

    def hand_over(self, point):
        """Record the values that this step returns, for the other steps."""
        self.returned = {name: point[name] for name in self.names}
        self.take()


def same(values, point):
    return all(
        value is point[name] or np.array_equal(value, point[name]) for name, value in values.items()
    )


class EstimatedLikelihood:
    """A node of a :class:`NoisyLogLikelihood`, `op`, with its noise in a shared variable.

    `output` is the log estimate, `parameters` are those of the user's function.
    """

    is_noisy = True

    def __init__(self, node):
        self.op = node.op
        self.output = node.outputs[0]
        self._noise, *self.parameters = node.inputs
        self.name, self.n_start = self.op.name, self.op.n_start

    @property
    def owner(self) -> NoiseOwner:
        return NoiseOwner.of(self._noise)

    @property
    def scheme(self) -> Noise:
        return self.op.noise

    @property
    def rows(self):
        """Noise of the chain's state, an array with a row for each replicate."""
        return self._noise.get_value(borrow=True)

    @rows.setter
    def rows(self, rows):
        self._noise.set_value(rows, borrow=True)  # never written to


class Simulator:
    """The random generator of a `pymc.Simulator`, with its noise.

    `model.logp()` makes a new generator at each call: no other step reads this one.
    """

    name = "pm.Simulator"
    scheme = Seeds()
    n_start = 1

    def __init__(self, generator):
        self._generator = generator
        self.rows = None

    def use(self, rows):
        self._generator.set_value(self.scheme.inputs(rows[0])["rng"], borrow=True)


def estimated_likelihoods(log_density):
    """Return the :class:`EstimatedLikelihood` s of a log density, in the order of their names.

    Equal names, as submodels may have, are in the graph's order, the same in every process. A
    ValueError says that an estimate isn't just a term of the log density.
    """
    nodes = io_toposort([], [log_density])
    noisy = [node for node in nodes if isinstance(node.op, NoisyLogLikelihood)]
    for node in noisy:
        check_is_term(node.op, nodes, log_density.owner.inputs)
    return [EstimatedLikelihood(node) for node in sorted(noisy, key=lambda node: node.op.name)]


def check_is_term(op, nodes, terms):
    """Raise a ValueError unless the one use of an estimate among `nodes` is its own term."""
    # PyMC copies nodes that several terms share, but not their Op. A potential's term is its sum.
    uses = [node for node in nodes for v in node.inputs if v.owner is not None and v.owner.op is op]
    if len(uses) != 1 or terms.count(uses[0].outputs[0]) != 1:
        raise ValueError(
            f"The estimate {op.name!r} is used in the model's log density beside its own potential "
            "or in place of it. Only as a factor of the likelihood, once, is it unbiased: no other "
            "potential and no variable's parameter may depend on it. Put what is to be done with "
            f"it, a factor for instance, into the function of {op.name!r}; pm.Deterministic may "
            "record it."
        )


def simulators(graph):
    """Return a :class:`Simulator` for each random generator that a graph depends on."""
    shared = [v for v in ancestors([graph]) if isinstance(v, SharedVariable)]
    return [Simulator(v) for v in shared if isinstance(v.type, RandomType)]
