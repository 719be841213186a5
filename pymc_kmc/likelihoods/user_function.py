"""A user's function in a model's graph: its parameters, its last results, and its errors."""

import numbers
from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

from pymc_kmc.likelihoods.checks import WrongResult
from pymc_kmc.likelihoods.executors import (
    ExecutorError,
    Failure,
    TimeLimitError,
    Unavailable,
    WorkerDied,
)
from pymc_kmc.likelihoods.extras import Extras, WithExtras
from pymc_kmc.likelihoods.store import StoredFailure, StoredFunction, as_store

# Results remembered. A Metropolis step of another variable needs two in turn; Slice and NUTS return
# to their start after a few more, and two steps may compile the same graph.
CACHE_SIZE = 8

# By root model, as submodels' functions share its density: files and names of stored functions. Two
# of one name in a file would find each other's evaluations.
_claimed: WeakKeyDictionary = WeakKeyDictionary()


class NotFinite(WrongResult):
    """A result has NaN or infinite values."""


class Cache:
    """The last few results by their arguments (least recently used ones leave); thread-safe."""

    def __init__(self):
        self._results = {}
        self._size = CACHE_SIZE

    def __contains__(self, key):
        return key in self._results

    def find(self, key, evaluate):
        """Return the result of `key`, remembered or from ``evaluate()``."""
        result = self._results.pop(key, None)
        if result is None:
            result = evaluate()
            for oldest in list(self._results)[: max(0, len(self._results) - self._size + 1)]:
                self._results.pop(oldest, None)
        self._results[key] = result
        return result

    def find_all(self, keys, evaluate):
        """Return the results of `keys`, new ones by ``evaluate(rows)``; the cache grows to fit."""
        self._size = max(self._size, CACHE_SIZE + len(keys))
        found = {key: self._results.get(key) for key in keys}
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        missing = [key for key, result in found.items() if result is None]
        if missing:
            new = evaluate([first[key] for key in missing])
            found |= dict(zip(missing, new, strict=True))
        return [self.find(key, partial(found.get, key)) for key in keys]

    def refresh(self, is_current):
        """Make results whose keys are current the most recently used."""
        for key in filter(is_current, list(self._results)):
            result = self._results.pop(key, None)
            if result is not None:
                self._results[key] = result

    def clear(self):
        self._results.clear()


def key_of(values):
    """Return a :class:`Cache`'s key of arrays."""
    return tuple([(value.shape, value.tobytes()) for value in values])


class UserFunctionOp(Op):
    """A user's function of parameters without a gradient; its last few results are remembered.

    Two instances are never equal. `subject` is its name in messages, `stored` its StoredFunction or
    None, `rejects` whether a failure is a result. With `extras` results are :class:`WithExtras`.
    """

    stored: StoredFunction | None = None
    rejects = False
    timeout: float | None = None

    def __init__(self, name, subject, parameter_names, extras=None):
        self.name, self.subject = name, subject
        self.parameter_names = tuple(parameter_names)
        self.extras: Extras | None = extras
        self._cache = Cache()

    def keep_in(self, store, kind, params, shape, model):
        """Keep evaluations in a store, if any; see :class:`StoredFunction`.

        Raises a ValueError if another function of the model has this name in the store.
        """
        if store is None:
            return
        store = as_store(store, self.name)
        if (store.path, self.name) in _claimed.get(model.root, ()):
            raise ValueError(
                f"The model has another function {self.name!r} in the store {store.path!r}, where "
                "evaluations are found by the function's name, whatever its submodel: give each a "
                f"name of its own, e.g. '{self.name}_2', or a file of its own."
            )
        shapes = [param.type.shape for param in params]
        pairs = zip(self.parameter_names, shapes, strict=True)
        self.stored = StoredFunction(store, self.name, kind, pairs, shape)

    def claim_name(self, model):
        """Refuse the name in the store to the model's further functions; for a complete one."""
        if self.stored is not None:
            claimed = _claimed.setdefault(model.root, set())
            claimed.add((self.stored.path, self.stored.name))

    def known(self, parameters, noise: Sequence = ()):
        """Return the stored result or :class:`Failure` at parameters, else None.

        Failures that would end a run aren't used, since their cause may have been mended, nor
        evaluations without the function's extras.
        """
        found = None if self.stored is None else self.stored.find(parameters, noise)
        if found is None:
            return None
        if not isinstance(found, Failure):
            value, *kept = found
            if self.extras is None:
                return value
            has_extras = len(kept) == 2 and np.array_equal(kept[1], self.extras.mark)
            return WithExtras(value, kept[0]) if has_extras else None
        is_time = found.error.kind == FAULT_KINDS[TimeLimitError]
        is_short = is_time and found.error.seconds < (self.timeout or np.inf)
        return found if self.rejects and not is_short else None

    def keep(self, parameters, noise: Sequence, result, seconds, replace=True):
        """Store a result, or a :class:`Failure` that doesn't end the run, if there is a store.

        Without `replace` what is stored by now stays.
        """
        if self.stored is None:
            return
        if not isinstance(result, Failure):
            extras = ()
            if self.extras is not None:
                result, extras = result.value, (result.extras, self.extras.mark)
            values = np.asarray(result, dtype=float)
            self.stored.write(parameters, noise, values, seconds, extras=extras, replace=replace)
        elif self.rejects and not isinstance(result.error, Unavailable):
            if isinstance(result.error, TimeLimitError):
                seconds = self.timeout
            failure = kind(result.error), happened(result)
            self.stored.write(parameters, noise, None, seconds, failure, replace=replace)

    def _results_of(self, calls, compute):
        """Yield the result of each call: the store's, or the next of ``compute(missing)``, Timed.

        Calls are pairs of parameters and noise, two sequences of arrays; `missing` are the indices
        of those that aren't stored, None without a store.
        """
        if self.stored is None:
            yield from (self._checked(result) for result, _ in compute(None))
            return
        known = [self.known(*call) for call in calls]
        missing = [i for i, found in enumerate(known) if found is None]
        computed = compute(missing)
        for (parameters, noise), found in zip(calls, known, strict=True):
            if found is None:
                result, seconds = next(computed)
                result = self._checked(result)
                self.keep(parameters, noise, result, seconds)
                yield result
            else:
                yield self._checked(found)
        if missing:
            next(computed, None)  # an executor ends with its last result, not as if interrupted

    def _checked(self, result):
        return result

    def _told(self, failure, values, remedy=""):
        """Return an error's text: the :class:`Failure`, the parameters, a remedy, the traceback."""
        frames = ""
        if failure.frames and not isinstance(failure.error, WrongResult):
            frames = f"\n{failure.frames}"
        return (
            f"The {self.subject} {happened(failure)}\n"
            f"Parameters: {with_values(self.parameter_names, values)}{remedy}{frames}"
        )


# Kinds of failures besides the exceptions of the user's function, as they are counted.
FAULT_KINDS = {
    NotFinite: "not finite",
    WrongResult: "wrong result",
    TimeLimitError: "timeout",
    WorkerDied: "worker died",
}


def kind(error):
    """Return the kind of an error, for counts."""
    if isinstance(error, StoredFailure):
        return error.kind
    return FAULT_KINDS.get(type(error), type(error).__name__)


def happened(failure):
    """Return a failure as the end of a sentence whose subject is the function."""
    error = failure.error
    if isinstance(error, WrongResult):
        return str(error)
    if isinstance(error, TimeLimitError):
        return f"was stopped: {error}"
    if isinstance(error, Unavailable):
        return f"got no result: {error}"
    if isinstance(error, ExecutorError):
        return f"got no result of its executor: {error}"
    return f"raised {type(error).__name__}: {error}"


def with_values(names, values):
    """Return ``"rate=0.3, size=[1., 2.]"`` with reproducible digits; spare names are left out."""
    form = {"separator": ", ", "floatmode": "unique", "max_line_width": np.inf}
    return ", ".join(
        f"{name}={np.array2string(np.asarray(value), **form)}"
        for name, value in zip(names, values, strict=False)
    )


def as_tensors(name, params, what):
    """Return the parameters of a user's function, `what` in messages, as tensors.

    Raises a ValueError if there are none, a TypeError if one is neither a tensor nor numbers.
    """
    if not params:
        raise ValueError(
            f"{name!r} got no params. Give the variables that the {what} takes after it: "
            f"({name!r}, {what}, variable, ...)."
        )
    tensors = []
    for i, param in enumerate(params):
        try:
            # An array of a number: PyTensor would make an int8 of 3.
            is_number = isinstance(param, numbers.Number)
            if isinstance(param, Variable) and hasattr(param, "values"):  # of pymc.dims
                tensor = param.values
                tensor.name = param.name
            else:
                tensor = pt.as_tensor_variable(np.asarray(param) if is_number else param)
        except (TypeError, ValueError, NotImplementedError):
            raise TypeError(
                f"params[{i}] of {name!r} must be a variable of the model, an expression of "
                f"variables or numbers, got {param!r} of type {type(param).__name__}."
            ) from None
        tensors.append(tensor)
    return tensors


def names_of(params):
    return [param.name or f"params[{i}]" for i, param in enumerate(params)]


def evaluate_at_initial_point(name, params, model):
    """Return the values of `params` at the model's initial point, on their natural scale.

    Raises a ValueError with the likelihood's name if one depends on another model's variable, or on
    one of a step of `pytensor.scan`; variables of a submodel's parents and their other submodels
    are its own.
    """
    model = model.root
    values = model.replace_rvs_by_values(params)
    for param, value in zip(names_of(params), values, strict=True):
        strange = [
            variable.name
            for variable in ancestors([value])
            if is_free(variable) and variable not in model.value_vars
        ]
        if strange and (strange[0] is None or "[t" in strange[0]):  # scan names x[t], x[t-1]
            raise ValueError(
                f"The parameter {param!r} of {name!r} has no value, as if it were of a step inside "
                f"pytensor.scan, where {name!r} can't be. Let its function make all steps itself, "
                "or call it outside of scan: in a Python loop, under another name at each step."
            )
        if strange:
            raise ValueError(
                f"The parameter {param!r} of {name!r} depends on the variable {strange[0]!r}, "
                "which is not a variable of this model. Register it in this model, or give the "
                "model that it belongs to."
            )
    point = model.initial_point()
    function = pytensor.function(
        model.value_vars, values, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return function(*(point[variable.name] for variable in model.value_vars))


def is_free(variable):
    """Return whether a node of a graph is a random variable, or an input without a value."""
    if variable.owner is None:
        return not isinstance(variable, Constant | SharedVariable)
    return isinstance(variable.owner.op, RandomVariable)


def fault_of(outputs, may_reject):
    """Return a :class:`Failure` if outputs aren't finite (-inf only if `may_reject`), else None."""
    if np.isfinite(outputs).all():
        return None
    bad = ~np.isfinite(outputs)
    if not may_reject:
        bad &= outputs != -np.inf  # a log density may be -inf
        if not bad.any():
            return None
    if outputs.ndim == 0:
        shown = f"{outputs}"
    else:
        first = tuple(int(index) for index in np.argwhere(bad)[0])
        shown = f"{bad.sum()} of {bad.size} values that aren't finite, {outputs[first]} first, "
        shown += f"at {list(first)}"
    return Failure(0, NotFinite(f"returned {shown}."), "")
