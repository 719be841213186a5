r"""Which part of a model is opaque: the log density with holes, and what fits into them.

A model's log density is a graph. Most of its nodes have gradients; those that have none, an ODE
solver in SciPy or a simulator, are *opaque*. Without them the log density is an ordinary function

.. math:: \log\pi(x) = L\big(x, o\big), \qquad o = g\big(u(x)\big),

of the unconstrained variables x and of the opaque outputs o, and the opaque nodes g see x only
through their inputs u. L and u are compiled with their gradients, for many points at a time; g is
what evaluations are paid for, and what a surrogate replaces.

Noisy likelihoods are opaque terms of a sum. A density that can't be taken apart is opaque as a
whole: one with a `pymc.Simulator`, one in which a node that may fail or is estimated feeds another,
or one without an opaque node at all. Then L is o, a number, and u is x. A node that another one
feeds is a function of what the other one sees; the other one is emulated too if L depends on it
besides.
"""

import warnings
from functools import cached_property
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.replace import clone_replace

from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.model.columns import Columns
from pymc_kmc.model.evaluated import EvaluationLog
from pymc_kmc.model.log_density import LogDensity, check_continuous, check_proper
from pymc_kmc.model.opaque_parts import given_others, opaque_parts, others_behind
from pymc_kmc.model.rows import function, of_rows

# Points and outputs at which is tried whether an output is a term of a sum.
N_TRIED = 3
# Size of the change of a variable that shows which inputs depend on it, and of the points' spread.
NUDGE, SPREAD = 1e-3, 0.1
# Relative error of a derivative by a term of a sum, which is 1.
ROUNDING = 1e-9


class OpaqueNode(NamedTuple):
    """A part of the log density without usable gradient.

    Attributes
    ----------
    name : str
        Of the black box or likelihood, or of the Op.
    n_outputs : int
        Number of values that are emulated: 1 for a term of the log density.
    is_term : bool
        Whether it is a term of the log density: its outputs are added to the rest.
    is_noisy : bool
        Whether its value is an estimate.
    inputs : slice
        Its inputs among all opaque inputs.
    outputs : slice
        Its outputs among all opaque outputs.
    moves_with : ndarray of int
        Positions of the unconstrained values that its inputs depend on.
    shape : tuple of int
        Of its outputs: () for a term of the log density.
    """

    name: str
    n_outputs: int
    is_term: bool
    is_noisy: bool
    inputs: slice
    outputs: slice
    moves_with: np.ndarray
    shape: tuple


class OpaqueModel:
    """A model's log density, taken apart into what is known and what is opaque.

    Parameters
    ----------
    variables : list of TensorVariable
        Value variables of the model, continuous ones. Others are held at the values that
        :meth:`follow` takes from a point, at first the initial ones; nothing opaque may depend on
        them.
    model : pymc.Model
    rng : numpy.random.Generator
        Draws the noise of estimates.
    executor : concurrent.futures.Executor or callable, optional
        Runs a batch's evaluations of black boxes and noisy likelihoods that have none of their own.

    Attributes
    ----------
    nodes : list of OpaqueNode
        One, if the density is opaque as a whole.
    has_gradient : bool
        Whether nothing in the model is opaque.
    is_whole : bool
        Whether the whole density is one opaque node.
    n_dimensions : int
    n_evaluations : int
        Number of points at which the opaque nodes were evaluated.
    log : EvaluationLog
        All evaluations that have ended, also those of a batch in which another has failed. Those of
        an earlier model that it was told to remember aren't made again.
    """

    def __init__(self, variables, model, rng, executor=None):
        check_continuous(variables)
        check_proper(variables, model)
        self._executor = None if executor is None else LazyExecutor(executor)
        self.model, self.variables, self.rng = model, list(variables), rng
        self.initial_point = model.initial_point(0)
        shapes = [np.shape(self.initial_point[v.name]) for v in variables]
        self._columns = Columns(shapes, [v.dtype for v in variables])
        self.n_dimensions = sum(self._columns.sizes)
        self.n_evaluations = 0
        self._has_told_invalid = False
        log_density, self._others = given_others(model, self.variables)
        parts = opaque_parts(log_density, self.variables)
        self._parts_found = parts or []
        self.has_gradient = parts == []
        self.is_whole = not parts
        if behind := others_behind(log_density, self.variables, self._others, self.is_whole):
            raise ValueError(
                f"{behind} are not learned, and what is opaque in the model depends on them: pass "
                "all that it depends on in vars, or sample with kmc.KMC(learn=False), which learns "
                "in the chain."
            )
        if self.is_whole:
            self._target = LogDensity(self.variables, model, self.initial_point)
            everything = np.arange(self.n_dimensions)
            noisy, inputs = self._target.is_noisy, slice(0, self.n_dimensions)
            name = "log density"
            self.nodes = [OpaqueNode(name, 1, True, noisy, inputs, slice(0, 1), everything, ())]
        else:
            self._compile(log_density)
        self.log = EvaluationLog(self.n_dimensions, self.nodes[-1].outputs.stop)

    def _compile(self, log_density):
        variables, parts = self.variables, self._parts_found
        inputs = [v for part in parts for v in part.inputs]
        self._part_inputs = of_rows(variables, inputs)
        # A node that feeds another is evaluated with it, once.
        chained = any(part.is_fed for part in parts)
        self._together = [p for p in parts if not p.is_alone or (chained and not p.is_noisy)]
        self._part_outputs = function(variables, [part.output for part in self._together])
        start = np.concatenate([np.ravel(self.initial_point[v.name]) for v in variables])
        shapes = self._output_shapes(start)
        holes = [pt.tensor(dtype="float64", shape=tuple(map(int, shape))) for shape in shapes]
        self._graph = log_density
        log_density = clone_replace(log_density, self._fillings(holes))
        gradients = grad(log_density, [*variables, *holes], disconnected_inputs="ignore")
        self._log_density = of_rows([*variables, *holes], [log_density, *gradients])
        self._holes = Columns([tuple(map(int, shape)) for shape in shapes])
        rows = self._part_inputs(*self._columns.split(start[None]))
        self._arguments = Columns([row.shape[1:] for row in rows])
        self._describe(start, shapes)

    def _fillings(self, outputs):
        """Return what stands in the place of the parts, given their outputs; none has failed."""
        fillings = {}
        for part, output in zip(self._parts_found, outputs, strict=True):
            filling = output.astype(part.output.dtype)
            fillings[part.output] = part.output.type.filter_variable(filling)
            if part.flag is not None:
                fillings[part.flag] = pt.constant(1.0, dtype=part.flag.dtype)
        return fillings

    def filled(self, x, emulate):
        """Return the log density as a graph with other outputs in place of the opaque ones.

        Parameters
        ----------
        x : TensorVariable, shape (d,)
            All unconstrained values.
        emulate : callable
            ``emulate(i, inputs)`` returns the outputs of node i, raveled, given its inputs (k,),
            both as graphs.

        Returns
        -------
        TensorVariable
        """
        if self.is_whole:
            return emulate(0, x)[0]
        outputs = []
        for i, (node, part) in enumerate(zip(self.nodes, self._parts_found, strict=True)):
            inputs = pt.concatenate([v.ravel().astype("float64") for v in part.inputs])
            output = emulate(i, inputs)
            shape = self._holes.shapes[i]
            if node.is_term:
                # Only the sum of a term's outputs matters.
                output = pt.full(shape, output[0] / max(np.prod(shape, dtype=int), 1))
            outputs.append(output.reshape(shape))
        log_density = clone_replace(self._graph, self._fillings(outputs))
        return clone_replace(log_density, self._pieces(x)).astype("float64")

    def _pieces(self, x):
        """Return the variables as parts of a vector x (d,)."""
        columns = self._columns
        parts = zip(self.variables, columns.ends[:-1], columns.sizes, columns.shapes, strict=True)
        pieces = {}
        for variable, begin, size, shape in parts:
            piece = x[begin : begin + size].reshape(shape).astype(variable.dtype)
            pieces[variable] = variable.type.filter_variable(piece)
        return pieces

    @cached_property
    def _pull(self):
        """The function behind :meth:`pull`: not all emulators need it."""
        variables, inputs = self.variables, [v for part in self._parts_found for v in part.inputs]
        weights = [pt.tensor(dtype="float64", shape=v.type.shape) for v in inputs]
        weighted = sum((v * w).sum() for v, w in zip(inputs, weights, strict=True))
        pulled = grad(weighted, variables, disconnected_inputs="ignore")
        return of_rows([*variables, *weights], pulled)

    @cached_property
    def _natural(self):
        """The function behind :meth:`natural`."""
        values = self.model.replace_rvs_by_values(self.random_variables)
        return of_rows(self.variables, clone_replace(values, self._others))

    def _output_shapes(self, start):
        """Return the shapes of the parts' outputs; an evaluation tells those that types don't."""
        shapes = [part.output.type.shape for part in self._parts_found]
        if any(n is None for shape in shapes for n in shape):
            self.n_evaluations += 1
            for part, value in zip(self._together, self._outputs_at(start), strict=True):
                shapes[self._parts_found.index(part)] = np.shape(value)
        return shapes

    def _describe(self, start, shapes):
        """Find out which parts are terms of a sum, and on what their inputs depend."""
        sizes = [int(np.prod(shape)) for shape in shapes]
        rng = np.random.default_rng(0)
        points = start + SPREAD * rng.standard_normal((N_TRIED, len(start)))
        derivatives = self._derivatives(points, rng.standard_normal((N_TRIED, sum(sizes))))
        inputs = self.inputs(points)
        depends = np.empty((len(start), inputs.shape[1]), dtype=bool)
        for j in range(len(start)):
            moved = points.copy()
            moved[:, j] += NUDGE
            depends[j] = np.any(self.inputs(moved) != inputs, axis=0)
        self.nodes, self._raw = [], []
        first_input = first_output = first_raw = n_arrays = 0
        for part, shape, size in zip(self._parts_found, shapes, sizes, strict=True):
            n_inputs = sum(self._arguments.sizes[n_arrays : n_arrays + len(part.inputs)])
            raw = slice(first_raw, first_raw + size)
            is_term = bool(np.allclose(derivatives[:, raw], 1.0, rtol=ROUNDING, atol=0.0))
            n_outputs = 1 if is_term else size
            taken = slice(first_input, first_input + n_inputs)
            moves_with = np.flatnonzero(depends[:, taken].any(axis=1))
            given = slice(first_output, first_output + n_outputs)
            found = part.name, n_outputs, is_term, part.is_noisy, taken, given, moves_with
            self.nodes.append(OpaqueNode(*found, () if is_term else tuple(map(int, shape))))
            self._raw.append(raw)
            n_arrays += len(part.inputs)
            first_input, first_output = taken.stop, given.stop
            first_raw = raw.stop

    def _derivatives(self, X, raw):
        return self._given(X, raw)[2]

    def _given(self, X, raw):
        """Return log densities (n,), and derivatives by variables (n, d) and by all of `raw`."""
        found = self._log_density(*self._columns.split(X), *self._holes.split(raw))
        n_variables = len(self.variables)
        by_variables, by_holes = found[1 : 1 + n_variables], found[1 + n_variables :]
        return found[0].astype(float), self._columns.join(by_variables), self._holes.join(by_holes)

    def _outputs_at(self, x):
        return self._part_outputs(*[row[0] for row in self._columns.split(x[None])])

    @property
    def returns_outputs(self):
        """Whether all opaque nodes return outputs of which the log density is a function."""
        return all(not node.is_term for node in self.nodes)

    @property
    def is_sum(self):
        """Whether the log density is a known part, the prior, and a sum of opaque terms."""
        return not self.is_whole and all(node.is_term for node in self.nodes)

    @property
    def is_noisy(self):
        """Whether something opaque is an estimate."""
        return any(node.is_noisy for node in self.nodes)

    # Many points at a time

    def inputs(self, X):
        """Return the opaque inputs at unconstrained points (n, d), shape (n, k)."""
        if self.is_whole:
            return X
        return self._arguments.join(self._part_inputs(*self._columns.split(X)))

    def pull(self, X, weights):
        """Return the derivative of sum(weights * inputs(X)) by X, shape (n, d).

        Parameters
        ----------
        X : ndarray, shape (n, d)
        weights : ndarray, shape (n, k)
        """
        if self.is_whole:
            return weights
        pulled = self._pull(*self._columns.split(X), *self._arguments.split(weights))
        return self._columns.join(pulled)

    def log_density(self, X, outputs):
        """Return the log density, given opaque outputs, and its derivatives.

        Parameters
        ----------
        X : ndarray, shape (n, d)
        outputs : ndarray, shape (n, m)

        Returns
        -------
        log_density : ndarray, shape (n,)
        by_x : ndarray, shape (n, d)
        by_outputs : ndarray, shape (n, m)
        """
        if self.is_whole:
            return outputs[:, 0], np.zeros_like(X), np.ones_like(outputs)
        raw = np.zeros((len(X), self._raw[-1].stop))
        for node, place in zip(self.nodes, self._raw, strict=True):
            # Only the sum of a term's outputs matters.
            end = place.start + 1 if node.is_term else place.stop
            raw[:, place.start : end] = outputs[:, node.outputs]
        value, by_x, by_raw = self._given(X, raw)
        by_outputs = np.empty_like(outputs)
        for node, place in zip(self.nodes, self._raw, strict=True):
            by_outputs[:, node.outputs] = by_raw[:, place.start : place.start + node.n_outputs]
        return value, by_x, by_outputs

    def evaluate(self, X):
        """Evaluate the opaque nodes where they aren't known: what is paid for.

        Parameters
        ----------
        X : ndarray, shape (n, d)

        Returns
        -------
        ndarray, shape (n, m)
            NaN where a black box failed.
        """
        outputs, is_known = self.log.find(X)
        new = np.flatnonzero(~is_known)
        if len(new):
            outputs[new] = self._evaluate(X[new])
        return outputs

    @property
    def runs_ahead(self):
        """Whether evaluations can begin before they are asked for, beside others."""
        if self.is_whole or len(self._parts_found) > 1 or self._together:
            return False
        (part,) = self._parts_found
        return not part.is_noisy and part.source.runs_ahead(self._executor)

    def begin(self, X):
        """Let the executor begin with evaluations that :meth:`evaluate` will be asked for.

        Parameters
        ----------
        X : ndarray, shape (n, d)
            All that one call will ask for.
        """
        _, is_known = self.log.find(X)
        if not is_known.all():
            (part,) = self._parts_found
            arrays = self._part_inputs(*self._columns.split(X[~is_known]))
            part.source.begin(arrays, self._executor)

    def _evaluate(self, X):
        """Evaluate at points (n, d), and log what was evaluated before an error too."""
        self.n_evaluations += len(X)
        outputs = np.full((len(X), self.nodes[-1].outputs.stop), np.nan)
        begin, done = perf_counter(), np.zeros(len(X), dtype=bool)
        try:
            for i, node, row in self._rows(X):
                outputs[i, node.outputs] = np.sum(row) if node.is_term else np.ravel(row)
                done[i] = node is self.nodes[-1]
        finally:
            seconds = (perf_counter() - begin) / max(done.sum(), 1)
            self.log.add(X[done], outputs[done], seconds)
        return outputs

    def _rows(self, X):
        """Yield the number of a point, a node and its output there, as soon as it is known."""
        if self.is_whole:
            sources = [*self._target.likelihoods, *self._target.simulators]
            for i, x in enumerate(X):
                yield i, self.nodes[0], self._target.evaluate(x, self._noise(sources)).log_density
            return
        arrays = self._part_inputs(*self._columns.split(X))
        together, n_arrays = None, 0
        for node, part in zip(self.nodes, self._parts_found, strict=True):
            arguments = arrays[n_arrays : n_arrays + len(part.inputs)]
            n_arrays += len(part.inputs)
            source = part.source
            if part.is_noisy:
                rows = self._estimates(source, arguments)
            elif part not in self._together:
                rows = source.each(arguments, self._executor)
            elif len(self._together) == 1:
                rows = (self._outputs_at(x)[0] for x in X)
            else:
                if together is None:
                    together = [self._outputs_at(x) for x in X]
                k = self._together.index(part)
                rows = (found[k] for found in together)
            for i, row in enumerate(rows):
                yield i, node, row

    def _estimates(self, likelihood, arguments):
        """Yield a noisy likelihood's estimates, each under noise of its own."""
        calls = [(self._noise([likelihood])[0], values) for values in zip(*arguments, strict=True)]
        return likelihood.op.each(calls, self._executor)

    @property
    def random_variables(self):
        """The model's random variables that belong to its value variables, in the model's order."""
        model = self.model
        return [v for v in model.free_RVs if model.rvs_to_values[v] in self.variables]

    @property
    def others(self):
        """Values of the other variables, by their names."""
        return {variable.name: shared.get_value() for variable, shared in self._others.items()}

    def follow(self, point):
        """Take the values of the other variables from a point, a dict of arrays by their names."""
        for variable, shared in self._others.items():
            # A copy: in worker processes PyMC writes the next point into the same memory.
            shared.set_value(np.array(point[variable.name]), borrow=True)

    def tell_invalid(self, x, log_density):
        """Warn, once, that the log density is NaN or +inf at an evaluated position (d,)."""
        if self._has_told_invalid or any(part.flag is not None for part in self._parts_found):
            return  # a black box that rejects has told itself
        self._has_told_invalid = True
        natural = self.natural(x[None]).items()
        place = ", ".join(f"{name}={value[0]}" for name, value in natural)
        warnings.warn(
            f"The log density was {log_density} where it was evaluated ({place}), which is taken "
            "for impossible; this warning is given once. Return -inf from the likelihood where a "
            "parameter is impossible.",
            UserWarning,
            stacklevel=2,
        )

    def end(self):
        """End the workers of an executor that was made here, and what nobody will ask for."""
        if self.runs_ahead:
            self._parts_found[0].source.abandon()
        if self._executor is not None:
            self._executor.forget()

    def _noise(self, sources):
        return tuple([source.scheme.draw(source.n_start, self.rng) for source in sources])

    def natural(self, X):
        """Return its free variables on their natural scale.

        Parameters
        ----------
        X : ndarray, shape (n, d)

        Returns
        -------
        dict of str to ndarray, shape (n, ...)
        """
        arrays = self._natural(*self._columns.split(X))
        free = self.random_variables
        return {variable.name: array for variable, array in zip(free, arrays, strict=True)}
