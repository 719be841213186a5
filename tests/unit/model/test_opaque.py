import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kmc as kmc
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.model.structure import opaque_nodes


class Curve(Op):
    """A user's Op, without a gradient and without a static shape."""

    def make_node(self, rate):
        return Apply(self, [pt.as_tensor_variable(rate)], [pt.dvector()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.exp(-inputs[0] * np.arange(4.0))


def curve(rate, shift):
    return np.exp(-rate * np.arange(4.0)) + shift.sum()


def take_apart(model, seed=0):
    return OpaqueModel(model.continuous_value_vars, model, np.random.default_rng(seed))


def vector_model(**arguments):
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0, 1)
        shift = pm.Normal("shift", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        mean = kmc.BlackBox("curve", curve, rate, shift, shape=(4,), **arguments)
        pm.Normal("y", mean, sigma, observed=[1.0, 0.5, 0.3, 0.1])
    return model


def op_model():
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0, 1)
        pm.Normal("y", Curve()(rate), 0.1, observed=[1.0, 0.5, 0.3, 0.1])
    return model


def scalar_model():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        eta = pm.Normal("eta", 0, 1, shape=3)
        loglik = kmc.BlackBox("loglik", lambda theta: -0.5 * np.sum(theta**2), mu + tau * eta)
        pm.Potential("potential", loglik)
    return model


def terms_model():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=2)
        terms = kmc.BlackBox("terms", lambda x: -(x**2), x, shape=(2,))
        pm.Potential("potential", terms)
    return model


def noisy_model():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=2)
        kmc.PseudoMarginalPotential("estimate", lambda x, rng: rng.normal(-x @ x, 0.1), x)
    return model


def chain_model():
    """The second black box sees the first one's outputs; the log density sees both, and sigma."""
    with pm.Model() as model:
        rate, shift = pm.LogNormal("rate", 0, 1), pm.Normal("shift", 0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        first = kmc.BlackBox("first", curve, rate, shift, shape=(4,))
        second = kmc.BlackBox("second", lambda y, s: y.sum() * s, pt.exp(first), shift[0], shape=())
        pm.Normal("y", first, sigma, observed=[1.0, 0.5, 0.3, 0.1])
        pm.Normal("z", second, sigma, observed=1.0)
    return model


def decay(rate, scale):
    return scale * np.exp(-rate * np.arange(3.0))


def groups_model(n=3):
    """A box of one function for each group, stacked, one of them used besides, and another box."""
    with pm.Model() as model:
        rates = pm.LogNormal("rates", 0, 1, shape=n)
        scales = pm.Normal("scales", 0, 1, shape=(2, n))
        boxes = [
            kmc.BlackBox(f"decay {i}", decay, rates[i], scales[0, i], shape=3) for i in range(n)
        ]
        pm.Normal("y", pt.stack(boxes, axis=1), 0.5, observed=np.ones((3, n)))
        pm.Normal("again", boxes[1], 0.5, observed=np.zeros(3))
        other = kmc.BlackBox("other", lambda s: np.append(s, s**2), scales[1], shape=2 * n)
        pm.Normal("z", other, 1.0, observed=np.zeros(2 * n))
    return model


TAKEN_APART = (vector_model, op_model, scalar_model, terms_model, chain_model, groups_model)


@pytest.mark.parametrize("build", TAKEN_APART)
def test_the_parts_are_the_whole(build):
    model = build()
    opaque = take_apart(model)
    assert not opaque.is_whole
    X = np.random.default_rng(1).normal(size=(5, opaque.n_dimensions))
    values = opaque.log_density(X, opaque.emulated(opaque.evaluate(X).outputs))[0]
    whole = model.compile_logp()
    for x, value in zip(X, values, strict=True):
        point, first = {}, 0
        for variable in model.value_vars:
            size = model.initial_point(0)[variable.name].size
            shape = model.initial_point(0)[variable.name].shape
            point[variable.name] = x[first : first + size].reshape(shape)
            first += size
        np.testing.assert_allclose(value, whole(point), rtol=1e-10)


@pytest.mark.parametrize("build", [*TAKEN_APART, noisy_model])
def test_derivatives_are_those_of_differences(build):
    opaque = take_apart(build())
    rng = np.random.default_rng(2)
    X = rng.normal(size=(3, opaque.n_dimensions))
    outputs = opaque.emulated(opaque.evaluate(X).outputs)
    _, by_x, by_outputs = opaque.log_density(X, outputs)
    weights = rng.normal(size=opaque.inputs(X).shape)
    pulled = opaque.pull(X, weights)
    for j, step in enumerate(1e-6 * np.eye(opaque.n_dimensions)):
        change = opaque.log_density(X + step, outputs)[0] - opaque.log_density(X - step, outputs)[0]
        np.testing.assert_allclose(by_x[:, j], change / 2e-6, rtol=1e-4, atol=1e-5)
        change = (weights * (opaque.inputs(X + step) - opaque.inputs(X - step))).sum(axis=1)
        np.testing.assert_allclose(pulled[:, j], change / 2e-6, rtol=1e-4, atol=1e-5)
    for j, step in enumerate(1e-6 * np.eye(outputs.shape[1])):
        change = opaque.log_density(X, outputs + step)[0] - opaque.log_density(X, outputs - step)[0]
        np.testing.assert_allclose(by_outputs[:, j], change / 2e-6, rtol=1e-4, atol=1e-5)


def test_a_node_with_outputs_is_described():
    (node,) = take_apart(vector_model()).nodes
    assert (node.name, node.n_outputs, node.is_term, node.is_noisy) == ("curve", 4, False, False)
    np.testing.assert_array_equal(node.moves_with, [0, 1, 2])  # sigma is no input


def test_one_that_feeds_another_alone_is_no_node_of_its_own():
    opaque = take_apart(one_feeds_another())
    (node,) = opaque.nodes
    assert (node.name, node.is_term) == ("second", True)
    X = np.array([[0.5], [2.0]])
    np.testing.assert_array_equal(opaque.inputs(X), X)  # what the first one sees
    np.testing.assert_allclose(opaque.evaluate(X).outputs[:, 0], [-0.0625, -16.0])


def test_both_are_nodes_where_the_log_density_sees_both():
    opaque = take_apart(chain_model())
    assert [node.name for node in opaque.nodes] == ["first", "second"]
    assert [node.n_outputs for node in opaque.nodes] == [4, 1]
    assert [len(node.moves_with) for node in opaque.nodes] == [3, 3]
    boxes = opaque.model
    before = [box.n_evaluations for box in kmc.black_boxes(boxes)]
    opaque.evaluate(0.1 * np.arange(12.0).reshape(3, 4))
    after = [box.n_evaluations for box in kmc.black_boxes(boxes)]
    assert np.subtract(after, before).tolist() == [3, 3]  # neither is evaluated twice


def test_shapes_that_types_do_not_say_cost_one_evaluation():
    opaque = take_apart(op_model())
    assert opaque.nodes[0].n_outputs == 4
    assert opaque.n_evaluations == 1


@pytest.mark.parametrize("build", [scalar_model, terms_model, noisy_model])
def test_terms_of_the_log_density_are_one_number(build):
    (node,) = take_apart(build()).nodes
    assert node.is_term
    assert node.n_outputs == 1


def test_a_place_is_evaluated_once():
    opaque = take_apart(vector_model())
    X = np.random.default_rng(0).normal(size=(3, 4))
    n, places = opaque.n_evaluations, X[[0, 1, 0, 2, 1]]
    found = opaque.evaluate(places)
    assert opaque.n_evaluations - n == 3 == len(opaque.evaluations)
    np.testing.assert_array_equal(found.X, places)
    for x, outputs in zip(places, found.outputs, strict=True):
        np.testing.assert_array_equal(outputs, opaque.evaluate(x[None]).outputs[0])
    assert opaque.n_evaluations - n == 3


def test_an_estimate_is_noisy_and_seeded():
    first, again, other = (take_apart(noisy_model(), seed) for seed in (1, 1, 2))
    assert first.nodes[0].is_noisy
    X = np.zeros((3, 2))
    values = first.evaluate(X).outputs
    assert len(np.unique(values)) == 3
    np.testing.assert_array_equal(values, again.evaluate(X).outputs)
    assert not np.array_equal(values, other.evaluate(X).outputs)


def test_a_black_box_that_fails_leaves_nan():
    def fails(rate, shift):
        if rate > 2.0:
            raise ValueError("too fast")
        return curve(rate, shift)

    with pm.Model() as model:
        rate, shift = pm.LogNormal("rate", 0, 1), pm.Normal("shift", 0, 1, shape=2)
        mean = kmc.BlackBox("curve", fails, rate, shift, shape=(4,), on_error="reject")
        pm.Normal("y", mean, 1.0, observed=np.zeros(4))
    opaque = take_apart(model)
    with pytest.warns(UserWarning, match="too fast"):
        outputs = opaque.evaluate(np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])).outputs
    assert np.isfinite(outputs[0]).all()
    assert np.isnan(outputs[1]).all()


def differentiable():
    with pm.Model() as model:
        pm.Normal("x", 0, 1)
    return model


def one_feeds_another():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        first = kmc.BlackBox("first", lambda x: x**2, x)
        pm.Potential("p", kmc.BlackBox("second", lambda x: -(x**2), first))
    return model


def one_that_may_fail_feeds_another():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        first = kmc.BlackBox("first", lambda x: x**2, x, on_error="reject")
        pm.Potential("p", -kmc.BlackBox("second", lambda x: x**2, first))
    return model


def one_feeds_an_estimate():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        first = kmc.BlackBox("first", lambda x: x**2, x)
        kmc.PseudoMarginalPotential("p", lambda x, rng: -(x**2), first)
    return model


def simulator():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        pm.Simulator("y", lambda rng, x, size: rng.normal(x, 1, size), x, epsilon=1, observed=[1.0])
    return model


WHOLE = (differentiable, one_that_may_fail_feeds_another, one_feeds_an_estimate, simulator)


@pytest.mark.parametrize("build", WHOLE)
def test_what_cannot_be_taken_apart_is_opaque_as_a_whole(build):
    opaque = take_apart(build())
    assert opaque.is_whole
    assert opaque.has_gradient == (build is differentiable)
    assert opaque.nodes[0].name == "log density"
    X = np.array([[0.3], [-0.2]])
    outputs = opaque.emulated(opaque.evaluate(X).outputs)
    np.testing.assert_array_equal(opaque.log_density(X, outputs)[0], outputs[:, 0])


def test_the_graph_of_many_groups_has_no_node_for_each():
    """PyTensor leaves some ten nodes of shapes more or fewer, by chance."""
    counts = []
    for n in (3, 27):
        opaque = take_apart(groups_model(n))
        opaque.pull(np.zeros((1, 3 * n)), np.zeros((1, 3 * n)))
        functions = opaque._log_density, opaque._inputs._values, opaque._inputs._pulled
        counts.append([len(each.maker.fgraph.apply_nodes) for each in functions])
    few, many = np.array(counts)
    assert np.all(many < few + 20)


def test_nodes_with_gradients_are_not_opaque():
    model = differentiable()
    assert opaque_nodes(model.logp(), model.value_vars) == []


def test_natural_values_have_the_variables_shapes():
    opaque = take_apart(vector_model())
    values = opaque.natural(np.zeros((3, 4)))
    assert {name: value.shape for name, value in values.items()} == {
        "rate": (3,),
        "shift": (3, 2),
        "sigma": (3,),
    }
    np.testing.assert_allclose(values["sigma"], 1.0)
