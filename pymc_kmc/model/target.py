r"""What a step may evaluate, and what that costs.

:class:`TargetDensity` is the log density of a block of variables on their raveled, unconstrained
scale, with the other variables held at their current values. Where the model has likelihoods that
are only estimated, the state that the chain carries is the block's position *and* their
noise (:mod:`pymc_kmc.likelihoods.noise`): a proposal comes with renewed noise, the accepted
estimate is recycled and never drawn again (Andrieu and Roberts, 2009). The noise lives in shared
variables of the model's graph, which
every step of a `CompoundStep` reads, so that all of them see one density on the extended space.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.exceptions import SamplingError
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import continuous_dtypes

from pymc_kmc.likelihoods.noise import Normals, Seeds, noise_generator
from pymc_kmc.likelihoods.noisy_log_likelihood import NoisyLogLikelihood

__all__ = ["Evaluation", "TargetDensity", "compile_function"]


class Evaluation(NamedTuple):
    """The target's value at one position under one noise.

    Attributes
    ----------
    log_density : float
        Of the whole model, the estimates included.
    log_likelihood_estimate : float
        Sum of the noisy terms; 0 where there are none, `log_density` with a `pymc.Simulator`.
    position : ndarray, shape (d,)
        The block's raveled, unconstrained values.
    noise : tuple of ndarray
        One for each source of noise.
    parameters : bytes
        Those of the noisy likelihoods, to tell whether two estimates are of one quantity.
    gradient : ndarray, shape (d,), or None
        Of the log density, where it was asked for.
    """

    log_density: float
    log_likelihood_estimate: float
    position: np.ndarray
    noise: tuple
    parameters: bytes = b""
    gradient: np.ndarray | None = None


class NoisyTerm(NamedTuple):
    """A term of the log density that is estimated, at one position.

    Attributes
    ----------
    name : str
    noise : Seeds or Normals
    n_replicates : int
        Rows of its noise.
    log_estimate : callable
        Of noise, a float.
    """

    name: str
    noise: Seeds | Normals
    n_replicates: int
    log_estimate: Callable


class TargetDensity:
    """The log density that a step samples from, as a function of one vector.

    Parameters
    ----------
    variables : list of TensorVariable
        The block's value variables, all of them continuous.
    model : pymc.Model
        The model.
    initial_point : dict of str to ndarray
        Gives shapes and the other variables' first values.
    compile_kwargs : dict, optional
        For `pytensor.function`.

    Attributes
    ----------
    n_dimensions : int
        Length of the vector.
    n_evaluations : int
        Evaluations of the density since :meth:`start_chain`.
    is_noisy : bool
        Whether it depends on noise.

    Raises
    ------
    TypeError
        If a variable of the block is discrete.
    ValueError
        If the model has a `pymc.Simulator` and the block isn't the whole model.
    """

    def __init__(self, variables, model, initial_point, compile_kwargs=None):
        for variable in variables:
            if variable.dtype not in continuous_dtypes:
                raise TypeError(
                    f"Variable {variable.name!r} is discrete ({variable.dtype}): the steps of "
                    "pymc_kmc "
                    "move continuous variables. Give the others to another step, for example "
                    "pm.sample(step=[kmc.KMC(vars=[...]), pm.Metropolis(vars=[...])])."
                )
        self.model = model
        self.names = tuple(variable.name for variable in variables)
        self.n_dimensions = int(sum(initial_point[name].size for name in self.names))
        self._compile(variables, initial_point, compile_kwargs or {})
        self.n_evaluations = 0
        self._current = None
        self._handed_over = None, ()

    def _compile(self, variables, initial_point, compile_kwargs):
        # Once: every call of model.logp() makes new generators for the model's simulators.
        log_density = self.model.logp()
        nodes = noisy_nodes(log_density)
        self._likelihoods = [node.op for node in nodes]
        self._noise_variables = [node.inputs[0] for node in nodes]
        self._generators = simulator_generators(log_density)
        self._generator_seeds = (np.zeros(1, dtype=np.int64),) * len(self._generators)
        # What draws the noise of each source, and how many rows a chain begins with.
        self._kinds = [likelihood.noise for likelihood in self._likelihoods]
        self._kinds += [Seeds()] * len(self._generators)
        self._n_start = [likelihood.n_start for likelihood in self._likelihoods]
        self._n_start += [1] * len(self._generators)
        if self._generators and set(self.names) != {v.name for v in self.model.value_vars}:
            others = sorted({v.name for v in self.model.value_vars} - set(self.names))
            raise ValueError(
                "A model with pm.Simulator must be sampled by one step that has all its "
                "variables: the "
                f"other steps would draw the simulator's noise anew at every look. {others} "
                "are not "
                "in this step's vars. Use pm.sample(step=kmc.KMC()), or write the simulator as a "
                "kmc.PseudoMarginalPotential, which steps can share."
            )
        self.is_noisy = bool(nodes or self._generators)
        # The potentials are terms of a sum. Evaluated outside the compiled function they can be
        # left out where the rest is -inf, and the user's exceptions arrive as they are.
        exact = log_density
        if nodes:
            exact = graph_replace(
                log_density, {node.outputs[0]: pt.constant(0.0, dtype="float64") for node in nodes}
            )
        parameters = [parameter for node in nodes for parameter in node.inputs[1:]]
        self._n_parameters = [len(node.inputs) - 1 for node in nodes]
        self._shared = make_shared_replacements(initial_point, variables, self.model)
        outputs, position = join_nonshared_inputs(
            initial_point, [exact, *parameters], variables, shared_inputs=self._shared
        )
        self._others = {v.name: np.array(initial_point[v.name]) for v in self._shared}
        self._dtype = position.dtype
        self._compile_outputs(outputs, position, compile_kwargs)

    def _compile_outputs(self, outputs, position, compile_kwargs):
        self._function = compile_function([position], outputs, compile_kwargs)

    def start_chain(self, rng):
        """Forget the last chain: new noise, no recycled value, nothing counted.

        Parameters
        ----------
        rng : numpy.random.Generator
        """
        self._current = None
        self._handed_over = None, ()
        self.n_evaluations = 0
        for likelihood in self._likelihoods:
            likelihood.start_chain()
        kinds = zip(self._kinds, self._n_start, strict=True)
        self.noise = tuple(kind.draw(n, rng) for kind, n in kinds)

    @property
    def noise(self):
        """The noise of the chain's current state, as the shared variables have it."""
        shared = tuple(variable.get_value(borrow=True) for variable in self._noise_variables)
        return shared + self._generator_seeds

    @noise.setter
    def noise(self, noise):
        n_shared = len(self._noise_variables)
        for variable, value in zip(self._noise_variables, noise[:n_shared], strict=True):
            variable.set_value(value, borrow=True)  # never written to
        self._generator_seeds = tuple(noise[n_shared:])

    @property
    def n_replicates(self):
        """How many replicates an evaluation takes, over all noisy likelihoods."""
        if not self._likelihoods:
            return 0
        return sum(len(noise) for noise in self.noise[: len(self._likelihoods)])

    @property
    def chooses_n_replicates(self):
        """Whether any likelihood wants its number of replicates chosen."""
        return any(likelihood.is_auto for likelihood in self._likelihoods)

    def choose_n_replicates(self, point, rng):
        """Choose the numbers of replicates at the chain's state, and renew the noise.

        Parameters
        ----------
        point : dict of str to ndarray
        rng : numpy.random.Generator

        Returns
        -------
        list of (str, int, float)
            Name of the likelihood, number of replicates, variance of its log estimate.
        """
        position = self.current(point).position
        parameters = self._parameters(self._function(position.astype(self._dtype, copy=False)))
        noise, chosen = list(self.noise), []
        for i, likelihood in enumerate(self._likelihoods):
            if not likelihood.is_auto:
                continue
            n_before = likelihood.n_calls
            n, variance = likelihood.choose_n_replicates(len(noise[i]), parameters[i], rng)
            self.n_evaluations += likelihood.n_calls - n_before
            noise[i] = likelihood.noise.draw(n, rng)
            chosen.append((likelihood.name, n, variance))
        self.noise = tuple(noise)
        return chosen

    def _parameters(self, outputs):
        """The parameters of each noisy likelihood among the compiled function's outputs."""
        parameters, first = [], 1
        for n in self._n_parameters:
            parameters.append(outputs[first : first + n])
            first += n
        return parameters

    def noisy_terms(self, point):
        """Return the estimated terms of the log density at a point.

        Parameters
        ----------
        point : dict of str to ndarray

        Returns
        -------
        list of NoisyTerm
            Of several `pymc.Simulator` the sum, with all that is not noisy.
        """
        position = self.current(point).position.astype(self._dtype, copy=False)
        terms = [
            NoisyTerm(op.name, op.noise, len(noise), partial(_estimate, op, values))
            for op, noise, values in zip(
                self._likelihoods,
                self.noise[: len(self._likelihoods)],
                self._parameters(self._function(position)),
                strict=True,
            )
        ]
        if self._generators:

            def simulated(seeds):
                for generator, seed in zip(self._generators, seeds, strict=True):
                    generator.set_value(noise_generator(seed), borrow=True)
                return float(self._function(position)[0])

            name = "pm.Simulator"
            terms.append(NoisyTerm(name, Seeds(), len(self._generators), simulated))
        return terms

    @property
    def state(self):
        """The recycled evaluation, the noise and the count of evaluations."""
        return self._current, self.noise, self.n_evaluations

    @state.setter
    def state(self, state):
        self._current, self.noise, self.n_evaluations = state

    def current(self, point):
        """Return the recycled value at the chain's state.

        It is evaluated only where there is none: at a chain's start, or, under the *same* noise,
        when another step has moved something.

        Parameters
        ----------
        point : dict of str to ndarray
            PyMC's point, with at least the model's value variables.

        Returns
        -------
        Evaluation
        """
        moved = False
        for variable, shared in self._shared.items():
            value = point[variable.name]
            if not np.array_equal(value, self._others[variable.name]):
                # A copy: in worker processes PyMC writes the next point into the same memory.
                value = np.array(value)
                self._others[variable.name] = value
                shared.set_value(value, borrow=True)
                moved = True
        noise = self.noise if self.is_noisy else ()
        current = self._current
        if moved or current is None or not same_noise(current.noise, noise):
            self._current = self._evaluate(self._position(point), noise)
        elif not self._is_handed_over(point, current.position):
            position = self._position(point)
            if not np.array_equal(current.position, position):
                self._current = self._evaluate(position, noise)
        return self._current

    def _position(self, point):
        return np.concatenate([point[name].ravel() for name in self.names])

    def _is_handed_over(self, point, position):
        """Whether `point` has the very arrays that :meth:`point` made of `position` last."""
        source, views = self._handed_over
        if source is not position:
            return False
        return all(point[name] is view for name, view in zip(self.names, views, strict=True))

    @property
    def recycled(self):
        """The evaluation of the chain's current state, or None before the first."""
        return self._current

    def propose(self, position, rng, after=None):
        """Evaluate the target at a proposal, under renewed noise.

        Parameters
        ----------
        position : ndarray, shape (d,)
        rng : numpy.random.Generator
            Renews the noise.
        after : Evaluation, optional
            Whose noise is renewed, by default that of the chain.

        Returns
        -------
        Evaluation
        """
        if not self.is_noisy:
            return self._evaluate(position, ())
        noise = self.noise
        # A chain that stays where it is for long still has its estimate when another step moves.
        for likelihood, current in zip(self._likelihoods, noise, strict=False):
            likelihood.refresh(current)
        if after is not None:
            noise = after.noise
        kinds = zip(self._kinds, noise, strict=True)
        return self._evaluate(position, tuple(kind.renew(value, rng) for kind, value in kinds))

    def accept(self, evaluation):
        """Make a proposal the chain's state: its noise is kept and its value is recycled."""
        self._current = evaluation
        if self.is_noisy:
            self.noise = evaluation.noise

    def _evaluate(self, position, noise):
        self.n_evaluations += 1
        n_likelihoods = len(self._likelihoods)
        for generator, seeds in zip(self._generators, noise[n_likelihoods:], strict=True):
            generator.set_value(noise_generator(seeds[0]), borrow=True)
        outputs = self._function(position.astype(self._dtype, copy=False))
        log_density = float(outputs[0])
        # With a pm.Simulator, whose term can't be told apart, all of the density.
        estimate = log_density if self._generators else 0.0
        if n_likelihoods and np.isfinite(log_density):
            sources = zip(
                self._likelihoods, noise[:n_likelihoods], self._parameters(outputs), strict=True
            )
            for likelihood, value, parameters in sources:
                term = likelihood.evaluate(value, *parameters)
                log_density += term
                estimate += term
        parameters = b"".join(np.asarray(output).tobytes() for output in outputs[1:])
        return Evaluation(log_density, estimate, position, noise, parameters)

    def point(self, point, position):
        """Return a copy of PyMC's `point` with the block's variables taken from `position`."""
        point = point.copy()
        first, views = 0, []
        for name in self.names:
            value = point[name]
            view = position[first : first + value.size].reshape(value.shape)
            views.append(view)
            point[name] = view
            first += value.size
        self._handed_over = position, views
        return point

    def explain(self, point):
        """Say which term makes the log density at `point` something else than a finite number.

        Parameters
        ----------
        point : dict of str to ndarray

        Returns
        -------
        str
            One line a term, "name: value".
        """
        values = {}
        variables = {variable.name: variable for variable in self.model.value_vars}
        terms = self.model.logp(sum=False)
        model = self.model
        names = [v.name for v in model.free_RVs + model.observed_RVs + model.potentials]
        inputs = list(variables.values())
        arguments = [point[variable.name] for variable in inputs]
        for name, term in zip(names, terms, strict=True):
            function = pytensor.function(
                inputs, term.sum(), mode="FAST_COMPILE", on_unused_input="ignore"
            )
            values[name] = float(function(*arguments))
        bad = {name: value for name, value in values.items() if not np.isfinite(value)}
        return "\n".join(f"  {name}: {value}" for name, value in (bad or values).items())

    def explain_stillness(self):
        """Return what the noisy likelihoods have to say of a chain that doesn't move."""
        return " ".join(filter(None, (likelihood.explain() for likelihood in self._likelihoods)))

    def check_start(self, point):
        """Raise an error unless the chain can start at `point`.

        A noisy estimate of ``-inf`` is let pass: another draw of it may well be finite.

        Parameters
        ----------
        point : dict of str to ndarray

        Raises
        ------
        pymc.exceptions.SamplingError
            If the log density is NaN, ``+inf``, or ``-inf`` for another reason than noise.
        """
        evaluation = self.current(point)
        log_density = evaluation.log_density
        noise_only = evaluation.log_likelihood_estimate == -np.inf
        if np.isfinite(log_density) or (log_density == -np.inf and noise_only):
            return
        values = "\n".join(f"  {name}: {np.asarray(value)}" for name, value in point.items())
        raise SamplingError(
            f"The log density of the model is {log_density} at the chain's starting "
            f"point:\n{values}\n"
            f"Terms of the log density there:\n{self.explain(point)}\n"
            "Give another start, pm.sample(initvals={...}), or mend the term."
        )


def _estimate(likelihood, parameters, noise):
    return likelihood.evaluate(noise, *parameters)


def compile_function(inputs, outputs, compile_kwargs):
    """Return PyTensor's function of inputs that are arrays of the right types already."""
    # Not pm.compile: it would give the simulators' generators updates.
    function = pytensor.function(inputs, outputs, **{"on_unused_input": "ignore"} | compile_kwargs)
    function.trust_input = True
    return function


def same_noise(first, second):
    """Say whether two tuples of arrays are the same noise."""
    pairs = zip(first, second, strict=True)
    return all(a is b or np.array_equal(a, b) for a, b in pairs)


def noisy_nodes(graph):
    """Return the nodes of `graph` whose Op is a :class:`NoisyLogLikelihood`, in order of name."""
    nodes = {
        variable.owner
        for variable in ancestors([graph])
        if variable.owner is not None and isinstance(variable.owner.op, NoisyLogLikelihood)
    }
    return sorted(nodes, key=lambda node: node.op.name)


def simulator_generators(graph):
    """Return the shared random generators that `graph` depends on: those of `pymc.Simulator`."""
    return [
        variable
        for variable in ancestors([graph])
        if isinstance(variable, SharedVariable) and isinstance(variable.type, RandomType)
    ]
