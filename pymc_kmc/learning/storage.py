"""A learned posterior as a netCDF file: arrays, and a skeleton of names and numbers as JSON."""

import json
from dataclasses import fields, is_dataclass

import numpy as np
import xarray as xr

from pymc_kmc.learning.averages import Emulated, EmulatedNode, LogEvidence
from pymc_kmc.learning.convergence import Round
from pymc_kmc.learning.emulator import EmulatorState, ProcessState
from pymc_kmc.learning.modes import LearnedMode
from pymc_kmc.learning.noise_variance import NoiseVariance
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.model.opaque import Structure

# Number of the file's form, which rises with every change.
FORM = 14
# Attributes of the file: the one that marks it, and the one with the skeleton.
MARK, SKELETON = "pymc_kmc_learned_posterior", "skeleton"
# Classes with fields that are stored: results, and states of fitted parts.
RESULTS = Emulated, EmulatedNode, Evaluations, LearnedMode, LogEvidence, Round
STATES = EmulatorState, NoiseVariance, ProcessState, Structure
STORED_KINDS = {kind.__name__: kind for kind in (*RESULTS, *STATES)}


def write(posterior, path):
    arrays: dict = {}
    skeleton = {
        field.name: _packed(getattr(posterior, field.name), field.name, arrays)
        for field in fields(posterior)
    }
    variables = {
        name: ([f"{name}_dim_{i}" for i in range(array.ndim)], array)
        for name, array in arrays.items()
    }
    attributes = {MARK: FORM, SKELETON: json.dumps(skeleton)}
    xr.Dataset(variables, attrs=attributes).to_netcdf(path)


def read(kind, path):
    """Return the :class:`LearnedPosterior`, the class `kind`, of a file."""
    with xr.open_dataset(path) as opened:
        data = opened.load()
    form = data.attrs.get(MARK)
    if form is None:
        raise ValueError(f"path={str(path)!r} isn't what LearnedPosterior.to_netcdf has written.")
    if int(form) != FORM:
        raise ValueError(
            f"path={str(path)!r} was written by another version of pymc_kmc, in form {form}; this "
            f"one reads form {FORM}. Read it with that version, or learn again."
        )
    skeleton = json.loads(data.attrs[SKELETON])
    return kind(**{name: _unpacked(value, data) for name, value in skeleton.items()})


def fields_of(kind):
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def _packed(value, name, arrays):
    """Return a value as JSON takes it, and put its arrays into `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ in STORED_KINDS:
        parts = [(key, getattr(value, key)) for key in fields_of(type(value))]
        packed = {key: _packed(part, f"{name}_{key}", arrays) for key, part in parts}
        return {"kind": type(value).__name__, "fields": packed}
    if isinstance(value, tuple | list):
        return {"items": [_packed(part, f"{name}_{i}", arrays) for i, part in enumerate(value)]}
    if isinstance(value, dict):
        # Names of variables needn't be names that a file allows.
        items = enumerate(value.items())
        return {"pairs": [(key, _packed(part, f"{name}_{i}", arrays)) for i, (key, part) in items]}
    return value


def _unpacked(value, data):
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = data[value["array"]].values
        # Some libraries leave numbers in the order of bytes that the file has.
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    if "kind" in value:
        parts = value["fields"].items()
        return STORED_KINDS[value["kind"]](**{key: _unpacked(part, data) for key, part in parts})
    if "items" in value:
        return tuple(_unpacked(part, data) for part in value["items"])
    return {key: _unpacked(part, data) for key, part in value["pairs"]}
