"""What was learned is stored and read again: all of it."""

import hashlib
from dataclasses import fields, replace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kmc as kmc
from pymc_kmc.learning import storage
from pymc_kmc.learning.noise_variance import NoiseVariance
from pymc_kmc.surrogates.covariance import EXTENSIONS
from tests.learned import curve, learned_curve


def assert_same(one, other, place="learned"):
    """Values are equal, to the last bit and through all their parts."""
    assert type(one) is type(other), place
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, place
        np.testing.assert_array_equal(one, other, err_msg=place)
    elif isinstance(one, tuple):
        assert tuple.__len__(one) == tuple.__len__(other), place
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{place}.{i}")
    elif isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_same(one[key], other[key], f"{place}.{key}")
    elif hasattr(one, "__dict__"):
        assert_same(vars(one), vars(other), place)
    else:
        assert one == other or one != one, place


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("learned") / "learned.nc"
    learned_curve().to_netcdf(path)
    return path


def test_all_is_read_again(path):
    loaded = kmc.LearnedPosterior.from_netcdf(path)
    assert_same(loaded, learned_curve())
    assert len(loaded.modes) > 0
    assert repr(loaded) == repr(learned_curve())


def test_the_noise_is_read_again(tmp_path):
    variance = NoiseVariance(0.3, np.arange(2.0), np.eye(2), np.array([1.0, 1.0, 0.0]), np.eye(4))
    learned = replace(learned_curve(), noise_variance=variance)
    learned.to_netcdf(tmp_path / "noisy.nc")
    loaded = kmc.LearnedPosterior.from_netcdf(tmp_path / "noisy.nc")
    assert_same(loaded, learned)
    # More draws are where estimates are lower than elsewhere.
    means = [each.draws(2000, random_seed=0)["size"].mean() for each in (learned_curve(), loaded)]
    assert means[1] > means[0]
    assert learned_curve().weights is None
    np.testing.assert_allclose(learned.weights.sum(), 1.0)
    half, _ = variance.half(learned.positions)
    assert np.argmax(learned.weights) == np.argmax(half)


def test_draws_are_the_same(path):
    draws = []
    for learned in (learned_curve(), kmc.LearnedPosterior.from_netcdf(str(path))):
        with curve():
            idata = pm.sample(
                step=kmc.KMC(learned),
                tune=20,
                draws=20,
                chains=1,
                cores=1,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
            )
        draws.append(idata.posterior["size"].values)
    np.testing.assert_array_equal(*draws)


def test_learning_goes_on_from_a_file(path):
    loaded = kmc.LearnedPosterior.from_netcdf(path)
    more = kmc.learn(curve(), evaluations=loaded, progressbar=False)
    n = len(loaded.evaluations)
    np.testing.assert_array_equal(more.evaluations.X[:n], loaded.evaluations.X)
    np.testing.assert_array_equal(more.seconds[:n], loaded.seconds)
    assert_same(more.modes, loaded.modes)
    assert more.n_evaluations < 50
    assert f"Cost: {len(more.evaluations)} evaluations of the model in all, {n} of" in repr(more)


def test_other_files_are_refused(tmp_path, path):
    xr.Dataset({"x": ("n", np.zeros(3))}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"other\.nc"):
        kmc.LearnedPosterior.from_netcdf(tmp_path / "other.nc")
    with xr.open_dataset(path) as data:
        later = data.load()
    later.attrs["pymc_kmc_learned_posterior"] = 99
    later.to_netcdf(tmp_path / "later.nc")
    with pytest.raises(ValueError, match="form 99"):
        kmc.LearnedPosterior.from_netcdf(tmp_path / "later.nc")


def test_the_form_rises_with_every_change():
    """What a file has are these fields: other ones are another form."""
    kinds = {"LearnedPosterior": [field.name for field in fields(kmc.LearnedPosterior)]}
    kinds |= {name: storage.fields_of(kind) for name, kind in storage.STORED_KINDS.items()}
    kinds |= {name: kind._fields for name, kind in EXTENSIONS.items()}
    digest = hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()[:8]
    assert (storage.FORM, digest) == (14, "0a0633a7")
