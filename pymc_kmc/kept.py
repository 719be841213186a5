"""Extras that were kept with the draws, and predictions and log likelihoods at the draws."""

import reprlib
import warnings
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import Switch
from pytensor.tensor.random.type import RandomType

from pymc_kmc._compat import add_to_group, with_group
from pymc_kmc.likelihoods.black_box_op import BlackBoxOp
from pymc_kmc.likelihoods.checks import check_model
from pymc_kmc.likelihoods.executors import LazyExecutor
from pymc_kmc.likelihoods.noisy_log_likelihood import NoisyLogLikelihood
from pymc_kmc.likelihoods.simulations import NotAnArray, as_one_array
from pymc_kmc.likelihoods.user_function import UserFunctionOp
from pymc_kmc.model.log_density import EXTRA
from pymc_kmc.numerics.checks import check_rng
from pymc_kmc.runs import OF_DRAWS, Run, stacked_draws

# Ops between tensors and those of pymc.dims, by name: importing them makes a warning on PyMC 5.
OF_NAMED_DIMENSIONS = ("XTensorFromTensor", "TensorFromXTensor")
# Groups of a result that `pymc.sample` makes, with the model's dims.
OF_SAMPLING = ("posterior", "constant_data", "observed_data")


def extras(idata: Any, model: pm.Model | None = None) -> xr.Dataset:
    """Return the extras that were kept with the accepted evaluations, a value for each draw.

    Extras are what functions return beside their values, ``extras=`` of :func:`BlackBox`,
    :func:`PseudoMarginalPotential` and :func:`ABCPotential`. Each is of the evaluation that made
    the draw the chain's state. In a compound of steps extras are of the state after this package's
    last step: put it last, ``step=[pm.Slice([z]), kmc.KMC([x])]``, and they belong to the draw.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or MultiTrace
        What `pymc.sample` returned, also loaded from disk.
    model : pymc.Model, optional
        The model, for the names of dimensions that ``extras=`` has, and their coordinates where
        `idata` has none.

    Returns
    -------
    xarray.Dataset
        Dimensions are chain, draw and those of each extra.

    Raises
    ------
    ValueError
        If there are none.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def estimator(x, rng):
    ...     z = x + rng.standard_normal()
    ...     return -0.5 * (z - 1.0) ** 2, {"z": z}
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     _ = kmc.PseudoMarginalPotential("y", estimator, x, extras={"z": ()})
    ...     options = {"chains": 1, "random_seed": 1, "progressbar": False, "quiet": True}
    ...     idata = pm.sample(step=kmc.AdaptiveMetropolis(), tune=50, draws=20, **options)
    >>> dict(kmc.extras(idata).sizes)
    {'chain': 1, 'draw': 20}
    """
    run = Run.of(idata)
    statistics, n_steps = run.sampling.statistics, run.sampling.shape[2]
    dims, coords = ({}, {}) if model is None else _described(check_model(model))
    found = {}
    for name in map(str, statistics):
        if not name.startswith(EXTRA):
            continue
        key, values = name.removeprefix(EXTRA), np.asarray(statistics[name].values)
        if n_steps > 1:
            values = values[..., _last(values)]
        own = dims.get(key, (values.ndim - 2) * (None,))
        names = [dim or f"{key}_dim_{i}" for i, dim in enumerate(own)]
        found[key] = ["chain", "draw", *names], values
    if not found:
        raise ValueError(
            "idata has no extras: give extras= to a BlackBox, a PseudoMarginalPotential or an "
            "ABCPotential, and sample with a step of pymc_kmc."
        )
    # Steps with gradients declare the extras that are in the model, and have no values for them.
    if all(np.isnan(values).all() for _, values in found.values()):
        raise ValueError(
            f"The extras {list(found)} of idata are NaN at every draw: their function returned "
            "NaN, or there are no extras because no step of pymc_kmc other than GadMALA and "
            "GadRWM, which keep none, has sampled."
        )
    draws = {dim: run.sampling.posterior[dim].values for dim in ("chain", "draw")}
    data = xr.Dataset(found, draws)
    return data.assign_coords(_coordinates(idata, coords, data.sizes))


def with_extras(idata: Any, model: pm.Model | None = None, **groups: str | dict) -> Any:
    """Return a run's result with groups made of its extras, for ArviZ.

    Pointwise log likelihoods become the group ``log_likelihood``, which `arviz.loo` needs,
    simulated data ``posterior_predictive``. Pointwise log likelihoods of an estimate have its
    noise: `arviz.loo` then is that of the extended posterior, not of the exact likelihood.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        What `pymc.sample` returned, also loaded from disk. It isn't changed.
    model : pymc.Model, optional
        The model, for names and coordinates of dimensions.
    **groups : str or dict of str to str
        Names of extras by the group that they become, ``log_likelihood="pointwise"``, or a dict of
        names in the group and of extras, ``posterior_predictive={"y": "simulated"}``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree

    Raises
    ------
    ValueError
        If there is no such extra, or the result has such a group.
    """
    data = extras(idata, model)
    for group, wanted in groups.items():
        pairs = {wanted: wanted} if isinstance(wanted, str) else dict(wanted)
        if missing := [key for key in pairs.values() if key not in data]:
            raise ValueError(
                f"{group}={wanted!r}: idata has no extras {missing}, only {list(data)}."
            )
        if getattr(idata, group, None) is not None:
            raise ValueError(f"idata has a group {group!r} already: leave it out of idata first.")
        idata = with_group(idata, group, xr.Dataset({new: data[old] for new, old in pairs.items()}))
    return idata


def sample_posterior_predictive(
    idata: Any,
    model: pm.Model | None = None,
    *,
    executor: Any = None,
    random_seed: Any = None,
    **kwargs: Any,
) -> Any:
    """Do `pymc.sample_posterior_predictive`, with few calls of black boxes or none.

    A black box that is kept as a `pymc.Deterministic` isn't called while the data that it depends
    on are those in the group ``constant_data`` of `idata`. The others are called once for each
    distinct draw that no store has, in a batch: on an executor, or in one call if they are
    vectorized. The simulator of an :func:`ABCPotential` or a :func:`SyntheticLikelihoodPotential`
    makes a new data set at each draw, under the potential's name. One whose data sets are no arrays
    of one shape is left out, with a warning.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or xarray.Dataset
        What `pymc.sample` returned, also loaded from disk, or its group ``posterior``; with all
        free variables of the model. Draws that were stacked need ``sample_dims``, as in PyMC.
    model : pymc.Model, optional
        The model, by default the one of the context.
    executor : concurrent.futures.Executor or callable, optional
        Runs the calls of black boxes and simulators that have no executor of their own.
    random_seed : None, int or numpy.random.Generator
    **kwargs
        Those of `pymc.sample_posterior_predictive`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree

    Raises
    ------
    ValueError
        If `idata` lacks a variable that a black box or a simulator depends on, or has stacked draws
        without ``sample_dims``.
    TypeError
        If ``var_names`` has a simulator whose data sets are no arrays of one shape.
    BlackBoxError, EstimatorError
        If a black box or a simulator fails.
    """
    model = check_model(model)
    simulators, wanted = _simulators(model), kwargs.get("var_names")
    if wanted is not None:
        simulators = {name: node for name, node in simulators.items() if name in wanted}
        # PyMC would draw their estimates of the likelihood under these names.
        kwargs["var_names"] = [name for name in wanted if name not in simulators]
    draws = _Draws.of(idata, kwargs)
    known = _known_at_draws(draws, model, executor, kwargs.get("var_names"))
    with known, _kept_as_it_is(model.observed_RVs), warnings.catch_warnings():
        # Said of every model with a potential; draws of a posterior have its potentials' effect.
        warnings.filterwarnings("ignore", "The effect of Potentials", UserWarning)
        found = pm.sample_posterior_predictive(
            idata, model=model, random_seed=random_seed, **kwargs
        )
    rng = check_rng(random_seed, "random_seed")
    simulated = {}
    for name, node in simulators.items():
        try:
            simulated[name] = _simulated_at_draws(node, draws, model, executor, rng)
        except NotAnArray as error:
            told = (
                f"The simulator of {name!r} {error}: its data sets can't be kept with the "
                "predictions. Let it return arrays of one shape, of which summary= takes what it "
                f"needs, or give var_names= without {name!r}."
            )
            if wanted is not None:
                raise TypeError(told) from None
            warnings.warn(told, UserWarning, stacklevel=2)
    if not simulated:
        return found
    if not kwargs.get("return_inferencedata", True):
        return found | simulated
    n_dims = len(draws.dims)
    data = xr.Dataset(
        {
            name: ([*draws.dims, *(f"{name}_dim_{i}" for i in range(values.ndim - n_dims))], values)
            for name, values in simulated.items()
        },
        {dim: draws.variables[dim].values for dim in draws.dims},
    )
    group = "predictions" if kwargs.get("predictions") else "posterior_predictive"
    add_to_group(found, group, data)
    return found


def compute_log_likelihood(
    idata: Any, model: pm.Model | None = None, *, executor: Any = None, **kwargs: Any
) -> Any:
    """Do `pymc.compute_log_likelihood`, with few calls of black boxes or none.

    Parameters and errors are those of :func:`sample_posterior_predictive`, ``**kwargs`` and the
    result those of `pymc.compute_log_likelihood`, which adds ``log_likelihood`` to `idata`.
    """
    model = check_model(model)
    if getattr(idata, "posterior", None) is None:
        raise TypeError(
            f"idata={reprlib.repr(idata)} must have the group posterior, beside which PyMC puts "
            "log_likelihood: pass what pm.sample returned."
        )
    # Predictions have new values of observed variables, log likelihoods those that were observed.
    given, names = set(model.observed_RVs), kwargs.get("var_names")
    draws = _Draws.of(idata, kwargs)
    with _known_at_draws(draws, model, executor, names, given):
        return pm.compute_log_likelihood(idata, model=model, **kwargs)


class _Draws(NamedTuple):
    """The `variables` of a result of `pm.sample`, `idata`, with the draws' dimensions `dims` first.

    `values` has an array (n, ...) for each, one row a draw.
    """

    idata: Any
    variables: xr.Dataset
    dims: tuple
    values: dict

    @classmethod
    def of(cls, idata, kwargs):
        """Take ``sample_dims`` from PyMC's keyword arguments."""
        given = kwargs.get("sample_dims")
        if isinstance(given, str):
            given = kwargs["sample_dims"] = [given]
        dims = OF_DRAWS if given is None else tuple(given)
        variables = Run.draws_of(idata, dims=dims)
        if given is not None and not set(dims) <= set(variables.dims):
            raise ValueError(
                f"sample_dims={given!r} must be dimensions of the draws, which have "
                f"{list(variables.dims)}."
            )
        return cls(idata, variables, dims, stacked_draws(variables, len(dims)))


@contextmanager
def _kept_as_it_is(variables):
    """Restore a list: PyMC 5.28 adds Deterministics and potentials to a model's observed ones."""
    before = list(variables)
    try:
        yield
    finally:
        list.__setitem__(variables, slice(None), before)  # PyMC's kind of list refuses its own


@contextmanager
def _known_at_draws(draws, model, executor, names=None, given=frozenset()):
    """Give the black boxes above variables, by default observed ones, their outputs at draws.

    Those that depend on observed variables other than the `given` ones are left out.
    """
    wanted = model.observed_RVs if names is None else [model[name] for name in names]
    executor = LazyExecutor.of(executor)
    boxes = {
        variable.owner: draws.values[each.name]
        for each in model.deterministics
        if each.name in draws.values and (variable := _box_of(each)) is not None
    }
    unchanged = _unchanged_data(draws, model)
    with ExitStack() as stack:
        for node in io_toposort([], wanted):
            if isinstance(node.op, BlackBoxOp):
                data = _data_above(node.inputs, model)
                if data & set(model.observed_RVs) - given:
                    continue
                inputs = _at_draws(node.inputs, draws.values, model, node.op.name)
                is_kept = node in boxes and data <= unchanged
                outputs = boxes[node] if is_kept else None
                stack.enter_context(node.op.knowing(inputs, outputs, executor))
        yield


def _data_above(variables, model):
    """Return the data, observed ones too, and lengths of dims that variables depend on.

    Free variables are given.
    """
    above = set(ancestors(variables, blockers=set(model.basic_RVs)))
    shared = {each for each in above if isinstance(each, SharedVariable)}
    random = {each for each in shared if isinstance(each.type, RandomType)}
    # Data that pm.do or freeze_dims_and_data made constant may be others than those of the draws.
    return shared - random | above & {*model.data_vars, *model.observed_RVs}


def _unchanged_data(draws, model):
    """Return the data and lengths of dims that a result has, and that are the same in the model.

    Others may have changed: `pymc.sample_posterior_predictive` sees it so too.
    """
    constants, observed = (
        xr.Dataset() if (group := getattr(draws.idata, name, None)) is None else group
        for name in ("constant_data", "observed_data")
    )
    sizes = {**draws.variables.sizes, **constants.sizes}
    of_draws = {data: constants[data.name] for data in model.data_vars if data.name in constants}
    of_draws |= {each: observed[each.name] for each in model.observed_RVs if each.name in observed}
    of_draws |= {length: sizes[dim] for dim, length in model.dim_lengths.items() if dim in sizes}
    return {
        data
        for data, value in of_draws.items()
        if np.array_equal(_value_now(data, model), value, equal_nan=True)
    }


def _value_now(data, model):
    """Return the value of data, of a length or of an observed variable."""
    data = model.rvs_to_values.get(data, data)
    if isinstance(data, Constant):
        return data.data
    return data.get_value() if isinstance(data, SharedVariable) else data.eval()


def _simulators(model):
    """Return the nodes of a model's simulators by their potentials' names."""
    return {
        potential.name: node
        for potential in model.potentials
        for node in io_toposort([], [potential])
        if isinstance(node.op, NoisyLogLikelihood) and node.op.summaries is not None
    }


def _simulated_at_draws(node, draws, model, executor, rng):
    """Return a simulator's data sets (*dims, ...); raise a NotAnArray if they make none."""
    inputs = _at_draws(node.inputs[1:], draws.values, model, node.op.name)
    found = as_one_array(node.op.simulated(inputs, rng, LazyExecutor.of(executor)))
    return found.reshape(*(draws.variables.sizes[dim] for dim in draws.dims), *found.shape[1:])


def _box_of(variable):
    """Return the output of a black box that a Deterministic copies, or None."""
    while (node := variable.owner) is not None and not isinstance(node.op, BlackBoxOp):
        scalar_op = getattr(node.op, "scalar_op", None)
        if isinstance(scalar_op, Switch) and _is_success(node.inputs[0]):  # as every draw is
            variable = node.inputs[1]
        elif (
            isinstance(node.op, ViewOp)
            or getattr(scalar_op, "name", None) == "identity"
            or type(node.op).__name__ in OF_NAMED_DIMENSIONS
        ):
            variable = node.inputs[0]
        else:
            return None
    return None if node is None else variable


def _is_success(condition):
    """Return whether a condition is that a black box which rejects has succeeded."""
    while (node := condition.owner) is not None and not isinstance(node.op, BlackBoxOp):
        condition = node.inputs[0]
    return node is not None and node.op.rejects and condition.index == 1


def _at_draws(variables, draws, model, name):
    """Return values (n, ...) of variables above a black box at n draws of the free variables.

    Observed variables are what was observed, also beside imputed ones.
    """
    above = set(ancestors(variables, blockers=set(model.basic_RVs)))
    free = [each for each in model.free_RVs if each in above]
    if missing := [each.name for each in free if each.name not in draws]:
        raise ValueError(f"idata lacks {missing}, which {name!r} depends on.")
    observed = {each: model.rvs_to_values[each] for each in model.observed_RVs if each in above}
    function = pytensor.function(free, variables, givens=observed, on_unused_input="ignore")
    rows = zip(*[draws[each.name].astype(each.dtype) for each in free], strict=True)
    if not free:  # data alone, or what pm.do has set
        rows = [()] * len(next(iter(draws.values())))
    return [np.array(values) for values in zip(*[function(*row) for row in rows], strict=True)]


def _last(values):
    """Return the index of the last step with values (chain, draw, ..., step)."""
    has_values = ~np.isnan(values).all(axis=tuple(range(values.ndim - 1)))
    return int(np.flatnonzero(has_values)[-1]) if has_values.any() else -1


def _coordinates(idata, coords, sizes):
    """Return coordinates of dims with lengths `sizes`: the run's own, or else the model's `coords`.

    The model's may have been changed by `pymc.set_data` since the run.
    """
    groups = [group for name in OF_SAMPLING if (group := getattr(idata, name, None)) is not None]
    found = {}
    for dim in coords.keys() & sizes.keys():
        known = [group.coords[dim].values for group in groups if dim in group.coords]
        fitting = [each for each in (*known, coords[dim]) if np.shape(each) == (sizes[dim],)]
        if fitting:
            found[dim] = fitting[0]
    return found


def _described(model):
    """Return the dims of each extra of a model, and the coordinates of the model's dims."""
    graphs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    ops = {v.owner.op for v in ancestors(graphs) if v.owner is not None}
    dims: dict = {}
    for op in ops:
        if isinstance(op, UserFunctionOp) and op.extras is not None:
            dims |= op.extras.dims
    return dims, {name: list(values) for name, values in model.coords.items() if values is not None}
