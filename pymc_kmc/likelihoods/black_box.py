r"""A Python function without a gradient as a tensor of a PyMC model.

With ``on_error="reject"`` a model is conditioned on the event that its evaluation succeeds. Let
:math:`S` be the set of parameters where it does. An observed Bernoulli variable with success
probability :math:`1_S(\theta)` and value 1 gives the posterior :math:`\pi(\theta) 1_S(\theta)
L(\theta) / Z`: the prior is cut off to S. Where the evaluation fails, the log density uses the
tensor's value at the initial point, lest NaN meets -inf. In a forward draw the Bernoulli variable
is 0 there, and the tensor is NaN.
"""

import numbers
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.type import discrete_dtypes

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp, black_box_ops
from pymc_kmc.likelihoods.checks import check_callable, check_model, check_name, is_positive_integer
from pymc_kmc.likelihoods.extras import Extras, ExtrasLike, WithExtras
from pymc_kmc.likelihoods.store import BLACK_BOX, StoreLike
from pymc_kmc.likelihoods.user_function import (
    as_tensors,
    evaluate_at_initial_point,
    is_free,
    names_of,
)
from pymc_kmc.numerics.checks import check_choice, check_flag

# Largest relative difference of two calls with the same parameters that counts as rounding, as of
# threads that add in another order. An estimate differs by more.
CALL_ROUNDING = 1e-6


def BlackBox(  # noqa: N802
    name: str,
    function: Callable,
    *params: TensorVariable,
    shape: int | TensorVariable | Sequence[int | TensorVariable] = (),
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    on_error: Literal["raise", "reject"] = "raise",
    vectorized: bool = False,
    store: StoreLike | None = None,
    extras: ExtrasLike | None = None,
    coarse: Callable | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Make a tensor of a Python function: a solver, a simulator without noise, foreign code.

    The tensor can be used anywhere in the model: as a mean, inside of an expression, as a log
    likelihood in a `pymc.Potential`. It has no gradient: sample the variables that it depends on
    with a step of this package or with `pymc.Slice`, `pymc.Metropolis` or `pymc.DEMetropolisZ`.

    Parameters
    ----------
    name : str
        Name of the black box, for messages.
    function : callable
        ``function(*param_values) -> array_like``, real numbers of shape `shape`. It must be
        deterministic; an *estimated* log likelihood belongs in a :func:`PseudoMarginalPotential`.
        An array's entries may be ``-inf``, as log likelihoods of impossible parameters are.
    *params : TensorVariable
        Arguments of the function, in order: the model's variables or expressions of them. It gets
        values of their shapes on the natural (constrained) scale, scalars as numbers.
    shape : int, tuple of int, or TensorVariable
        Shape of the function's result, by default a number. Lengths that depend on data are
        tensors: ``(x.shape[0], 2)`` of an ``x = pm.Data``, which `pymc.set_data` may change.
    executor : concurrent.futures.Executor or callable, optional
        Executor that runs the function, or a function that returns one, called once in each process
        that needs it. With a process pool use ``pm.sample(cores=1)``: PyMC's own processes can't
        start others. Needed for `timeout`; batches of points run in parallel. The function travels
        by `cloudpickle` with every task.
    timeout : float, optional
        Seconds that the executor has for one call; then the call fails. Worker processes are
        stopped if `executor` was given as a function; threads can't be.
    on_error : {"raise", "reject"}
        The treatment of points where the function raises, returns NaN, infinity or the wrong shape,
        takes longer than `timeout` or ends its worker again and again. "raise" ends the sampling
        with an error that has the parameters; ``-inf`` is passed on. "reject" makes the model's log
        density ``-inf`` there. This changes the model: the prior is cut off to the parameters where
        the function succeeds, by an observed variable "<name>_succeeded". Choose `timeout` far
        above the usual time then, or the posterior depends on the machine's speed.
    vectorized : bool
        Whether one call evaluates many points: the function gets each parameter with a leading axis
        of n points and returns an array of shape ``(n, *shape)``. For functions to which n points
        cost hardly more than one (NumPy, JAX, a GPU). ``evaluate_many`` of the Op makes batches; a
        chain alone asks for one point at a time.
    store : str, os.PathLike or EvaluationStore, optional
        File that keeps every evaluation, or an :class:`EvaluationStore` for several functions.
        Stored evaluations aren't computed again; after a kill the same script makes the same draws.
        With ``on_error="reject"`` it keeps failures too, timeouts until `timeout` is longer.
    extras : dict of str to int, str or tuple, optional
        Shapes, by name, of arrays that the function returns beside its result and that the accepted
        evaluation keeps: lengths or names of the model's dims. The function then returns ``result,
        {"name": array, ...}``; :func:`extras` finds them in what `pymc.sample` returned.
    coarse : callable, optional
        A cheap approximation of `function` with the same arguments and shape, on a coarse grid for
        instance. :func:`learn` and ``KMC()`` call it freely, in this process and without storing,
        and learn only the difference, from few calls of `function`. The posterior is that of
        `function`. An approximation that explains too little isn't used; the log says so.
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        float64, of shape `shape`.

    Raises
    ------
    TypeError
        If `function` or `coarse` isn't callable with the params, or doesn't return real numbers of
        shape `shape` at the model's initial point, where each is called twice.
    ValueError
        If the function isn't finite or repeatable at the initial point, there are no `params`, an
        argument is out of its range, or the store has another function of this name.
    OSError
        If the store can't be used.
    BlackBoxError
        If the function fails.

    See Also
    --------
    black_boxes : The black boxes of a model, with counts of evaluations and rejections.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def decay(rate):
    ...     return np.exp(-rate * np.arange(5.0))
    >>> with pm.Model() as model:
    ...     rate = pm.HalfNormal("rate", 1.0)
    ...     mean = kmc.BlackBox("decay", decay, rate, shape=5)
    ...     y = pm.Normal("y", mean, 0.1, observed=[1.0, 0.6, 0.4, 0.2, 0.2])
    >>> kmc.black_boxes(model)
    [<BlackBox 'decay' of rate, shape (5,): 2 evaluations in this process>]
    """
    model = check_model(model)
    check_name(name)
    check_choice(on_error, "on_error", ("raise", "reject"))
    vectorized = check_flag(vectorized, "vectorized")
    shape, lengths = as_shape(name, shape)
    params = as_tensors(name, params, "function")
    check_callable(name, "function", function, len(params))
    names = names_of(params)
    if lengths is not None:
        params, names = [*params, lengths], [*names, "shape"]
    kept = Extras.of(f"black box {name!r}", extras, model)
    options = executor, timeout, on_error, vectorized, kept
    op = BlackBoxOp(name, function, shape, names, [param.dtype for param in params], *options)
    op.keep_in(store, BLACK_BOX, params, shape, model)
    values = evaluate_at_initial_point(name, params, model)
    stand_in = try_out(op, values)
    if coarse is not None:
        op.coarse = coarse_of(op, coarse, values)
    outputs = op.make_node(*params).outputs
    value = outputs[0]
    if op.rejects:
        stand_in = pt.constant(stand_in)
        if lengths is not None:
            stand_in = _repeated(stand_in, lengths)
        with model:
            value = _or_rejected(name, value, outputs[1], stand_in)
    value.name = name
    op.claim_name(model)
    return value


def _or_rejected(name, value, succeeded, stand_in):
    """Return the value where the function `succeeded`; elsewhere the log density is -inf."""
    observed = pm.Bernoulli(f"{name}_succeeded", p=succeeded, observed=1)
    # `observed` is 1 in a log density, and `succeeded` where it is drawn.
    otherwise = pt.switch(observed, stand_in, np.nan)
    return pt.switch(pt.eq(succeeded, 1.0), value, otherwise)


def coarse_of(op, function, values):
    """Return a BlackBoxOp of the coarse function of another BlackBoxOp, after a trial call."""
    name, on_error = f"{op.name}, coarse", "reject" if op.rejects else "raise"
    check_callable(name, "coarse", function, len(values) - op.takes_shape)
    signature = op.shape, op.parameter_names, op.dtypes
    coarse = BlackBoxOp(name, function, *signature, None, None, on_error, op.vectorized)
    try_out(coarse, values)
    return coarse


def black_boxes(model: pm.Model | None = None) -> list[BlackBoxOp]:
    """Return the black boxes of a model, with counts of their evaluations and rejections.

    Parameters
    ----------
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    list of BlackBoxOp
        Attributes: `n_evaluations`, `n_rejected`, `reasons` (a count of each kind of failure) and
        `rejections` (the last 100: parameters and reason), all of this process: chains in processes
        of their own (``cores=2``) count for themselves.
    """
    model = check_model(model)
    return black_box_ops([*model.basic_RVs, *model.potentials, *model.deterministics])


def as_shape(name, shape):
    """Return a shape as a tuple of int, None where the model's data determine a length.

    Also return the lengths as a vector of int64, None if all are known. Raises a ValueError if
    `shape` is invalid.
    """
    lengths = [shape] if isinstance(shape, numbers.Integral) else shape
    if isinstance(shape, TensorVariable):
        lengths = _entries(shape)
    if not isinstance(lengths, tuple | list) or not all(map(_is_length, lengths)):
        raise ValueError(
            f"shape of {name!r} must be a tuple of positive whole numbers or of tensors of such "
            f"(x.shape of an x = pm.Data), () for a number, got {shape!r}."
        )
    lengths = [_folded(n) if isinstance(n, TensorVariable) else int(n) for n in lengths]
    known = tuple(None if isinstance(n, TensorVariable) else n for n in lengths)
    return known, pt.stack(lengths).astype("int64") if None in known else None


def _entries(shape):
    """Return the entries of a scalar or of a vector of static length; None for other tensors."""
    if shape.ndim == 0:
        return [shape]
    if shape.ndim > 1 or shape.type.shape[0] is None:
        return None
    return [shape[i] for i in range(shape.type.shape[0])]


def _folded(length):
    """Return a length as an int if it is constant, as a function of data alone if it is one."""
    (folded,) = constant_fold([length], raise_not_constant=False)
    if not isinstance(folded, Variable):
        return int(folded)
    return length if any(map(is_free, ancestors([folded]))) else folded


def _is_length(length):
    if isinstance(length, TensorVariable):
        return length.ndim == 0 and length.dtype in discrete_dtypes
    return is_positive_integer(length)


def _repeated(values, lengths):
    """Return an array of shape `lengths` that repeats the values in turn, 0 if there are none."""
    flat = values.ravel() if values.data.size else pt.zeros(1)
    places = pt.arange(pt.prod(lengths)) % flat.size
    return flat[places].reshape(lengths, ndim=values.ndim)


def _value(result):
    return result.value if isinstance(result, WithExtras) else result


def try_out(op, values):
    """Return the outputs at the initial point, known or from two calls that must agree."""
    known = _value(op.known(values))
    if isinstance(known, np.ndarray) and np.isfinite(known).all():
        return known
    begin = perf_counter()
    result = op.try_out(values)
    seconds, outputs = perf_counter() - begin, _value(result)
    point = ", ".join(f"{n}={v}" for n, v in zip(op.parameter_names, values, strict=True))
    if not np.isfinite(outputs).all():
        raise ValueError(
            f"The black box {op.name!r} isn't finite at the model's initial point, where {point}: "
            f"it returned {outputs}. Give the variables an initval= where it is."
        )
    again = _value(op.try_out(values))
    difference = np.abs(again - outputs)
    if not (difference > 0).any() and np.isfinite(again).all():
        op.keep(values, (), result, seconds)
        return outputs
    if not (difference <= CALL_ROUNDING * np.abs(outputs).max()).all():
        raise ValueError(
            f"The black box {op.name!r} returned different values when it was called twice with "
            f"{point}: {outputs} and {again}. It must be deterministic. If it estimates a log "
            "likelihood, use kmc.PseudoMarginalPotential; if it simulates data, kmc.ABCPotential."
        )
    warnings.warn(
        f"The black box {op.name!r} returned slightly different values when it was called twice "
        f"with the same parameters: they differ by {difference.max():.1g}. The log density is then "
        "a function only up to such errors.",
        UserWarning,
        stacklevel=3,
    )
    op.keep(values, (), result, seconds)
    return outputs
