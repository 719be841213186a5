import numpy as np
import pytest

from pymc_kmc.surrogates.additive_kernel import AdditiveKernel
from pymc_kmc.surrogates.covariance import Hyperparameters, RadialTerms
from pymc_kmc.surrogates.exact_gp import ExactGP
from pymc_kmc.surrogates.exact_gp_evaluation import outputs_at, packed, pulled_at

SIZES = [(3, 25, 4), (1, 7, 1), (9, 40, 2)]  # of coordinates, places, outputs
IS_LOG = [False, False, True]
# Grids take the place of points to some digits.
RTOL = {None: 1e-9, "additive": 1e-4, "radial": 1e-9}


@pytest.fixture(scope="module", params=[None, "additive", "radial"])
def processes(request):
    """Fitted ones with all parts of the covariance at work, and their scales and offsets."""
    rng, found = np.random.default_rng(1), []
    for d, n, m in SIZES:
        Z = rng.normal(size=(n, d))
        extension = {
            None: None,
            "additive": AdditiveKernel(0.7, -1.0, rng.normal(0.3, 0.3, d)),
            "radial": RadialTerms(0.3, -0.5),
        }[request.param]
        parameters = Hyperparameters(0.3, -1.0, 0.5, -3.0, rng.normal(1.0, 0.3, d), extension)
        process = ExactGP(rng.normal(size=(d, d)), rng.normal(size=d))
        process.given(Z, rng.normal(size=(n, m)), np.zeros(n), parameters)
        found.append((process, rng.uniform(0.005, 0.02, m), rng.normal(size=m)))
    return found


@pytest.fixture(scope="module")
def arrays(processes):
    return packed([(*one, is_log) for one, is_log in zip(processes, IS_LOG, strict=True)])


@pytest.mark.parametrize("i", range(3))
def test_compiled_code_says_what_numpy_does(processes, arrays, i):
    process, scales, offset = processes[i]
    rng = np.random.default_rng(2)
    for x in process.centre + rng.normal(size=(5, SIZES[i][0])):
        prediction = process.predict(x[None])
        expected = prediction.mean[0] * scales + offset
        expected = np.exp(expected) if IS_LOG[i] else expected
        outputs, memories = outputs_at(x[None], *arrays, i)
        np.testing.assert_allclose(outputs[0], expected, rtol=RTOL[process.extension])
        by_outputs = rng.normal(size=outputs.shape)
        by_process = by_outputs * scales * (expected if IS_LOG[i] else 1.0)
        np.testing.assert_allclose(
            pulled_at(x[None], by_outputs, outputs, memories, *arrays, i),
            prediction.pullback(by_process, np.zeros(1)),
            rtol=10.0 * RTOL[process.extension],
            atol=RTOL[process.extension] * np.abs(by_process).max(),
        )


def test_far_away_outputs_stay_finite(arrays):
    outputs, _ = outputs_at(np.full((1, 9), 1e3), *arrays, 2)
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize("values", ["quadratic", "quartic", "neither"])
def test_what_says_nothing_is_left_out(values):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 3))
    Y = -0.5 * np.sum(X**2, axis=1) + X[:, 0]
    if values == "quartic":
        Y += 0.1 * X[:, 1] ** 2 * X[:, 2] ** 2
    elif values == "neither":
        Y += np.sin(3.0 * X[:, 1])
    process = ExactGP(np.eye(3), np.zeros(3)).fit(X, Y[:, None])
    numbers, layout = packed([(process, np.array([2.0]), np.array([7.0]), False)])
    assert layout[0, 2] == (0 if values == "quadratic" else 60)
    places = 1.5 * rng.normal(size=(40, 3))
    found = outputs_at(places, numbers, layout, 0)[0][:, 0]
    expected = 7.0 + 2.0 * process.predict(places).mean[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-3 * Y.std())


def test_operations_are_those_of_what_is_left():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 3))
    one = np.ones(1), np.zeros(1), False
    processes = [
        (ExactGP(np.eye(3), np.zeros(3)).fit(X, Y[:, None]), *one)
        for Y in (np.sum(X**2, axis=1), np.sin(3.0 * X).sum(axis=1))
    ]
    few, many = packed(processes).operations
    assert few < 100 < many


def test_the_constant_of_what_is_left_out_stays():
    """A kernel that is much wider than the places are apart is a constant."""
    rng = np.random.default_rng(5)
    Z = rng.normal(size=(30, 2))
    Y = 50.0 + Z[:, :1] - Z[:, 1:] ** 2
    parameters = Hyperparameters(-3.0, -16.0, 8.0, -6.0, np.full(2, 14.0))
    process = ExactGP(np.eye(2), np.zeros(2)).given(Z, Y, np.zeros(30), parameters)
    numbers, layout = packed([(process, np.ones(1), np.zeros(1), False)])
    assert layout[0, 2] == 0
    found = outputs_at(Z[:5], numbers, layout, 0)[0][:, 0]
    np.testing.assert_allclose(found, process.predict(Z[:5]).mean[:, 0], atol=1e-3)


def test_a_process_of_several_nodes_is_packed_once():
    process = ExactGP(np.eye(2), np.zeros(2)).fit(np.eye(2), np.eye(2))
    one = process, np.ones(2), np.zeros(2), False
    numbers, layout = packed([one, one])
    assert len(numbers) == len(packed([one]).numbers)
    np.testing.assert_array_equal(layout[0], layout[1])
