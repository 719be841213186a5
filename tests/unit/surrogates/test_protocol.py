"""What can be a step's surrogate, and what is said of everything else."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_kmc.surrogates import (
    KernelExpFinite,
    KernelExpLite,
    LogDensityGP,
    NotFittedError,
    Surrogate,
)
from pymc_kmc.surrogates.protocol import check_surrogate

ESTIMATORS = {
    "lite": lambda: KernelExpLite(4.0, 1.0),
    "finite": lambda: KernelExpFinite(20, 4.0, 0.1, rng=0),
    "gp": lambda: LogDensityGP(20, rng=0),
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def fit(name):
    X = np.random.default_rng(0).normal(size=(40, 3))
    values = (-0.5 * (X**2).sum(axis=1),) if name == "gp" else ()
    return ESTIMATORS[name]().fit(X, *values)


def own(**members):
    members = {"n_features_in_": 3, "log_density": np.sum, "gradient": np.negative} | members
    return SimpleNamespace(**{name: m for name, m in members.items() if m is not None})


@every_estimator
def test_fitted_estimators_are_surrogates(name):
    surrogate = fit(name)
    assert check_surrogate(surrogate, 3) is surrogate
    assert isinstance(surrogate, Surrogate)


def test_so_is_anything_with_the_members():
    surrogate = own()
    assert check_surrogate(surrogate, 3) is surrogate
    assert isinstance(surrogate, Surrogate)


@every_estimator
def test_unfitted_ones_say_so(name):
    surrogate = ESTIMATORS[name]()
    with pytest.raises(NotFittedError, match="surrogate=.* is not fitted yet"):
        check_surrogate(surrogate, 3)


@pytest.mark.parametrize(
    ("surrogate", "message"),
    [
        (3, r"surrogate=3 has no log_density\(X\) and no gradient\(X\) and no n_features_in_;"),
        ("lite", r"surrogate='lite' has no log_density"),
        (own(gradient=None), r"has no gradient\(X\); pass"),
        (own(log_density=1.0), r"has no log_density\(X\); pass"),
        (own(n_features_in_=None), "has no n_features_in_; pass"),
        (KernelExpLite, "surrogate is the class KernelExpLite itself; pass a fitted instance"),
    ],
)
def test_missing_members_are_named(surrogate, message):
    with pytest.raises(TypeError, match=message):
        check_surrogate(surrogate, 3)


def test_another_dimension_is_an_error():
    with pytest.raises(ValueError, match="with 3 coordinates; the step's variables have 2 uncon"):
        check_surrogate(fit("lite"), 2)
