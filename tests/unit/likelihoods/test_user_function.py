"""Parameters of users' functions: what is one, and which model's."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.variable import TensorVariable

import pymc_kmc as kmc
from pymc_kmc.likelihoods.user_function import as_tensors, evaluate_at_initial_point, names_of

LIKELIHOODS = {
    "black box": lambda *params: kmc.BlackBox("f", lambda *values: 0.0, *params),
    "potential": lambda *params: kmc.PseudoMarginalPotential("f", lambda *v, rng: 0.0, *params),
}


@pytest.fixture(params=LIKELIHOODS)
def likelihood(request):
    return LIKELIHOODS[request.param]


@pytest.mark.parametrize("bad", ["foo", None, {"a": 1}, [1, "a"], [[1], [1, 2]]])
def test_what_is_no_parameter(likelihood, bad):
    with pm.Model():
        x = pm.Normal("x")
        with pytest.raises(TypeError, match=r"params\[1\] of 'f' must be a variable of the model"):
            likelihood(x, bad)


def test_a_variable_of_another_model(likelihood):
    with pm.Model() as other:
        stranger = pm.Normal("stranger")
    with pm.Model():
        with pytest.raises(ValueError, match="variable 'stranger', which is not a variable"):
            likelihood(2 * stranger)
        with pytest.raises(ValueError, match="variable 'stranger', which is not a variable"):
            likelihood(other.rvs_to_values[stranger])


def test_inside_scan(likelihood):
    """Of sequences that have no name, and of one that has."""
    with pm.Model():
        x = pm.Normal("x", shape=3)
        for steps in (2.0 * x, x):
            with pytest.raises(ValueError, match="of 'f' has no value, .* inside pytensor.scan"):
                pytensor.scan(likelihood, sequences=[steps], return_updates=False)


def test_inside_scan_of_variables_that_are_none_of_a_step():
    """They are values where scan is given them; PyMC refuses the model where it isn't."""
    steps = pt.as_tensor([1.0, 2.0, 3.0])
    options = {"sequences": [steps], "return_updates": False}
    with pm.Model() as model:
        x = pm.Normal("x")
        products = pytensor.scan(
            lambda step, x: step * kmc.BlackBox("f", np.exp, x), non_sequences=[x], **options
        )
        pm.Normal("y", products, observed=[1.0, 2.0, 3.0])
    found = model.compile_logp()({"x": np.array(0.3)})
    residuals = np.array([1.0, 2.0, 3.0]) * (np.exp(0.3) - 1.0)
    expected = -0.5 * (0.3**2 + residuals @ residuals + 4.0 * np.log(2.0 * np.pi))
    np.testing.assert_allclose(found, expected)
    with pm.Model() as model:
        x = pm.Normal("x")
        products = pytensor.scan(lambda step: step * kmc.BlackBox("f", np.exp, x), **options)
        pm.Normal("y", products, observed=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="Random variables detected in the logp graph"):
        model.logp()


def test_none_at_all(likelihood):
    with pm.Model():
        with pytest.raises(ValueError, match="'f' got no params"):
            likelihood()


def test_names_and_values_at_the_initial_point():
    with pm.Model() as model:
        x = pm.HalfNormal("x", initval=2.0)
        data = pm.Data("data", [1.0, 2.0])
        seen = pm.Normal("seen", x, 1.0, observed=5.0)
    params = as_tensors("f", [x, 3 * x, data, seen, 300, [1, 2]], "function")
    assert names_of(params) == ["x", "params[1]", "data", "seen", "params[4]", "params[5]"]
    values = evaluate_at_initial_point("f", params, model)
    for value, expected in zip(values, [2, 6, [1, 2], 5, 300, [1, 2]], strict=True):
        np.testing.assert_allclose(value, expected)
    assert values[4].dtype == np.int64  # of a Python number PyTensor makes the shortest type


def test_a_submodel_takes_variables_of_the_whole_model(likelihood):
    with pm.Model() as model:
        x = pm.Normal("x", initval=0.5)
        with pm.Model("beside"):
            z = pm.Normal("z", initval=2.0)
        with pm.Model("sub"):
            y = pm.Normal("y", initval=1.5)
            pm.Potential("p", likelihood(x, y, z))
    assert np.isfinite(model.compile_logp()(model.initial_point()))
    with pm.Model(), pm.Model("sub"):
        with pytest.raises(ValueError, match="variable 'x', which is not a variable"):
            likelihood(x)


def test_variables_with_named_dimensions(likelihood):
    """Functions take their values, in the order of their dimensions."""
    with pm.Model(coords={"g": ["u", "v"]}) as model:
        z = pmd.Normal("z", dims="g", initval=np.array([1.0, 2.0]))
        assert isinstance(likelihood(z, 2 * z), TensorVariable)
    params = as_tensors("f", [z, 2 * z], "function")
    assert names_of(params) == ["z", "params[1]"]
    values = evaluate_at_initial_point("f", params, model)
    np.testing.assert_allclose(values, [[1.0, 2.0], [2.0, 4.0]])
