"""What is read off a graph is proved at every evaluation, and given up where it doesn't hold."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kmc as kmc
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.model.structure import StructureError, why_not_learned

DATA = np.array([0.5, 1.0, 30.0])


def take_apart(build, structure=None):
    with pm.Model() as model:
        build()
    rng = np.random.default_rng(0)
    return OpaqueModel(model.continuous_value_vars, model, rng, structure=structure)


def pointwise(mu):
    return -0.5 * (DATA - mu) ** 2


def terms(around):
    """Three terms of a log likelihood, and what the model does with them."""

    def build():
        mu = pm.Normal("mu", 0, 10)
        pm.Potential("p", around(kmc.BlackBox("terms", pointwise, mu, shape=3)))

    return build


@pytest.mark.parametrize(
    ("around", "weights"),
    [
        (lambda o: o.sum(), [1.0, 1.0, 1.0]),
        (lambda o: -0.5 * o[:2].sum(), [-0.5, -0.5, 0.0]),
        (lambda o: pt.maximum(o, -20.0).sum(), None),
        (lambda o: pt.logsumexp(o), None),
        (lambda o: o.sum() + pt.maximum(o[0], 1e3), None),
    ],
    ids=["sum", "weighted", "clipped", "logsumexp", "one clipped"],
)
def test_terms_of_a_sum_are_told_by_outputs_of_all_sizes(around, weights):
    (node,) = take_apart(terms(around)).nodes
    if weights is None:
        assert not node.is_term and node.n_outputs == 3
    else:
        np.testing.assert_allclose(node.weights, weights)
        returned = np.array([[1.0, 2.0, 4.0]])
        np.testing.assert_allclose(node.emulated(returned), returned @ node.weights[:, None])


def test_a_multiple_of_a_number_is_a_term():
    def build():
        x = pm.Normal("x", 0, 1)
        pm.Potential("p", -kmc.BlackBox("nll", lambda x: 0.5 * x**2, x))

    opaque = take_apart(build)
    assert opaque.is_sum and opaque.nodes[0].weights == [-1.0]
    returned = opaque.evaluate(np.array([[2.0]])).outputs
    np.testing.assert_array_equal(opaque.emulated(returned), [[-2.0]])


def uneven(mu):
    return np.array([-0.5 * mu**2, 0.0, -1.0])


def clipped_far_away():
    """A bound where no output is tried."""
    mu = pm.Normal("mu", 0, 10)
    box = kmc.BlackBox("terms", uneven, mu, shape=3)
    pm.Potential("p", pt.maximum(box, -1e9).sum())


def test_a_sum_that_does_not_hold_is_given_up():
    opaque = take_apart(clipped_far_away)
    assert opaque.is_sum
    X = np.array([[0.0], [1e5]])
    with pytest.raises(StructureError, match="not everywhere a sum of what terms returns"):
        opaque.evaluate(X)
    assert opaque.returns_outputs
    before = opaque.n_evaluations
    returned = opaque.evaluate(X).outputs  # nothing is evaluated again
    assert opaque.n_evaluations == before == 2
    prior = -0.5 * (X[:, 0] / 10) ** 2 - np.log(10 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(opaque.values(X, returned), np.array([-1.0, -1e9 - 1.0]) + prior)
    assert take_apart(clipped_far_away, opaque.structure).returns_outputs


def test_what_is_finite_where_outputs_are_not_is_learned_as_a_number():
    def build():
        x = pm.Normal("x", 0, 1)
        box = kmc.BlackBox("f", lambda x: -(x**2) if x > -0.5 else -np.inf, x)
        pm.Potential("p", pt.switch(pt.isinf(box), -3.0, box))

    opaque = take_apart(build)
    with pytest.raises(StructureError, match="finite where f is not"):
        opaque.evaluate(np.array([[1.0], [-1.0]]))
    assert opaque.is_whole and len(opaque.evaluations) == 2
    prior = -0.5 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(opaque.evaluations.outputs[:, 0], [-1.0 + prior, -3.0 + prior])
    assert take_apart(build, opaque.structure).is_whole


def test_inputs_that_do_not_move_at_first_are_found_out():
    def build():
        x = pm.Normal("x", 0, 1, shape=2)
        inputs = x[0] + pt.maximum(x[1], 50.0)
        pm.Normal(
            "y", kmc.BlackBox("f", lambda u: u * np.ones(2), inputs, shape=2), observed=[1, 2]
        )

    opaque = take_apart(build)
    np.testing.assert_array_equal(opaque.nodes[0].moves_with, [0])
    with pytest.raises(StructureError, match="depends on more variables"):
        opaque.evaluate(np.array([[0.0, 60.0]]))
    np.testing.assert_array_equal(opaque.nodes[0].moves_with, [0, 1])


class Two(Op):
    """Two outputs, the second one an integer on demand."""

    def __init__(self, second):
        self.second = second

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dvector(), self.second()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = float(inputs[0]) * np.ones(3)
        outputs[1][0] = np.array(inputs[0], dtype=node.outputs[1].dtype)


@pytest.mark.parametrize("uses_both", [False, True])
def test_an_op_with_two_outputs_is_taken_out(uses_both):
    def build():
        curve, level = Two(pt.dscalar)(pm.Normal("x", 0, 1))
        pm.Normal("y", curve + (level**2 if uses_both else 0.0), observed=np.ones(3))

    opaque = take_apart(build)
    assert [node.n_outputs for node in opaque.nodes] == ([3, 1] if uses_both else [3])
    opaque.evaluate(np.zeros((2, 1)) + [[0.5], [1.0]])


def test_integers_are_not_emulated_and_why_is_said():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        _, count = Two(pt.lscalar)(x)
        pm.Poisson("n", pt.maximum(count, 1), observed=3)
    assert "returns integers" in why_not_learned(model, model.continuous_value_vars)
    with model:
        assert kmc.KMC().posterior is None


def test_a_box_of_integers_is_one_of_what_they_are_of():
    def build():
        x = pm.Normal("x", 0, 2)
        box = kmc.BlackBox(
            "f", lambda k: float(k) * np.ones(2), pt.floor(x).astype("int64"), shape=2
        )
        pm.Normal("y", box, observed=[1.2, 1.2])

    with pytensor.config.change_flags(exception_verbosity="low"):
        opaque = take_apart(build)
    np.testing.assert_array_equal(opaque.nodes[0].moves_with, [0])
    np.testing.assert_array_equal(opaque.evaluate(np.array([[1.7]])).outputs, [[1.0, 1.0]])


def test_angles_come_back_after_a_turn():
    def build():
        a, b = pm.VonMises("a", 0.0, 1.0), pm.Normal("b", 0, 1)
        pm.Potential("p", kmc.BlackBox("f", lambda a, b: np.cos(a) - b**2, a, b))

    opaque = take_apart(build)
    np.testing.assert_array_equal(opaque.periods, [2 * np.pi, np.inf])
    x = opaque.nearest_copy(np.array([3.1, 9.0]), np.array([-3.1, 0.0]))
    np.testing.assert_allclose(x, [3.1 - 2 * np.pi, 9.0])


def line(slope):
    return slope * DATA


def scaled(slope, factor):
    return factor * slope * DATA


def test_boxes_of_one_function_are_known_by_the_function_their_constants_and_shapes():
    def build():
        slopes = pm.Normal("slopes", 0, 1, shape=6)
        boxes = [kmc.BlackBox(f"line {i}", line, slopes[i], shape=3) for i in range(2)]
        boxes.append(kmc.BlackBox("other", lambda slope: slope * DATA, slopes[2], shape=3))
        boxes.append(kmc.BlackBox("pair", line, slopes[4:5], shape=3))  # another shape of inputs
        boxes += [kmc.BlackBox(f"scaled {c}", scaled, slopes[5], c, shape=3) for c in (1.0, 2.0)]
        pm.Normal("y", pt.stack(boxes) ** 3, 1.0, observed=np.zeros((6, 3)))

    functions = {node.name: node.function for node in take_apart(build).nodes}
    assert functions["line 0"] == functions["line 1"]
    assert len(set(functions.values())) == 5


def test_terms_share_no_emulator():
    def build():
        mu = pm.Normal("mu", 0, 10, shape=2)
        for i in range(2):
            pm.Potential(f"p{i}", kmc.BlackBox(f"terms {i}", pointwise, mu[i], shape=3).sum())

    assert [node.function for node in take_apart(build).nodes] == [0, 1]
