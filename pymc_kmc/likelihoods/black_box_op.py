"""The Op of a black box: a user's function, counted, checked and evaluated in batches."""

import warnings
from collections import Counter, deque
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import io_toposort

from pymc_kmc._compat import expect_numba_fallback
from pymc_kmc.likelihoods.checks import WrongResult, as_real_array
from pymc_kmc.likelihoods.executors import (
    ExecutorError,
    Failure,
    LazyExecutor,
    RunOnce,
    Timed,
    Unavailable,
    timed,
)
from pymc_kmc.likelihoods.extras import WithExtras, apart, joined
from pymc_kmc.likelihoods.user_function import (
    NotFinite,
    UserFunctionOp,
    fault_of,
    happened,
    key_of,
    kind,
    with_values,
)

MOST_REJECTIONS = 100  # rejected points kept for inspection; all are counted
GRAPH_ROUNDING = 1e-9  # relative difference of one value as two graphs compute it


class BlackBoxError(RuntimeError):
    """A black box raised, hung, or returned something wrong. The message has the parameters.

    In the process where it happened ``__cause__`` is the original exception, unless PyTensor raised
    a copy of the error.
    """


class Rejection(NamedTuple):
    """A point where a black box failed: parameters on their natural scale, and the reason."""

    parameters: dict
    reason: str


class RealArray:
    """Calls the user's function and makes an array of its result."""

    def __init__(self, function, extras=None, vectorized=False):
        self.function, self.extras, self.vectorized = function, extras, vectorized

    def __call__(self, *values, shape):
        first = shape[: int(self.vectorized)]
        outputs, extras = apart(self.extras, self.function(*values), *first)
        try:
            return joined(as_real_array(outputs, shape), extras)
        except TypeError as error:
            raise WrongResult(
                f"must return real numbers of shape {shape}; it returned {error} (see shape=)."
            ) from None


class ResultsAtDraws(NamedTuple):
    """Results at n points, whose raveled parameters are `rows` (n, k)."""

    rows: np.ndarray
    results: list

    def find(self, values):
        """Return the result at the nearest parameters that are equal up to rounding, or None."""
        row = np.concatenate([np.ravel(value) for value in values])
        if len(row) != self.rows.shape[1]:
            return None
        distances, bounds = np.abs(self.rows - row), GRAPH_ROUNDING * np.abs(row)
        (same,) = np.nonzero((distances <= bounds).all(axis=1))
        if not len(same):
            return None
        # Several where the draws' spread is as small beside their size.
        shares = distances[same] / np.maximum(bounds, np.finfo(np.float64).tiny)
        return self.results[same[shares.max(axis=1, initial=0.0).argmin()]]


class BlackBoxOp(UserFunctionOp):
    """A deterministic function that has values only, no gradient; see :func:`BlackBox`.

    The first output is the result, NaN at a failure. With ``on_error="reject"`` the second is 1.0
    at a success, 0.0 at a failure. With `extras` the last is these, raveled. `shape` has None for
    lengths that the data determine; the last parameter is then the whole shape, a vector of
    integers, which the function doesn't get. Parameters have these `dtypes`, whatever numbers are
    given. Two instances are never equal.

    Attributes
    ----------
    rejects : bool
        Whether a failing evaluation rejects the point.
    n_evaluations, n_rejected : int
        Number of points evaluated in this process, stored ones included, and of rejected ones.
    reasons : collections.Counter
        Number of rejections by the kind of failure.
    rejections : collections.deque of Rejection
        The last 100 rejected points.
    coarse : BlackBoxOp or None
        The cheap approximation, with counts of its own.
    """

    coarse: "BlackBoxOp | None" = None
    # Results that are known while predictions are made.
    at_draws: "ResultsAtDraws | None" = None

    def __init__(
        self,
        name,
        function,
        shape,
        parameter_names,
        dtypes,
        executor,
        timeout,
        on_error,
        vectorized,
        extras=None,
    ):
        super().__init__(name, f"black box {name!r}", parameter_names, extras)
        self.dtypes = tuple(dtypes)
        self.shape = shape
        self.takes_shape = None in shape
        self.timeout = timeout
        self.rejects = on_error == "reject"
        self.vectorized = vectorized
        self.n_evaluations = 0
        self.reasons = Counter()
        self.rejections = deque(maxlen=MOST_REJECTIONS)
        self._call = RunOnce(RealArray(function, extras, vectorized))
        self.executor = LazyExecutor.of(executor, timeout)

    @property
    def function(self):
        return self._call.content.function

    @property
    def n_rejected(self):
        return sum(self.reasons.values())

    @property
    def _function_parameters(self):
        return self.parameter_names[: -1 if self.takes_shape else None]

    def __str__(self):
        return f"BlackBox{{{self.name}}}"

    def __repr__(self):
        parameters = ", ".join(self._function_parameters)
        text = (
            f"<BlackBox {self.name!r} of {parameters}, shape {self.shape}: "
            f"{self.n_evaluations} evaluations in this process"
        )
        if self.rejects:
            kinds = "".join(f", {kind}: {n}" for kind, n in self.reasons.most_common())
            text += f", {self.n_rejected} rejected{kinds}"
        if self.coarse is not None:
            text += f"; coarse: {self.coarse.n_evaluations}"
        return text + ">"

    # PyTensor's side

    def make_node(self, *inputs):
        outputs = [pt.tensor(dtype="float64", shape=self.shape)]
        if self.rejects:
            outputs.append(pt.dscalar())
        if self.extras is not None:
            outputs.append(pt.dvector())
        return Apply(self, [pt.as_tensor_variable(value) for value in inputs], outputs)

    def perform(self, node, inputs, output_storage):
        for storage, value in zip(output_storage, self._of_node(*self._at(inputs)), strict=True):
            storage[0] = value

    def _of_node(self, outputs, succeeded, extras):
        values = [outputs]
        if self.rejects:
            values.append(np.array(float(succeeded)))
        if self.extras is not None:
            values.append(extras)
        return values

    def pullback(self, inputs, outputs, cotangents):
        raise NotImplementedError(
            f"The black box {self.name!r} has no gradient. Sample the variables that it depends on "
            f"({', '.join(self._function_parameters)}) with a step that needs none: kmc.KMC(), "
            "pm.Slice(), pm.DEMetropolisZ()"
        )

    L_op = pullback  # PyMC 5.28

    # Evaluation

    def evaluate(self, *values):
        """Return the outputs at one point, and whether it succeeded; the last few are remembered.

        Values are on their natural scale. NaN and errors are as of :meth:`evaluate_many`.
        """
        return self._at(values)[:2]

    def _at(self, values):
        """Return :meth:`evaluate` and the raveled extras, None without any."""
        values = of_types(self, values)

        def evaluate():
            (found,) = self._results([value[None] for value in values])
            return found

        found = None if self.at_draws is None else self.at_draws.find(values)
        return copied(*self._cache.find(key_of(values), evaluate) if found is None else found)

    def values_of_node(self, inputs, executor=None):
        """Return and remember a node's outputs at n points, with arguments of :meth:`each`."""
        points = list(zip(*inputs, strict=True))

        def evaluate(rows):
            return self._results([values[rows] for values in inputs], executor)

        found = self._cache.find_all([key_of(point) for point in points], evaluate)
        return [self._of_node(*copied(*result)) for result in found]

    @contextmanager
    def knowing(self, inputs, outputs=None, executor=None):
        """Know the results at n points, an array of values for each parameter, within the context.

        Without `outputs` (n, ...) the distinct points are evaluated now, in a batch.
        """
        rows = np.column_stack([np.reshape(values, (len(values), -1)) for values in inputs])
        if outputs is None:
            _, first, places = np.unique(rows, axis=0, return_index=True, return_inverse=True)
            found = list(self._results([values[first] for values in inputs], executor))
            results = [found[i] for i in np.ravel(places)]
        else:
            extras = None if self.extras is None else self.extras.missing
            results = [(each, True, extras) for each in outputs]
        self.at_draws = ResultsAtDraws(rows, results)
        try:
            yield
        finally:
            self.at_draws = None

    def evaluate_many(self, inputs):
        """Return the outputs at n points, (n, ...), and whether each succeeded, bool (n,).

        The executor evaluates them, or one call if vectorized. Outputs are NaN at failures.

        Parameters
        ----------
        inputs : sequence of array_like
            An array of shape (n, ...) for each parameter: its values at n points.

        Raises
        ------
        BlackBoxError
            If an evaluation fails and `on_error` is "raise", or the executor fails.
        ValueError
            If `inputs` doesn't have an array of n values for each parameter, or one of a discrete
            parameter has others than whole numbers.
        """
        inputs, shape = self._arguments(inputs)
        outputs = np.empty((len(inputs[0]), *shape))
        succeeded = np.empty(len(outputs), dtype=bool)
        for i, found in enumerate(self._results(inputs)):
            outputs[i], succeeded[i], _ = found
        return outputs, succeeded

    def each(self, inputs, executor=None):
        """Return an iterator of the outputs at n points, each as soon as it is computed.

        Arguments and errors are as of :meth:`evaluate_many`; `executor` is a fallback LazyExecutor.
        """
        return (outputs for outputs, *_ in self._results(inputs, executor))

    def n_workers(self, executor=None):
        """Return how many evaluations an executor runs at once for :meth:`each`."""
        return (self.executor or executor).n_workers if self.runs_ahead(executor) else 1

    def runs_ahead(self, executor=None):
        """Return whether evaluations can begin on an executor before :meth:`each` asks for them."""
        return (self.executor or executor) is not None and not self.vectorized

    def begin(self, inputs, executor=None):
        """Begin evaluations on an executor that :meth:`each` will ask for, except known ones."""
        inputs, shape = self._arguments(inputs)
        missing = [
            i
            for i, row in enumerate(zip(*inputs, strict=True))
            if key_of(row) not in self._cache and self.known(row) is None
        ]
        calls = self._calls([values[missing] for values in inputs], shape)
        (self.executor or executor).begin(self._call, calls, self._keeper)

    def abandon(self, executor=None, most=0):
        """Cancel begun evaluations that nothing asked for, if there are more than `most`."""
        if (executor := self.executor or executor) is not None:
            executor.abandon(most)

    def _arguments(self, inputs):
        """Return the parameters at n points as arrays, and the shape of the outputs at each."""
        inputs = [np.asarray(values) for values in inputs]
        lengths = {values.shape[0] if values.ndim else None for values in inputs}
        if len(inputs) != len(self.parameter_names) or len(lengths) != 1 or None in lengths:
            raise ValueError(
                f"inputs of {self.name!r} must have an array with a row for each point, for each "
                f"of {list(self.parameter_names)}; got shapes {[v.shape for v in inputs]}."
            )
        inputs = of_types(self, inputs)
        if not self.takes_shape:
            return inputs, self.shape
        return inputs, tuple(inputs[-1].max(axis=0, initial=0).tolist())  # all rows are equal

    def _calls(self, inputs, shape, at_once=False):
        """Return the arguments of a call for each of n points, or of one call for all `at_once`."""
        arguments, n = inputs[: -1 if self.takes_shape else None], len(inputs[0])
        if at_once:
            return [(arguments, {"shape": (n, *shape)})]
        if self.vectorized:
            return [([v[i : i + 1] for v in arguments], {"shape": (1, *shape)}) for i in range(n)]
        return [([v[i] for v in arguments], {"shape": shape}) for i in range(n)]

    def _results(self, inputs, executor=None):
        """Yield outputs (NaN at a failure), success and raveled extras (or None) for n points."""
        inputs, shape = self._arguments(inputs)
        points = list(zip(*inputs, strict=True))

        def compute(missing):
            some = inputs if missing is None else [values[missing] for values in inputs]
            for result, seconds in self._computed(some, shape, executor):
                yield Timed(self._shaped(result, shape), seconds)

        results = self._results_of([(point, ()) for point in points], compute)
        for point, result in zip(points, results, strict=True):
            self.n_evaluations += 1
            if failed := isinstance(result, Failure):
                self._fail(result, point)
                extras = None if self.extras is None else self.extras.missing
                result = joined(np.full(shape, np.nan), extras)
            outputs, extras = (result, None) if self.extras is None else result
            yield outputs, not failed, extras

    def _computed(self, inputs, shape, executor):
        """Yield a :class:`Timed` array or :class:`Failure` for each of n points."""
        executor, n = self.executor or executor, len(inputs[0])
        if self.vectorized and n > 1:
            ((together, seconds),) = self._run(self._calls(inputs, shape, at_once=True), executor)
            # Else one by one: it is the point that failed that is to be named.
            if not isinstance(together, Failure):
                rows = together if self.extras is None else map(WithExtras, *together)
                yield from (Timed(row, seconds / n) for row in rows)
                return
        yield from self._run(self._calls(inputs, shape), executor)

    def _shaped(self, result, shape):
        if isinstance(result, Failure):
            return result
        if self.extras is None:
            return result.reshape(shape)
        return WithExtras(result.value.reshape(shape), result.extras.ravel())

    def _checked(self, result):
        """Return a result, or a :class:`Failure` if its outputs aren't finite."""
        if isinstance(result, Failure):
            return result
        outputs = result if self.extras is None else result.value
        return fault_of(outputs, self.rejects) or result

    def _run(self, calls, executor):
        n_done, results = 0, (timed(self._call, *call) for call in calls)
        if executor is not None:
            results = executor.each(self._call, calls, self.timeout, self._keeper)
        try:
            for found in results:
                if isinstance(found.result, Failure):
                    if isinstance(found.result.error, Unavailable):
                        raise found.result.error
                n_done += 1
                yield found
        except ExecutorError as error:
            # A fault of the machine: it says nothing about the parameters.
            failure = Failure(0, error, "")
            raise self._error(failure, calls[n_done][0]) from failure.cause

    @property
    def _keeper(self):
        """Callback that stores early results, None where it can't."""
        # A vectorized call may be of many points; a call with a shape lacks that parameter.
        is_whole = self.stored is not None and not (self.vectorized or self.takes_shape)
        return self._keep_early if is_whole else None

    def _keep_early(self, call, result, seconds):
        values, options = call
        result = self._checked(self._shaped(result, options["shape"]))
        self.keep(values, (), result, seconds, replace=False)

    def try_out(self, values):
        """Return the result at one point, by a call in this process that isn't remembered.

        Raises a BlackBoxError if the function raises, whatever `on_error`, and a TypeError if the
        result isn't real numbers of the right shape.
        """
        self.n_evaluations += 1
        inputs, shape = self._arguments([value[None] for value in values])
        (call,) = self._calls(inputs, shape)
        result = self._call(*call)
        if isinstance(result, Failure):
            error = self._error(result, values)
            if isinstance(result.error, WrongResult):
                raise TypeError(str(error))
            raise error from result.error
        return self._shaped(result, shape)

    # Failures

    def _fail(self, failure, values):
        if not self.rejects:
            raise self._error(failure, values) from failure.cause
        error = failure.error
        self.reasons[kind(error)] += 1
        parameters = dict(zip(self.parameter_names, map(np.array, values), strict=True))
        self.rejections.append(Rejection(parameters, happened(failure)))
        if self.n_rejected == 1:
            warnings.warn(
                f"The black box {self.name!r} {happened(failure)}\n"
                f"Parameters: {with_values(self.parameter_names, values)}\n"
                "The log density is -inf there: such points are cut out of the prior "
                "(on_error='reject'). kmc.black_boxes(model) counts them; this warning is given "
                "once.",
                UserWarning,
                stacklevel=2,
            )

    def _error(self, failure, values):
        remedy = ""
        if isinstance(failure.error, NotFinite):
            remedy = (
                "\nA log density may be -inf where parameters are impossible. on_error='reject' "
                "rejects points where the function fails."
            )
        return BlackBoxError(self._told(failure, values, remedy))


def of_types(op, values):
    """Return arrays of the parameters' types, lest calls and keys depend on how a user asks."""
    if len(values) != len(op.dtypes):
        raise ValueError(
            f"{op.name!r} takes values of {list(op.parameter_names)}, got {len(values)}."
        )
    typed = []
    for name, value, dtype in zip(op.parameter_names, values, op.dtypes, strict=True):
        value = array = np.asarray(value)
        if value.dtype != dtype:
            with np.errstate(invalid="ignore"):  # NaN as a whole number is refused below
                array = value.astype(dtype)
            if array.dtype.kind in "biu" and not np.array_equal(array, value):
                raise ValueError(
                    f"The parameter {name!r} of {op.name!r} takes whole numbers ({dtype}), "
                    f"got {value!r}."
                )
        typed.append(array)
    return typed


def copied(outputs, succeeded, extras):
    """Return a copy that PyTensor may write into."""
    return np.array(outputs), succeeded, None if extras is None else extras.copy()


def black_box_ops(graphs):
    """Return the :class:`BlackBoxOp` s of graphs, sorted by name; equal names in graph order."""
    found = [n.op for n in io_toposort([], graphs) if isinstance(n.op, BlackBoxOp)]
    return sorted(dict.fromkeys(found), key=lambda op: op.name)


expect_numba_fallback(BlackBoxOp)
