"""Learning some of a model's variables, given others that other steps move."""

from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.learning.emulated_density import EmulatedDensity, on_emulators
from pymc_kmc.surrogates import LogDensityGP
from tests.learned import OBSERVED, TIMES, curve, decay, emulated, learned_curve
from tests.targets import sample

QUIET = {"progressbar": False, "random_seed": 1}
# Its log density is the smallest that shows what is given: a shift of the curve, on or off.
SHIFTS = np.array([0.0, 0.3])


def shifted():
    """The curve is opaque and sees size and rate; `on` is another step's."""
    with pm.Model() as model:
        size, rate = pm.LogNormal("size", 0, 1), pm.LogNormal("rate", 0, 1)
        on = pm.Bernoulli("on", 0.5)
        curve = kmc.BlackBox("curve", decay, size, rate, shape=(5,))
        pm.Normal("y", curve + pm.math.switch(on, *SHIFTS[::-1]), 0.2, observed=OBSERVED)
    return model


@pytest.fixture(scope="module")
def learned():
    model = shifted()
    return model, kmc.learn(model, [model["size"], model["rate"]], **QUIET)


def test_what_is_given_is_said(learned):
    _, posterior = learned
    assert posterior.names == ("size_log__", "rate_log__")
    assert posterior.given == {"on": 1}
    assert posterior.draws(5)["size"].shape == (1, 5)
    assert "given the first values of on" in repr(posterior)


@pytest.mark.exactness
@pytest.mark.parametrize("on", [0, 1])
def test_the_emulated_density_follows(learned, on):
    """It is the model's, given each value, though one of them alone was seen while learning."""
    model, posterior = learned
    density = on_emulators(posterior, model).surrogate
    density.follow({"on": np.array(on)})
    expected = model.compile_logp()
    for x in posterior.positions[:20]:
        point = {"size_log__": x[0], "rate_log__": x[1], "on": on}
        assert density.log_density(x) == pytest.approx(float(expected(point)), abs=0.3)
        # In compiled code too, which has its own copies of the values.
        assert density.hamiltonian.log_density(x) == pytest.approx(density.log_density(x))
    step = 1e-5 * np.array([1.0, -2.0])
    change = density.log_density(x + step) - density.log_density(x - step)
    assert 2 * density.gradient(x) @ step == pytest.approx(change, rel=1e-3, abs=1e-7)


def test_it_follows_in_other_processes(learned):
    model, posterior = learned
    density = emulated(posterior, model)
    density.follow({"on": np.array(0)})  # not the first value
    assert np.isfinite(density.log_density(posterior.positions[0]))
    copy, x = cloudpickle.loads(cloudpickle.dumps(density)), posterior.positions[0]
    assert isinstance(copy, EmulatedDensity) and "composite" not in vars(copy)
    assert copy.log_density(x) == density.log_density(x)
    np.testing.assert_array_equal(copy.gradient(x), density.gradient(x))


def test_a_file_has_the_emulators(learned, tmp_path):
    model, posterior = learned
    posterior.to_netcdf(tmp_path / "learned.nc")
    loaded = kmc.LearnedPosterior.from_netcdf(tmp_path / "learned.nc")
    x = posterior.positions[0]
    densities = [emulated(one, model) for one in (posterior, loaded)]
    assert densities[0].log_density(x) == densities[1].log_density(x)


def exact_share():
    """Probability of `on`, and means of log size for each value, by a grid."""
    a, b = np.meshgrid(np.linspace(-0.5, 2.2, 400), np.linspace(-2.5, 1.5, 400), indexing="ij")
    curve = np.exp(a)[..., None] * np.exp(-np.exp(b)[..., None] * TIMES)
    weights = [
        np.exp(
            -0.5 * ((OBSERVED - curve - shift) ** 2).sum(axis=-1) / 0.04 - 0.5 * a**2 - 0.5 * b**2
        )
        for shift in SHIFTS
    ]
    masses = [weight.sum() for weight in weights]
    return masses[1] / sum(masses), [np.sum(w * a) / w.sum() for w in weights]


def test_a_compound_samples_the_joint_posterior(learned):
    """1200 draws, 120 of them effective or more (seen: 146): 4.5 standard errors."""
    model, posterior = learned
    with model:
        step = [kmc.KMC(posterior), pm.BinaryGibbsMetropolis([model["on"]])]
        draws = sample(step, draws=1200, tune=50).posterior
    on, log_size = draws["on"].values.ravel(), np.log(draws["size"].values.ravel())
    share, means = exact_share()
    assert abs(on.mean() - share) < 4.5 * np.sqrt(share * (1 - share) / 120)
    for value, mean in enumerate(means):
        given = log_size[on == value]
        assert abs(given.mean() - mean) < 4.5 * given.std() / np.sqrt(0.1 * len(given))


def test_a_step_follows_at_every_iteration(learned):
    """Without evaluating the black box: what it said at the chain's place is remembered."""
    model, posterior = learned
    with model:
        step = kmc.KMC(posterior)
    step.set_rng(np.random.default_rng(0))
    (box,) = kmc.black_boxes(model)
    point, surrogate = model.initial_point(), step._learned_before.surrogate
    for i in range(30):
        point = point | {"on": np.array(i % 2)}
        before = box.n_evaluations
        point, _ = step.step(point)
        assert surrogate.composite.model.others["on"] == i % 2
        assert box.n_evaluations - before <= 1 + (i == 0)


def test_a_restored_chain_follows(learned):
    """Its surrogate is unpickled, another object than the one that the step has learned."""
    model, posterior = learned
    with model:
        step, other = kmc.KMC(posterior), kmc.KMC(posterior)
    step.set_rng(np.random.default_rng(0))
    point, _ = step.step(model.initial_point() | {"on": np.array(0)})
    other.sampling_state = cloudpickle.loads(cloudpickle.dumps(step.sampling_state))
    chains = []
    for each in (step, other):
        moved = [point]
        for i in range(10):
            moved.append(each.step(moved[-1] | {"on": np.array(i % 2)})[0])
        chains.append(moved)
    assert other.adapted.fitted.surrogate.composite.model.others["on"] == 1
    np.testing.assert_equal(*chains)


def test_where_that_fails_chains_learn_by_themselves():
    posterior = replace(learned_curve(), has_converged=False, is_close=False)
    with curve():
        step = kmc.KMC(posterior, n_landmarks=50)
        sample(step, draws=50, tune=300)
    assert step.adapted.settling is None
    assert isinstance(step.surrogate_, LogDensityGP)


def test_a_step_learns_its_own_variables_by_itself():
    model = shifted()
    with model:
        step = kmc.KMC([model["size"], model["rate"]], n_landmarks=50)
    assert step.posterior.given == {"on": 1}


def test_what_is_opaque_may_not_depend_on_others():
    with shifted() as model:
        with pytest.raises(ValueError, match=r"\['size_log__'\] are not learned, and what"):
            kmc.learn(vars=[model["rate"]])
        assert kmc.KMC([model["rate"]]).posterior is None


@pytest.mark.parametrize("has_its_own", [False, True])
def test_an_integer_that_a_black_box_sees_is_no_other(has_its_own):
    with pm.Model():
        x, n = pm.Normal("x"), pm.Poisson("n", 3.0)
        if has_its_own:
            pm.Potential("p", kmc.BlackBox("f", lambda x: -(x**2), x))
            pm.Potential("q", kmc.BlackBox("g", lambda n: -(n**2.0), n))
        else:
            pm.Potential("p", kmc.BlackBox("f", lambda x, n: -n * x**2, x, n))
        with pytest.raises(ValueError, match=r"\['n'\] are not learned"):
            kmc.learn()


def test_beside_other_variables_than_were_given(learned):
    _, posterior = learned
    with pm.Model():
        pm.LogNormal("size", 0, 1)
        pm.LogNormal("rate", 0, 1)
        with pytest.raises(ValueError, match=r"is given \['on'\], this step is beside \[\]"):
            kmc.KMC(posterior)
