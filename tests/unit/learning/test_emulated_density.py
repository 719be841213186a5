"""The emulated log density as compiled code: what NumPy says, in every process."""

from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation.transitions import whitened_hamiltonian
from pymc_kmc.dynamics import transition_sequence
from pymc_kmc.learning import emulated_density
from pymc_kmc.learning.emulated_density import (
    FEWEST_GRADIENTS,
    FEWEST_OF_MANY,
    EmulatedParameters,
    n_gradients,
    on_emulators,
)
from pymc_kmc.numerics.evaluation import PythonParameters, is_compiled
from pymc_kmc.surrogates import exact_gp_evaluation
from tests.learned import curve, density_of, learned_curve
from tests.unit.model.test_opaque import (
    chain_model,
    differentiable,
    groups_model,
    vector_model,
)


def fails_elsewhere():
    return vector_model(on_error="reject")


def single_precision():
    with pm.Model() as model:
        rate = pm.LogNormal("rate", np.float32(0.0), np.float32(1.0), dtype="float32")
        box = kmc.BlackBox("decay", lambda r: np.exp(-r * np.arange(3)), rate, shape=(3,))
        pm.Normal("y", box, np.float32(0.1), observed=np.ones(3, dtype="float32"))
    return model


# Each graph is compiled for some seconds. A box that may fail elsewhere is a vector_model too, and
# an op_model is one with another node; terms and estimates are such nodes in a sum. On the second
# line of PyMC: two boxes, several of one function, and another type.
ON_BOTH_LINES = [chain_model, groups_model, single_precision]
ON_ONE = [differentiable, fails_elsewhere]


@cache
def density_that_fails_elsewhere():
    return density_of(fails_elsewhere())


@pytest.mark.parametrize(
    "build",
    [*ON_BOTH_LINES, *[pytest.param(build, marks=pytest.mark.one_line) for build in ON_ONE]],
)
def test_compiled_code_says_what_numpy_does(build, monkeypatch):
    monkeypatch.setattr(exact_gp_evaluation, "NEGLIGIBLE", 0.0)
    is_shared = build is fails_elsewhere
    density = density_that_fails_elsewhere() if is_shared else density_of(build())
    hamiltonian = whitened_hamiltonian(density)
    assert isinstance(hamiltonian.parameters, EmulatedParameters)
    d = density.n_features_in_
    start = density.coordinates.backward(np.full(d, 0.2))
    tolerance = 1e-4 if build is single_precision else 1e-7
    assert hamiltonian.log_density(start) == pytest.approx(
        density.log_density(start), rel=tolerance, abs=tolerance
    )
    # One leapfrog step from rest moves by the gradient.
    end, _ = hamiltonian.trajectory(start, np.zeros(d), step := 1e-2, 1)
    moved = density.coordinates.matrix @ (end - start)
    gradient = density.gradient(start) @ density.coordinates.inverse
    np.testing.assert_allclose(2.0 * moved / step**2, gradient, rtol=2e-3, atol=1e-3)


@pytest.mark.one_line
def test_a_sequence_is_what_python_makes(monkeypatch):
    monkeypatch.setattr(exact_gp_evaluation, "NEGLIGIBLE", 0.0)
    density = density_that_fails_elsewhere()
    hamiltonian, start = density.hamiltonian, np.full(4, 0.1)
    slow = emulated_density.SurrogateHamiltonian(
        PythonParameters(emulated_density.InCoordinates(density, density.coordinates)),
        density.coordinates,
    )
    ends = [
        transition_sequence(one, start, 0.1, 5, 4, np.random.default_rng(3))
        for one in (hamiltonian, slow)
    ]
    np.testing.assert_allclose(ends[0].position, ends[1].position, rtol=1e-6)
    assert ends[0].log_ratio == pytest.approx(ends[1].log_ratio, abs=1e-6)
    assert ends[0].moved and ends[0].n_steps == ends[1].n_steps


def test_it_is_compiled_anew_in_another_process():
    fitted = on_emulators(learned_curve(), curve())
    before = fitted.hamiltonian.log_density(x := learned_curve().positions[0])
    again = cloudpickle.loads(cloudpickle.dumps(fitted))
    assert "_compiled" not in vars(again.surrogate)
    assert again.hamiltonian.log_density(x) == before


def test_many_points_are_predicted_at_once():
    density, X = density_of(vector_model()), np.random.default_rng(4).normal(size=(3, 4))
    mean, sd = density.predict(X, return_std=True)
    for x, *expected in zip(X, mean, sd, strict=True):
        np.testing.assert_allclose(density.predict(x, return_std=True), expected)


def test_models_with_initial_values_are_sampled():
    """PyMC copies a step's state, and can't copy such a model."""
    learned = learned_curve()
    with curve() as model:
        model.rvs_to_initial_values[model["size"]] = np.array(2.0)
        step = kmc.KMC(learned)
        idata = pm.sample(step=step, tune=20, draws=20, chains=1, progressbar=False)
    assert idata.posterior.sizes["draw"] == 20


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("emulated_graph", KeyError),
        ("compile_function", OSError),
        ("CompiledDensity.of", NotImplementedError),
    ],
)
def test_what_cannot_be_compiled_is_python(where, error, monkeypatch):
    tried = []

    def fail(*arguments):
        tried.append(arguments)
        raise error("no such function")

    monkeypatch.setattr(f"{emulated_density.__name__}.{where}", fail)
    density = density_of(vector_model())
    assert not is_compiled(density.parameters)
    assert not is_compiled(density.parameters)
    assert len(tried) == 1
    x = np.full(4, 0.2)
    assert density.hamiltonian.log_density(x) == pytest.approx(density.log_density(x))


def test_a_proposal_has_gradients_by_what_they_cost():
    cheap = n_gradients(np.array([5e3]))
    assert cheap > FEWEST_GRADIENTS
    assert cheap < n_gradients(np.array([5e3, 5e3])) < 2 * cheap  # two black boxes for one
    assert n_gradients(np.array([1e6])) == FEWEST_GRADIENTS
    assert n_gradients(np.full(200, 5e3)) == FEWEST_OF_MANY
