"""The Op of a black box: a user's function, counted, checked and evaluated in batches."""

import traceback
import warnings
from collections import Counter, deque
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors

from pymc_kmc._compat import expect_numba_fallback
from pymc_kmc.likelihoods.checks import WrongResult, as_real_array
from pymc_kmc.likelihoods.executors import (
    ExecutorError,
    Failure,
    LazyExecutor,
    Shipped,
    TimeLimitError,
    check_executor,
)
from pymc_kmc.likelihoods.op_results import Cache, with_values

MOST_REJECTIONS = 100  # rejected points kept to look at; all are counted


class BlackBoxError(RuntimeError):
    """A black box raised, hung, or returned something wrong. The message has the parameters.

    In the process where it happened ``__cause__`` is the original exception, unless PyTensor raised
    a copy of the error.
    """


class NotFinite(WrongResult):
    """A result has NaN or infinite values."""


class Rejection(NamedTuple):
    """A point where a black box failed: its parameters on their natural scale, and the reason."""

    parameters: dict
    reason: str


class CallFunction(Shipped):
    """Calls the user's function and makes an array of its result."""

    def __call__(self, values, shape):
        """Return the outputs at `values`, an array of this shape, or a :class:`Failure`."""
        function = self.content
        try:
            # [()] makes numbers of 0-d arrays. Copies: the function may write into its arguments.
            outputs = function(*[value.copy()[()] for value in values])
            try:
                return as_real_array(outputs, shape)
            except TypeError as error:
                raise WrongResult(
                    f"must return real numbers of shape {shape}; it returned {error} (see shape=)"
                ) from None
        except (Exception, SystemExit) as error:
            # Without the frame of this function. Foreign code ends itself with sys.exit.
            return Failure(0, error, "".join(traceback.format_tb(error.__traceback__)[1:]))


class BlackBoxOp(Op):
    """A deterministic function that has values only, no gradient; see :func:`BlackBox`.

    It has one output, a tensor. With ``on_error="reject"`` it has a second, 1. where the evaluation
    succeeded and 0. where it failed; there the first is NaN. Two instances are never equal. `shape`
    has None for lengths that the data determine; the last parameter is then the whole shape, a
    vector of integers, which the function doesn't get.

    Attributes
    ----------
    rejects : bool
        Whether a failing evaluation rejects the point.
    n_evaluations, n_rejected : int
        Number of points evaluated in this process, and of those rejected among them.
    reasons : collections.Counter
        Number of rejections by the kind of failure.
    rejections : collections.deque of Rejection
        The last 100 rejected points.
    """

    def __init__(
        self,
        name,
        function,
        shape,
        parameter_names,
        *,
        executor=None,
        timeout=None,
        on_error="raise",
        vectorized=False,
    ):
        check_executor(executor, timeout)
        self.name = name
        self.shape = shape
        self.takes_shape = None in shape
        self.parameter_names = tuple(parameter_names)
        self.timeout = timeout
        self.rejects = on_error == "reject"
        self.vectorized = vectorized
        self.n_evaluations = 0
        self.reasons = Counter()
        self.rejections = deque(maxlen=MOST_REJECTIONS)
        self._call = CallFunction(function)
        self._executor = None if executor is None else LazyExecutor(executor)
        self._cache = Cache()

    @property
    def function(self):
        return self._call.content

    @property
    def n_rejected(self):
        return sum(self.reasons.values())

    @property
    def _function_parameters(self):
        """Names of the function's arguments."""
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
        return text + ">"

    # PyTensor's side

    def make_node(self, *inputs):
        outputs = [pt.tensor(dtype="float64", shape=self.shape)]
        if self.rejects:
            outputs.append(pt.dscalar())
        return Apply(self, [pt.as_tensor_variable(value) for value in inputs], outputs)

    def perform(self, node, inputs, output_storage):
        outputs, succeeded = self.evaluate(*inputs)
        output_storage[0][0] = outputs
        if self.rejects:
            output_storage[1][0] = np.array(float(succeeded))

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

        Values are on their natural scale; outputs are NaN where the evaluation failed. Raises a
        BlackBoxError as :meth:`evaluate_many` does.
        """
        values = [np.asarray(value) for value in values]
        key = tuple([(value.shape, value.tobytes()) for value in values])
        outputs, succeeded = self._cache.find(key, lambda: self._evaluate(values))
        return np.array(outputs), succeeded  # a copy: PyTensor works in place

    def _evaluate(self, values):
        outputs, succeeded = self.evaluate_many([value[None] for value in values])
        return outputs[0], bool(succeeded[0])

    def evaluate_many(self, inputs):
        """Return the outputs at n points, (n, ...), and whether each succeeded, bool (n,).

        They are evaluated on the executor, or by one call if vectorized. Outputs are NaN where an
        evaluation failed.

        Parameters
        ----------
        inputs : sequence of array_like
            An array of shape (n, ...) for each parameter: its values at n points.

        Raises
        ------
        BlackBoxError
            If an evaluation fails and `on_error` is "raise", or the executor fails.
        ValueError
            If `inputs` doesn't have an array of n values for each parameter.
        """
        inputs = [np.asarray(values) for values in inputs]
        n = self._n_points(inputs)
        outputs = np.full((n, *self._arguments(inputs)[1]), np.nan)
        succeeded = np.zeros(n, dtype=bool)
        for i, result in enumerate(self._checked(inputs, n)):
            if result is not None:
                outputs[i], succeeded[i] = result, True
        return outputs, succeeded

    def each(self, inputs, executor=None):
        """Yield the outputs at several points, each as soon as it is computed.

        Arguments and errors are those of :meth:`evaluate_many`; a rejected point's outputs are NaN.
        Outputs yielded before an error aren't lost. `executor`, a LazyExecutor, is used by a black
        box that has none of its own.
        """
        inputs = [np.asarray(values) for values in inputs]
        results = self._checked(inputs, self._n_points(inputs), executor)
        shape = self._arguments(inputs)[1]
        for result in results:
            yield np.full(shape, np.nan) if result is None else result

    def runs_ahead(self, executor=None):
        """Return whether evaluations can begin on an executor before :meth:`each` asks for them."""
        return (self._executor or executor) is not None and not self.vectorized

    def begin(self, inputs, executor=None):
        """Let an executor begin what :meth:`each` will evaluate with these arguments."""
        inputs = [np.asarray(values) for values in inputs]
        calls = self._calls(inputs, self._n_points(inputs))
        (self._executor or executor).begin(self._call, calls)

    def abandon(self):
        """Cancel evaluations begun on an executor of its own that were not asked for."""
        if self._executor is not None:
            self._executor.abandon()

    def _arguments(self, inputs):
        """Return the function's arguments at n points, and the shape of its outputs at each."""
        if not self.takes_shape:
            return inputs, self.shape
        *inputs, lengths = inputs
        return inputs, tuple(lengths.max(axis=0, initial=0).tolist())  # all rows are equal

    def _calls(self, inputs, n):
        inputs, shape = self._arguments(inputs)
        return [([values[i] for values in inputs], shape) for i in range(n)]

    def _checked(self, inputs, n, executor=None):
        """Yield an array for each of n points, None where the evaluation was rejected."""
        for i, result in enumerate(self._results(inputs, n, self._executor or executor)):
            self.n_evaluations += 1
            failure = result if isinstance(result, Failure) else self._fault(result)
            if failure is not None:
                self._fail(failure, [values[i] for values in inputs])
            yield None if failure is not None else result

    def try_out(self, values):
        """Return the outputs at one point, by a call in this process that isn't remembered.

        Raises a BlackBoxError if the function raises, whatever `on_error`, with its exception as
        ``__cause__``, and a TypeError if the result isn't real numbers of the right shape.
        """
        self.n_evaluations += 1
        inputs, shape = self._arguments([value[None] for value in values])
        if self.vectorized:
            result = self._call(inputs, (1, *shape))
        else:
            result = self._call([values[0] for values in inputs], shape)
        if isinstance(result, Failure):
            error = self._error(result, values)
            if isinstance(result.error, WrongResult):
                raise TypeError(str(error))
            raise error from result.error
        return result[0] if self.vectorized else result

    def _n_points(self, inputs):
        lengths = {values.shape[0] if values.ndim else None for values in inputs}
        if len(inputs) != len(self.parameter_names) or len(lengths) != 1 or None in lengths:
            raise ValueError(
                f"inputs of {self.name!r} must have an array with a row for each point, for each "
                f"of {list(self.parameter_names)}; got shapes {[v.shape for v in inputs]}."
            )
        return lengths.pop()

    def _results(self, inputs, n, executor):
        """Yield an array or a :class:`Failure` for each of n points."""
        if not self.vectorized:
            yield from self._run(self._calls(inputs, n), executor)
            return
        inputs, shape = self._arguments(inputs)
        if n > 1:
            (results,) = self._run([(inputs, (n, *shape))], executor)
            if not isinstance(results, Failure):
                yield from results
                return
        # One by one: it is the point that failed that is to be named.
        calls = [([v[i : i + 1] for v in inputs], (1, *shape)) for i in range(n)]
        for result in self._run(calls, executor):
            yield result if isinstance(result, Failure) else result[0]

    def _run(self, calls, executor):
        """Yield the results of calls; one that takes too long fails like one that raises."""
        if executor is None:
            for call in calls:
                yield self._call(*call)
            return
        n_done = 0
        while n_done < len(calls):
            try:
                results = executor.results(self._call, calls[n_done:], self.timeout, True)
                for result in results:
                    n_done += 1
                    yield result
            except TimeLimitError as error:
                n_done += 1
                yield Failure(0, error, "")
            except ExecutorError as error:
                # A fault of the machine: it says nothing about the parameters.
                values = calls[n_done][0]
                raise self._error(Failure(0, error, ""), values) from error.__cause__

    def _fault(self, outputs):
        """Return a failure if outputs aren't finite, else None."""
        if np.isfinite(outputs).all():
            return None
        bad = ~np.isfinite(outputs)
        if not self.rejects:
            bad &= outputs != -np.inf  # a log density may be -inf
            if not bad.any():
                return None
        if outputs.ndim == 0:
            shown = f"{outputs}"
        else:
            first = tuple(int(index) for index in np.argwhere(bad)[0])
            shown = f"{bad.sum()} of {bad.size} values that aren't finite, {outputs[first]} first, "
            shown += f"at {list(first)}"
        return Failure(0, NotFinite(f"returned {shown}"), "")

    # Failures

    def _fail(self, failure, values):
        """Raise the error of a failing evaluation, or count and keep the rejection."""
        if not self.rejects:
            cause = None if isinstance(failure.error, WrongResult) else failure.error
            raise self._error(failure, values) from cause
        error = failure.error
        self.reasons[KINDS.get(type(error), type(error).__name__)] += 1
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
        frames = ""
        if failure.frames and not isinstance(failure.error, WrongResult):
            frames = f"\n{failure.frames}"
        return BlackBoxError(
            f"The black box {self.name!r} {happened(failure)}\n"
            f"Parameters: {with_values(self.parameter_names, values)}{remedy}{frames}"
        )


# Kinds of failures besides the exceptions of the user's function, as they are counted.
KINDS = {NotFinite: "not finite", WrongResult: "wrong result", TimeLimitError: "timeout"}


def happened(failure):
    """Return the failure as the end of a sentence whose subject is the black box."""
    error = failure.error
    if isinstance(error, TimeLimitError):
        return f"was stopped: {error}"
    if isinstance(error, ExecutorError):
        return f"got no result of its executor: {error}"
    if isinstance(error, WrongResult):
        return f"{error}."
    return f"raised {type(error).__name__}: {error}"


def black_box_ops(graphs):
    """Return the :class:`BlackBoxOp` s of graphs, in the order of their names."""
    found = {
        variable.owner.op
        for variable in ancestors(graphs)
        if variable.owner is not None and isinstance(variable.owner.op, BlackBoxOp)
    }
    return sorted(found, key=lambda op: op.name)


expect_numba_fallback(BlackBoxOp)
