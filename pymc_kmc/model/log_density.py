"""The log density of a block of variables, compiled once as a function of a vector and noise.

At many positions at once, black boxes and estimates run on an executor. The graph is cut at its
black boxes. A function for each box, in the order in which they feed each other, returns its
arguments, given the earlier boxes' outputs; the executor gets all positions' calls together. The
rest of the graph is evaluated position by position.
"""

from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.type import continuous_dtypes

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp, black_box_ops
from pymc_kmc.model.noise_sources import estimated_likelihoods, simulators

# Prefix of the extras' names in the sample statistics.
EXTRA = "kmc_extra_"


class Evaluation(NamedTuple):
    """The log density at one position under one noise.

    `log_density` is that of the whole model, estimates included. `log_likelihood_estimate` is the
    sum of the estimated terms: 0 without any, `log_density` with a `pymc.Simulator`. `position`
    (d,) has the block's raveled, unconstrained values in float64, rounded to each variable's type.
    `noise` has an array for each source. `parameters` are the noisy likelihoods', as bytes to
    compare whether two estimates are of one quantity. `gradient` (d,) is None unless the target
    computes it with every evaluation. `extras` has the raveled extras of each of the target's
    `keeping`.
    """

    log_density: float
    log_likelihood_estimate: float
    position: np.ndarray
    noise: tuple
    parameters: bytes = b""
    gradient: np.ndarray | None = None
    extras: tuple = ()


class AtOnce:
    """Outputs of a graph of `position` (d,), at many positions at once.

    ``compile(inputs, outputs)`` returns a compiled function. `executor`, a LazyExecutor or None,
    runs black boxes and likelihoods that have none of their own.
    """

    def __init__(self, outputs, position, compile, executor):
        self.executor = executor
        self._boxes, known = [], {}
        nodes = io_toposort([position], outputs)
        for node in [node for node in nodes if isinstance(node.op, BlackBoxOp)]:
            arguments = graph_replace(node.inputs, known, strict=False)
            self._boxes.append((node.op, compile([position, *known.values()], arguments)))
            known |= {output: output.type() for output in node.outputs}
        outputs = graph_replace(outputs, known, strict=False)
        self._rest = compile([position, *known.values()], outputs)

    def begin(self, position):
        """Start a position (d,) of the next batch on the executor, as far as possible."""
        if not self._boxes:
            return
        op, function = self._boxes[0]
        if op.runs_ahead(self.executor):
            op.begin([np.stack([value]) for value in function(position)], self.executor)

    def abandon(self, most=0):
        """End what the executor has begun and nobody has asked for, if it is more than `most`."""
        for op, _ in self._boxes[:1]:
            op.abandon(self.executor, most)

    def __call__(self, positions):
        """Return a list of the outputs at each of the positions (d,)."""
        known = [[position] for position in positions]
        for op, function in self._boxes:
            rows = [function(*values) for values in known]
            inputs = [np.stack(values) for values in zip(*rows, strict=True)]
            for values, new in zip(known, op.values_of_node(inputs, self.executor), strict=True):
                values += new
        return [self._rest(*values) for values in known]


class LogDensity:
    """The log density of a block of variables, as a function of one vector and of noise.

    The vector has the block's variables, raveled, on their unconstrained scale. The other variables
    have the values that :meth:`follow` takes from a point. `initial_point` has the shapes and first
    values, `compile_kwargs` are arguments of `pytensor.function`.

    A TypeError says that a variable of the block is discrete. A ValueError says that the model has
    a `pymc.Simulator` and the block isn't the whole model, or that nothing depends on a variable
    with a flat prior.

    Attributes: `names` of the block's value variables; the vector's length `n_dimensions`; the
    model's noisy `likelihoods` (EstimatedLikelihood) and `simulators` (Simulator); the BlackBoxOps
    `rejecting` points where they fail; the UserFunctionOps `keeping` extras, black boxes first;
    `is_noisy`; `n_evaluations`; and the `precision`, the relative rounding error of the model's
    numbers.
    """

    _at_once: AtOnce | None = None

    def __init__(self, variables, model, initial_point, compile_kwargs=None):
        check_continuous(variables)
        check_proper(variables, model)
        self.model = model
        self.names = tuple(variable.name for variable in variables)
        self._sizes = {name: int(initial_point[name].size) for name in self.names}
        self.n_dimensions = sum(self._sizes.values())
        self.n_evaluations = 0
        # Once: every call of model.logp() makes new generators for the model's simulators.
        log_density = model.logp()
        self.likelihoods = estimated_likelihoods(log_density)
        self.simulators = simulators(log_density)
        self.is_noisy = bool(self.likelihoods or self.simulators)
        self.rejecting = [op for op in black_box_ops([log_density]) if op.rejects]
        boxes = nodes_with_extras(log_density)
        noisy = [likelihood.op for likelihood in self.likelihoods]
        self.keeping = [*boxes, *(op for op in noisy if op.extras is not None)]
        check_names(self.keeping)
        if self.simulators:
            check_whole_model(self.names, model)
        # The estimates are terms of a sum. Outside the compiled function they need no evaluation
        # where the rest is -inf, and the user's exceptions arrive as they are.
        if self.likelihoods:
            zero = pt.constant(0.0, dtype="float64")
            outputs = {likelihood.output: zero for likelihood in self.likelihoods}
            log_density = graph_replace(log_density, outputs)
        parameters = [p for likelihood in self.likelihoods for p in likelihood.parameters]
        self._shared = make_shared_replacements(initial_point, variables, model)
        self._others = {v.name: np.array(initial_point[v.name]) for v in self._shared}
        outputs = [log_density, *parameters, *boxes.values()]
        outputs, position = join_nonshared_inputs(initial_point, outputs, variables, self._shared)
        self._n_parameters, self._n_boxes = len(parameters), len(boxes)
        self._dtype = position.dtype
        self._narrower = narrower_parts(variables, self._sizes, position.dtype)
        self.precision = float(np.finfo(self._dtype).eps)
        self._graph = outputs, position, compile_kwargs or {}
        self._compile(*self._graph)

    def _compile(self, outputs, position, compile_kwargs):
        self._function = compile_function([position], outputs, compile_kwargs)

    @property
    def is_free(self):
        """Whether each value of the vector (d,) is a variable's own, not a transform of it."""
        model = self.model
        variables = {value.name: variable for value, variable in model.values_to_rvs.items()}
        is_free = [model.rvs_to_transforms[variables[name]] is None for name in self.names]
        return np.repeat(is_free, [self._sizes[name] for name in self.names])

    def follow(self, point):
        """Take the other variables' values from PyMC's `point`; return whether one has changed."""
        changed = False
        for variable, shared in self._shared.items():
            value = point[variable.name]
            if not np.array_equal(value, self._others[variable.name]):
                # A copy: in worker processes PyMC writes the next point into the same memory.
                value = np.array(value)
                self._others[variable.name] = value
                shared.set_value(value, borrow=True)
                changed = True
        return changed

    def position(self, point):
        """Return the block's vector at PyMC's `point`, shape (d,)."""
        parts = [point[name].ravel() for name in self.names]
        return np.concatenate(parts, dtype=np.float64)

    def names_of(self, indices):
        """Return the names of the variables that have elements of the vector at these indices."""
        ends = np.cumsum([self._sizes[name] for name in self.names])
        places = np.unique(np.searchsorted(ends, indices, side="right"))
        return [self.names[place] for place in places]

    def rounded(self, position):
        """Return a position (d,) rounded to each variable's type, for the compiled functions."""
        position = position.astype(self._dtype, copy=bool(self._narrower))
        for part, dtype in self._narrower:
            position[part] = position[part].astype(dtype)
        return position

    def evaluate(self, position, noise):
        """Return the Evaluation at a position (d,) under each source's noise; counted."""
        if self._at_once is not None:
            return self.evaluate_all([position], [noise])[0]
        self.n_evaluations += 1
        for simulator, rows in zip(self.simulators, noise[len(self.likelihoods) :], strict=True):
            simulator.use(rows)
        position = self.rounded(position)
        outputs = self._function(position)
        calls = zip(self.likelihoods, noise, self._split(outputs), strict=False)
        terms = (each.op.evaluate_with_extras(rows, *values) for each, rows, values in calls)
        return self._evaluation(position, noise, outputs, terms)

    def run_at_once(self, executor):
        """Evaluate on a LazyExecutor, or None, from now on; not with a `pymc.Simulator`."""
        outputs, position, options = self._graph
        compiled = partial(compile_function, compile_kwargs=options)
        if not self.simulators:  # a generator has one state
            self._at_once = AtOnce(outputs, position, compiled, executor)

    def begin(self, position):
        """Start a position (d,) of the next :meth:`evaluate_all` on the executor."""
        if self._at_once is not None:
            self._at_once.begin(self.rounded(position))

    def abandon(self, most=0):
        """End what an executor has begun and nobody has asked for, if it is more than `most`."""
        if self._at_once is not None:
            self._at_once.abandon(most)

    @property
    def runs_on_executors(self):
        return bool(self.likelihoods or black_box_ops(self._graph[0]))

    @property
    def n_workers(self):
        """Most workers of a model's executor, divided by an estimate's replicates; or 1."""
        numbers = [1]
        for op in black_box_ops(self._graph[0]):
            numbers.append(op.executor.n_workers if op.executor is not None else 1)
        for op in [likelihood.op for likelihood in self.likelihoods if not likelihood.op.is_auto]:
            executor = op.replicates.executor
            numbers.append(((executor and executor.n_workers) or 1) // op.n_start)
        return max(number or 1 for number in numbers)

    def evaluate_all(self, positions, noises):
        """Return the Evaluations at positions (d,), each under its own noise; counted."""
        if self._at_once is None:
            return list(map(self.evaluate, positions, noises))
        self.n_evaluations += len(positions)
        positions = [self.rounded(position) for position in positions]
        outputs = self._at_once(positions)
        terms = [[] for _ in positions]
        finite = [i for i, found in enumerate(outputs) if isfinite(found[0])]
        for k, likelihood in enumerate(self.likelihoods):
            calls = [(noises[i][k], self._split(outputs[i])[k]) for i in finite]
            found = likelihood.op.all_with_extras(calls, self._at_once.executor)
            for i, term in zip(finite, found, strict=True):
                terms[i].append(term)
        return list(map(self._evaluation, positions, noises, outputs, terms))

    def _evaluation(self, argument, noise, outputs, terms):
        """Return an Evaluation at `argument` (d,), from the compiled function's `outputs`.

        `terms` are the likelihoods' estimates with extras; they are computed only if the rest is
        finite.
        """
        position = argument.astype(np.float64, copy=False)
        log_density = float(outputs[0])
        # A simulator's term can't be told from the rest: all of the density.
        estimate = log_density if self.simulators else 0.0
        parameters, extras = outputs[1 : 1 + self._n_parameters], ()
        if self.keeping:
            extras = tuple(outputs[1 + self._n_parameters :])
        if not self.likelihoods:
            return Evaluation(log_density, estimate, position, noise, extras=extras)
        if isfinite(log_density):
            for term, kept in terms:
                log_density += term
                estimate += term
                extras += () if kept is None else (kept,)
        else:
            extras += tuple([op.extras.missing for op in self.keeping[self._n_boxes :]])
        key = b"".join(np.asarray(output).tobytes() for output in parameters)
        return Evaluation(log_density, estimate, position, noise, key, extras=extras)

    def extras_of(self, evaluation):
        """Return the extras of an Evaluation by name, NaN if it has none."""
        raveled = evaluation.extras or [op.extras.missing for op in self.keeping]
        found = {}
        for op, kept in zip(self.keeping, raveled, strict=True):
            found |= op.extras.split(kept)
        return found

    def parameters(self, position):
        """Return each noisy likelihood's parameters at a position (d,): lists of ndarray."""
        return self._split(self._function(self.rounded(position)))

    def _split(self, outputs):
        parameters, first = [], 1
        for likelihood in self.likelihoods:
            n = len(likelihood.parameters)
            parameters.append(outputs[first : first + n])
            first += n
        return parameters


def narrower_parts(variables, sizes, dtype):
    """Return (slice, dtype) of the vector's variables that are narrower than its dtype."""
    ends = np.cumsum([sizes[variable.name] for variable in variables])
    return [
        (slice(end - sizes[variable.name], end), variable.dtype)
        for variable, end in zip(variables, ends, strict=True)
        if variable.dtype != dtype
    ]


def nodes_with_extras(log_density):
    """Return the raveled extras of each black box that has any, by its Op."""
    nodes = {v.owner for v in ancestors([log_density]) if v.owner is not None}
    keeping = [op for op in black_box_ops([log_density]) if op.extras is not None]
    return {op: next(n.outputs[-1] for n in nodes if n.op is op) for op in keeping}


def check_names(ops):
    owner = {}
    for op in ops:
        for key in op.extras.shapes:
            if owner.setdefault(key, op) is not op:
                raise ValueError(
                    f"The {owner[key].subject} and the {op.subject} both have the extra {key!r}: "
                    "give it another name in one of them, in extras= and in what it returns."
                )


def check_continuous(variables):
    for variable in variables:
        if variable.dtype not in continuous_dtypes:
            raise TypeError(
                f"Variable {variable.name!r} is discrete ({variable.dtype}): the steps of pymc_kmc "
                "move continuous variables. Give the others to another step, for example "
                "pm.sample(step=[kmc.KMC(vars=[...]), pm.Metropolis(vars=[...])])."
            )


def check_proper(variables, model):
    for variable in variables:
        rv = model.values_to_rvs[variable]
        if not isinstance(rv.owner.op, FlatRV | HalfFlatRV):
            continue
        others = [other for other in model.basic_RVs + model.potentials if other is not rv]
        if rv not in ancestors(others):
            raise ValueError(
                f"Variable {rv.name!r} has a flat prior and nothing in the model depends on it: it "
                f"has no posterior. Give it a prior such as pm.Normal({rv.name!r}, 0, 10), or "
                "leave it out."
            )


def check_whole_model(names, model):
    others = sorted({variable.name for variable in model.value_vars} - set(names))
    if others:
        raise ValueError(
            "A model with pm.Simulator must be sampled by one step that has all its variables: "
            "other steps would draw the simulator's noise anew at each evaluation. "
            f"{others} are not in this step's vars. Use pm.sample(step=kmc.KMC()), or write the "
            "simulator as a kmc.PseudoMarginalPotential, which steps can share."
        )


def compile_function(inputs, outputs, compile_kwargs):
    """Return PyTensor's function; its arguments must be arrays of the right types."""
    # Not pm.compile: it would give the simulators' generators updates. As it does: -inf where a
    # parameter is impossible (a scale whose logarithm underflows), in place of an exception.
    defaults = {"on_unused_input": "ignore"}
    if "mode" not in compile_kwargs:
        defaults["mode"] = get_mode(None).including("local_check_parameter_to_ninf_switch")
    try:
        function = pytensor.function(inputs, outputs, **defaults | compile_kwargs)
    except Exception as error:
        if compile_kwargs:
            error.add_note(f"pytensor.function was called with compile_kwargs={compile_kwargs!r}.")
        raise
    function.trust_input = True
    return function
