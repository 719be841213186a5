import numpy as np
import pytest

from pymc_kmc.surrogates.additive_kernel import AdditiveKernel
from pymc_kmc.surrogates.exact_gp import ExactGP, Hyperparameters
from pymc_kmc.surrogates.exact_gp_evaluation import outputs_at, packed, pulled_at
from pymc_kmc.surrogates.radial_terms import RadialTerms

SIZES = [(3, 25, 4), (1, 7, 1), (9, 40, 2)]  # of coordinates, places, outputs
IS_LOG = [False, False, True]


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
        outputs, slopes = outputs_at(x, *arrays, i)
        np.testing.assert_allclose(outputs, expected, rtol=1e-9)
        by_outputs = rng.normal(size=len(outputs))
        by_process = by_outputs * scales * (expected if IS_LOG[i] else 1.0)
        np.testing.assert_allclose(
            pulled_at(x, by_outputs, outputs, slopes, *arrays, i),
            prediction.pullback(by_process[None], np.zeros(1))[0],
            rtol=1e-8,
            atol=1e-10 * np.abs(by_process).max(),
        )


def test_far_away_outputs_stay_finite(arrays):
    outputs, _ = outputs_at(np.full(9, 1e3), *arrays, 2)
    assert np.isfinite(outputs).all()
