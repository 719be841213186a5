"""Functionals: functions of the draws, and names of variables."""

import arviz as az
import numpy as np
import pytest

from pymc_kmc.partial.levels import Functional, draws_of

RNG = np.random.default_rng(0)
DRAWS = {"x": RNG.normal(size=(2, 50)), "beta": RNG.normal(size=(2, 50, 2, 2))}


def as_inference_data():
    if int(az.__version__.split(".")[0]) >= 1:
        return az.from_dict({"posterior": DRAWS})
    return az.from_dict(posterior=DRAWS)


@pytest.mark.parametrize("result", [DRAWS, as_inference_data()], ids=["mapping", "ArviZ"])
def test_names_give_means_and_standard_deviations(result):
    value, shape, labels = Functional(["x", "beta"])(result)
    assert shape == (10,)
    assert labels[:3] == ["mean of x", "sd of x", "mean of beta[0, 0]"]
    assert labels[-1] == "sd of beta[1, 1]"
    assert value[1] == pytest.approx(DRAWS["x"].std())
    assert value[labels.index("mean of beta[1, 0]")] == pytest.approx(
        DRAWS["beta"][..., 1, 0].mean()
    )


def test_one_name():
    assert Functional("x")(DRAWS)[2] == ["mean of x", "sd of x"]


def test_a_function_may_return_an_array():
    def quantiles(draws):
        return np.quantile(draws["x"], [0.1, 0.9])

    value, shape, labels = Functional(quantiles)(DRAWS)
    assert shape == (2,)
    assert labels == ["quantiles[0]", "quantiles[1]"]
    np.testing.assert_array_equal(value, quantiles(DRAWS))
    assert Functional(lambda draws: 3)(DRAWS)[1:] == ((), ["functional"])


def test_dimensions_in_another_order():
    result = as_inference_data()
    turned = {"beta": result.posterior["beta"].transpose(..., "chain", "draw")}
    np.testing.assert_array_equal(draws_of(turned, "beta"), DRAWS["beta"])


def test_a_variable_that_is_not_there():
    with pytest.raises(ValueError, match=r"no variable 'y', they have \['beta', 'x'\]"):
        Functional("y")(DRAWS)


@pytest.mark.parametrize("functional", [3, [], ["x", 3], None])
def test_bad_functionals(functional):
    with pytest.raises(TypeError, match="functional must be a function of the draws, or names"):
        Functional(functional)


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.zeros((0, 2)), ValueError), (None, TypeError), ({"a": 1.0}, TypeError), ("a", TypeError)],
)
def test_values_that_are_no_numbers(value, error):
    def share(result):
        return value

    with pytest.raises(error, match="functional 'share' must return .*, it returned"):
        Functional(share)({})


def test_a_variable_without_elements():
    with pytest.raises(ValueError, match=r"functional=\('x',\) has no elements"):
        Functional("x")({"x": np.zeros((2, 9, 0))})
