"""Differences between PyMC 5.28 and 6.x, and between ArviZ 0.x and 1.x."""

import warnings

import arviz
import numpy as np
import pytensor
import xarray as xr

ARVIZ_MAJOR = int(arviz.__version__.split(".")[0])
PYTENSOR_MAJOR = int(pytensor.__version__.split(".")[0])


def expect_numba_fallback(op_type):
    """Let numba call Ops of `op_type` in object mode without a warning at each compilation."""
    if PYTENSOR_MAJOR < 3:  # numba isn't the default backend
        return
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

    @numba_funcify.register(op_type)
    def funcify(op, node, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            return generate_fallback_impl(op, node, **kwargs)


def as_arviz_plot(figure, axes, data):
    """Return a figure as ArviZ's plots do in the installed version.

    `axes` has the panels by name, `data` one variable for each panel. On ArviZ 0.x the result is
    one Axes or an array of them, on 1.x a PlotCollection with axes at ``get_viz("plot", panel)``.
    """
    if ARVIZ_MAJOR < 1:
        found = np.array(list(axes.values()), dtype=object)
        return found[0] if len(found) == 1 else found
    viz = {"/": xr.Dataset({"figure": ((), as_scalar(figure))})}
    contents = {"plot": axes.values(), "row": range(len(axes)), "col": len(axes) * [0]}
    for kind, values in contents.items():
        pairs = zip(axes, values, strict=True)
        viz[kind] = xr.Dataset({name: ((), as_scalar(value)) for name, value in pairs})
    return arviz.PlotCollection(data, xr.DataTree.from_dict(viz), backend="matplotlib")


def as_scalar(value):
    array = np.empty((), dtype=object)
    array[()] = value
    return array


def with_group(idata, group, data):
    """Return a copy of an InferenceData or a DataTree with a data set as one more group."""
    found = idata.copy()
    if isinstance(found, xr.DataTree):
        found[group] = xr.DataTree(data)
    else:
        found.add_groups({group: data})
    return found


def add_to_group(idata, group, data):
    """Add the variables of a data set to a group of an InferenceData or a DataTree, in place."""
    if isinstance(idata, xr.DataTree):
        known = idata[group].to_dataset() if group in idata.children else xr.Dataset()
        idata[group] = xr.DataTree(known.merge(data))
    elif group in idata.groups():
        setattr(idata, group, idata[group].merge(data))
    else:
        idata.add_groups({group: data})


def pareto_k(log_weights):
    """Return the Pareto tail index of importance weights (n,), as PSIS estimates it.

    It is infinite where the tail has too few weights, or all of them are equal.
    """
    if ARVIZ_MAJOR < 1:
        return float(arviz.psislw(log_weights)[1])
    # ArviZ 1 takes log likelihoods, the negative log weights of leave-one-out.
    values = xr.DataArray(-log_weights, dims="draw")
    try:
        return float(values.azstats.psislw(dim="draw")[1])
    except (ValueError, IndexError):  # ArviZ 0.x says infinity there
        return np.inf
