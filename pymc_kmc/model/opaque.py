r"""The opaque part of a model: its log density as a function of the outputs of opaque nodes.

Nodes of the log density's graph without a gradient, such as an ODE solver in SciPy or a simulator,
are *opaque*. The log density is a function

.. math:: \log\pi(x) = L\big(x, o\big), \qquad o = g\big(u(x)\big),

of the unconstrained variables x and of the outputs o of the opaque nodes g, which depend on x only
through their inputs u. L and u are compiled with their gradients, for many points at a time. An
evaluation of g is expensive: a surrogate replaces it.

Noisy likelihoods are opaque terms of a sum. A density is opaque as a whole (L is o, a number, and u
is x) with a `pymc.Simulator`, without an opaque node, and if a node that may fail or is estimated
feeds another. A node that is fed by another one is a function of the other one's inputs; the other
one is emulated too if L depends on it besides.

Evaluations of the graph at a few points show which outputs are terms of a sum, so that the sum
alone is emulated, and which variables a node's inputs depend on. Every later evaluation checks
both. Refuted ones are given up, and a :class:`StructureError` says so.
"""

from functools import cached_property
from itertools import groupby, islice, tee
from time import perf_counter

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.replace import clone_replace

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp
from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.likelihoods.user_function import UserFunctionOp
from pymc_kmc.model import structure as graph
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.model.log_density import LogDensity
from pymc_kmc.model.rows import Columns, Stacked, function, of_rows, with_slices
from pymc_kmc.model.structure import OpaquePart, Structure, StructureError, shared_out
from pymc_kmc.model.unconstrained import UnconstrainedModel

# Dimensions for each input of a node from which on its inputs are few: two inputs in thirteen
# dimensions are, those of one of four groups of a hierarchy.
SMALL = 3


class OpaqueModel(UnconstrainedModel):
    """A model's log density, taken apart into exact and opaque parts.

    Parameters
    ----------
    variables : list of TensorVariable
        Continuous value variables of the model. The others have the values that :meth:`follow`
        takes from a point, at first the initial ones; nothing opaque may depend on them.
    model : pymc.Model
    rng : numpy.random.Generator
        Draws the noise of estimates.
    executor : concurrent.futures.Executor or callable, optional
        Runs a batch's evaluations of black boxes and noisy likelihoods that have none of their own.
    structure : Structure, optional
        From earlier evaluations of the same model, instead of one read off its graph.
    is_coarse : bool
        Whether black boxes are replaced by their coarse versions; see :attr:`why_not_coarse`.
    n_parallel : int, optional
        Number of evaluations that run at once, by default that of the executors' workers.

    Attributes
    ----------
    nodes : list of OpaqueNode
        One, if `is_whole`: the density is opaque as a whole. `why_whole` is the reason, or None.
    is_sum, returns_outputs, is_noisy : bool
        Whether the log density is a sum of the prior and opaque terms; whether no node is a term;
        whether a node is an estimate.
    most_inputs, has_small_nodes : int, bool
        Largest number of a node's inputs; whether several nodes return outputs and have few inputs
        for the dimensions, as a box for each group of a hierarchy: few places suffice for them.
    has_other_arguments : bool
        Whether nodes without noise depend on data or constants, which `inputs` doesn't have.
    has_gradient : bool
        Whether nothing in the model is opaque.
    n_evaluations : int
        Number of points at which the opaque nodes were evaluated.
    evaluations : Evaluations
        All that have ended, those of failed batches and remembered ones too.
    """

    def __init__(
        self, variables, model, rng, executor=None, structure=None, is_coarse=False, n_parallel=None
    ):
        log_density, others = graph.given_others(model, variables)
        self._is_coarse = is_coarse
        if is_coarse:
            log_density = graph.with_coarse(log_density)
        super().__init__(variables, model, others)
        self._executor = LazyExecutor.of(executor)
        self._rng, self.n_evaluations, self._n_parallel = rng, 0, n_parallel
        self.why_whole, parts = None, []
        try:
            parts = graph.opaque_parts(log_density, self.variables)
            self.has_gradient = not parts
        except graph.InseparableError as error:
            self.why_whole, self.has_gradient = str(error), False
        if behind := graph.others_behind(log_density, self.variables, self._others, not parts):
            raise ValueError(
                f"{behind} are not learned, and what is opaque in the model depends on them: pass "
                "all that it depends on in vars, or sample with kmc.KMC(learn=False), which learns "
                "in the chain."
            )
        if structure is not None and structure.is_whole:
            parts = []
        self._compile(log_density, graph.by_function(parts) or self._whole(log_density))
        if structure is not None:
            pairs = zip(self.nodes, structure.are_terms, strict=True)
            self._describe([node.weights if is_term else None for node, is_term in pairs])
            pairs = zip(self.nodes, structure.moves_with, strict=True)
            self.nodes = [node._replace(moves_with=moves) for node, moves in pairs]
        widths = self.n_dimensions, self.nodes[-1].inputs.stop, self.nodes[-1].returned.stop
        self.evaluations = Evaluations.none(self.names, *widths, self.is_whole)
        self._n_remembered = 0

    def _whole(self, log_density):
        target = LogDensity(self.variables, self.model, self.initial_point)
        return [OpaquePart("log density", log_density, self.variables, target)]

    def _compile(self, log_density, parts):
        variables, columns, self._parts_found = self.variables, self._columns, parts
        self.is_whole = isinstance(parts[0].source, LogDensity)
        self.has_other_arguments = any(part.has_other_arguments for part in parts)
        self._evaluator = PartEvaluator(variables, columns, parts, self._executor, self._rng)
        start = self._vector(self.initial_point)
        shapes, n_evaluations = self._evaluator.output_shapes(start)
        self.n_evaluations += n_evaluations
        self._holes = Columns([tuple(map(int, shape)) for shape in shapes])
        arguments = self._evaluator.arguments(start[None])
        self._arguments = Columns([array.shape[1:] for array in arguments])
        self._families = graph.families(parts, self._holes.shapes, self._arguments.shapes)
        self._inputs = Stacked(variables, columns, [f.inputs for f in self._families])
        self._family_holes = Columns([family.shape for family in self._families])
        holes = [pt.tensor(dtype="float64", shape=shape) for shape in self._family_holes.shapes]
        filled, self._graph = [], log_density
        for hole, family in zip(holes, self._families, strict=True):
            filled += graph.entries(hole, len(family.parts))
        log_density = with_slices(clone_replace(log_density, self._fillings(filled)))
        gradients = grad(log_density, [*variables, *holes], disconnected_inputs="ignore")
        self._log_density = of_rows([*variables, *holes], [log_density, *gradients])
        self._tried = graph.tried_points(start)
        self._depends = graph.dependence(self.inputs, self._tried)
        try:
            weights = graph.term_weights(self._given, self._tried[1:], self._holes.sizes)
        except ValueError:
            # Lengths that don't go together: a black box names the shape that it returned.
            self.model.compile_logp()(self.initial_point)
            raise
        self._describe(weights)

    def _fillings(self, outputs):
        """Return the replacements of the parts by outputs; none of the parts has failed."""
        fillings = {}
        for part, output in zip(self._parts_found, outputs, strict=True):
            filling = output.astype(part.output.dtype)
            fillings[part.output] = part.output.type.filter_variable(filling)
            if part.flag is not None:
                fillings[part.flag] = pt.constant(1.0, dtype=part.flag.dtype)
        return fillings

    def filled(self, x, emulate):
        """Return the log density as a graph of x (d,), with emulated outputs for the opaque ones.

        ``emulate(family, inputs)`` returns the outputs (c, m) of the nodes with indices `family`,
        given their inputs (c, k), both as graphs.
        """
        outputs = []
        for parts, inputs, _ in self._families:
            # Terms are functions each of its own.
            for _, group in groupby(parts, key=lambda i: self.nodes[i].function):
                nodes = list(group)
                rows = slice(nodes[0] - parts[0], nodes[-1] + 1 - parts[0])
                found, node = emulate(nodes, inputs[rows]), self.nodes[nodes[0]]
                if node.is_term:
                    # Only the weighted sum of a term's outputs matters.
                    found = found * shared_out(node.weights)
                shape = (len(nodes), *self._holes.shapes[nodes[0]])
                outputs += graph.entries(found.reshape(shape[shape[0] == 1 :]), len(nodes))
        log_density = clone_replace(self._graph, self._fillings(outputs))
        return with_slices(clone_replace(log_density, self._pieces(x)).astype("float64"))

    def _describe(self, weights):
        self.nodes = graph.described_nodes(
            self._parts_found, self._arguments.sizes, self._holes, self._depends, weights
        )
        are_terms = [node.is_term for node in self.nodes]
        self.is_sum = not self.is_whole and all(are_terms)
        self.returns_outputs = not any(are_terms)
        self.is_noisy = any(node.is_noisy for node in self.nodes)
        self.most_inputs = max(node.inputs.stop - node.inputs.start for node in self.nodes)
        few = SMALL * self.most_inputs <= self.n_dimensions
        self.has_small_nodes = few and self.returns_outputs and len(self.nodes) > 1

    def _given(self, X, raw):
        """Return log densities (n,), and derivatives by variables (n, d) and by all of `raw`."""
        found = self._log_density(*self._columns.split(X), *self._family_holes.split(raw))
        n_variables = len(self.variables)
        by_variables, by_holes = found[1 : 1 + n_variables], found[1 + n_variables :]
        return (
            found[0].astype(float),
            self._columns.join(by_variables),
            self._family_holes.join(by_holes),
        )

    @property
    def why_not_coarse(self):
        """Why the model has no coarse version, "" if none was given; None if it has one."""
        parts = self._parts_found
        lacking = [part.name for part in parts if getattr(part.source, "coarse", None) is None]
        if not lacking:
            return None
        return "" if len(lacking) == len(parts) else f"{', '.join(lacking)} has none"

    @property
    def structure(self):
        parts = [(node.is_term, node.moves_with) for node in self.nodes]
        return Structure(self.is_whole, *map(tuple, zip(*parts, strict=True)))

    @property
    def stored_op(self):
        """The Op whose evaluations a store may have, if it alone is opaque; else None."""
        source = self._parts_found[0].source
        op = getattr(source, "op", source)
        return op if len(self.nodes) == 1 and isinstance(op, UserFunctionOp) else None

    def parameters(self, X):
        """Return the arguments (n, ...) of the one opaque node at X (n, d), a list of arrays."""
        (part,) = self._parts_found
        arguments = getattr(part.source, "parameters", None) or part.output.owner.inputs
        return of_rows(self.variables, arguments)(*self._columns.split(X))

    # Many points at a time

    def inputs(self, X):
        """Return the opaque inputs (n, k) at unconstrained points (n, d)."""
        if self.is_whole:  # as the graph says, in no time
            return X
        return self._inputs(X)

    def pull(self, X, weights):
        """Return the derivative (n, d) of sum(weights * inputs(X)) by X, for weights (n, k)."""
        return self._inputs.pull(X, weights)

    @np.errstate(all="ignore")
    def log_density(self, X, outputs):
        """Return log densities (n,) at X (n, d) given outputs (n, m), and derivatives by both."""
        if self.is_whole:  # as the graph says, in no time
            return outputs[:, 0], np.zeros_like(X), np.ones_like(outputs)
        raw = np.empty((len(X), self.nodes[-1].returned.stop))
        for node in self.nodes:
            own = outputs[:, node.outputs]
            raw[:, node.returned] = own * shared_out(node.weights) if node.is_term else own
        value, by_x, by_raw = self._given(X, raw)
        by_outputs = np.empty_like(outputs)
        for node in self.nodes:
            own = by_raw[:, node.returned]
            if node.is_term:
                own = own @ shared_out(node.weights)[:, None]
            by_outputs[:, node.outputs] = own
        return value, by_x, by_outputs

    def emulated(self, returned):
        """Return the emulated values (n, m) of all returned values (n, k)."""
        return np.hstack([node.emulated(returned) for node in self.nodes])

    @np.errstate(all="ignore")
    def values(self, X, returned):
        """Return log densities (n,) at X (n, d), given all values (n, k) that the nodes returned.

        -inf if a chain would reject the place: where a black box has failed, at NaN and at +inf.
        """
        values, _, _ = self._given(X, returned)
        for node, part in zip(self.nodes, self._parts_found, strict=True):
            if part.flag is not None:
                values[np.isnan(returned[:, node.returned]).any(axis=1)] = -np.inf
        is_valid = values < np.inf
        if not is_valid.all():
            i = int(np.argmin(is_valid))
            # A black box that rejects has warned itself.
            if all(part.flag is None for part in self._parts_found):
                self.tell_invalid(X[i], values[i])
        return np.where(is_valid, values, -np.inf)

    def evaluate(self, X):
        """Evaluate the opaque nodes at the new places of X (n, d); return the Evaluations of all.

        A StructureError says that an evaluation has refuted the structure: all are recorded, and
        `nodes` has changed.
        """
        new = self._unknown(X)
        if len(new):
            self._evaluate(new)
        rows = self._known_rows(X)
        if self.is_noisy:
            rows[rows < 0] = len(self.evaluations) + np.arange(-len(new), 0)
        found = self.evaluations[rows]
        self._prove(found)
        return found

    def remember(self, earlier):
        """Record earlier evaluations of the same nodes; return them as this model's."""
        self._record(earlier.X, earlier.outputs, earlier.seconds)
        self._n_remembered = len(self.evaluations)
        return self.evaluations[len(self.evaluations) - len(earlier) :]

    def _known_rows(self, X):
        """Return the rows (n,) of places (n, d) that need no evaluation, -1 for others."""
        # An estimate is another one each time.
        n_known = self._n_remembered if self.is_noisy else len(self.evaluations)
        return self.evaluations[:n_known].rows(X)

    def _unknown(self, X):
        """Return the places of X (n, d) that need an evaluation, each once if it is exact."""
        new = X[self._known_rows(X) < 0]
        if self.is_noisy:
            return new
        # Two chains may be at one place.
        _, first = np.unique(new, axis=0, return_index=True)
        return new[np.sort(first)]

    def _prove(self, found):
        """Check the structure at evaluations; give up its refuted parts."""
        X, returned, values = found.X, found.outputs, found.log_densities
        is_finite = np.isfinite(values)
        if (is_finite & ~np.isfinite(returned).all(axis=1)).any():
            raise StructureError(f"{self.become_whole()}: it is learned as one number")
        sums = [n for n in self.nodes if n.is_term and n.returned.stop - n.returned.start > 1]
        if sums:
            summed, _, _ = self.log_density(X, self.emulated(returned))
            sizes = 1.0 + sum(np.abs(node.emulated(np.abs(returned)))[:, 0] for node in sums)
            wrong = ~(np.abs(summed - values) <= graph.ROUNDING_OF_SUM * (sizes + np.abs(values)))
            if wrong[is_finite].any():
                self._describe([None if n in sums else n.weights for n in self.nodes])
                raise StructureError(
                    "the log density is not everywhere a sum of what "
                    f"{', '.join(n.name for n in sums)} returns: each value is learned"
                )
        self._prove_dependence(X)

    def become_whole(self):
        """Give up the parts; return why: the log density may be finite though an output is not."""
        names = ", ".join(node.name for node in self.nodes)
        why = f"the log density is finite where {names} is not"
        if self._is_coarse:  # as a whole there is the fine one alone
            raise ValueError(why)
        if self._others:
            raise ValueError(
                f"T{why[1:]}, and other variables are held: learn all of them, without vars, or "
                "sample with kmc.KMC(learn=False)."
            )
        self._compile(self._graph, self._whole(self._graph))
        self.evaluations = self.evaluations.as_whole()
        self._n_remembered = len(self.evaluations)
        return why

    def _prove_dependence(self, X):
        inputs, start = self.inputs(X), self._tried[0]
        for node in self.nodes:
            more = graph.dependent_besides(self.inputs, X, inputs, start, node)
            if len(more):
                self._depends[more, node.inputs] = True
                self._describe([node.weights for node in self.nodes])
                raise StructureError(f"{node.name} depends on more variables than it seemed")

    @cached_property
    def n_parallel(self):
        return self._n_parallel or self._evaluator.n_workers

    @property
    def runs_ahead(self):
        """Whether evaluations can begin before :meth:`evaluate`, beside others."""
        return self._evaluator.runs_ahead

    def begin(self, X):
        """Start evaluations at X (n, d), all places of a later :meth:`evaluate`."""
        if len(new := self._unknown(X)):
            self._evaluator.begin(new)

    def end(self):
        """End evaluations no longer needed, and the workers of an executor made here."""
        self._evaluator.end()

    def _evaluate(self, X):
        """Evaluate at X (n, d); record the evaluations made before an error too."""
        outputs = np.full((len(X), self.nodes[-1].returned.stop), np.nan)
        begin, done = perf_counter(), np.zeros(len(X), dtype=bool)
        try:
            for i, k, row in self._evaluator.rows(X):
                outputs[i, self.nodes[k].returned] = np.ravel(row)
                done[i] = k == len(self.nodes) - 1
        finally:
            self.n_evaluations += int(done.sum())
            self._record(X[done], outputs[done], (perf_counter() - begin) / max(done.sum(), 1))

    def _record(self, X, outputs, seconds):
        """Record evaluations (n, d) and (n, m), and their seconds, (n,) or one number."""
        if len(X):
            columns = self.inputs(X), outputs, self.values(X, outputs), np.full(len(X), seconds)
            self.evaluations = self.evaluations.joined(Evaluations(self.names, X, *columns))


class PartEvaluator:
    """Evaluates opaque parts at many points.

    `variables` are those of `columns`, the Columns of a matrix of points; `parts` are OpaqueParts.
    `executor`, a LazyExecutor or None, runs parts that have none of their own; `rng` draws the
    noise of estimates.
    """

    def __init__(self, variables, columns, parts, executor, rng):
        self._columns, self._parts = columns, parts
        self._executor, self._rng = executor, rng
        self._arguments = of_rows(variables, [v for part in parts for v in part.inputs])
        # A node that feeds another is evaluated with it, once.
        chained = any(part.is_fed for part in parts)
        self._together = [p for p in parts if not p.is_alone or (chained and not p.is_noisy)]
        self._outputs = function(variables, [part.output for part in self._together])

    def arguments(self, X):
        """Return the inputs of all parts at X (n, d), a list of arrays (n, ...)."""
        return self._arguments(*self._columns.split(X))

    def output_shapes(self, x):
        """Return the shapes of all outputs, and the number of evaluations at x (d,) for them."""
        shapes = [part.output.type.shape for part in self._parts]
        if not any(n is None for shape in shapes for n in shape):
            return shapes, 0
        for part, value in zip(self._together, self._outputs_at(x), strict=True):
            shapes[self._parts.index(part)] = np.shape(value)
        return shapes, 1

    def _outputs_at(self, x):
        return self._outputs(*[row[0] for row in self._columns.split(x[None])])

    def rows(self, X):
        """Yield numbers of a point and a part, and its output there, as soon as it is available."""
        arrays = iter(self.arguments(X))
        together = enumerate(tee((self._outputs_at(x) for x in X), len(self._together)))
        for number, part in enumerate(self._parts):
            arguments, source = list(islice(arrays, len(part.inputs))), part.source
            if isinstance(source, LogDensity):
                sources = [*source.likelihoods, *source.simulators]
                rows = (source.evaluate(x, self._noise(sources)).log_density for x in X)
            elif part.is_noisy:
                # Each estimate is under noise of its own.
                calls = [(self._noise([source])[0], row) for row in zip(*arguments, strict=True)]
                rows = source.op.each(calls, self._executor)
            elif part not in self._together:
                rows = source.each(arguments, self._executor)
            else:
                k, found = next(together)
                rows = (outputs[k] for outputs in found)
            for i, row in enumerate(rows):
                yield i, number, row

    def _noise(self, sources):
        return tuple(source.scheme.draw(source.n_start, self._rng) for source in sources)

    @property
    def n_workers(self):
        """Number of evaluations that the executors run at once; 1 without one."""
        return min(map(self._n_workers, self._parts))

    def _n_workers(self, part):
        if isinstance(part.source, LogDensity) or part in self._together:
            return 1
        try:
            return getattr(part.source, "op", part.source).n_workers(self._executor) or 1
        except ValueError:  # it has no workers
            raise
        except Exception:  # it recurs at the first task, where it is explained
            return 1

    @property
    def runs_ahead(self):
        """Whether evaluations can begin beside others, before they are asked for."""
        source = self._parts[0].source
        if len(self._parts) > 1 or self._together or not isinstance(source, BlackBoxOp):
            return False
        return source.runs_ahead(self._executor)

    def begin(self, X):
        """Start evaluations at X (n, d) on the executor, if :attr:`runs_ahead`."""
        self._parts[0].source.begin(self.arguments(X), self._executor)

    def end(self):
        """End evaluations no longer needed, and the workers of an executor made here."""
        if self.runs_ahead:
            self._parts[0].source.abandon()
        if self._executor is not None:
            self._executor.forget()
