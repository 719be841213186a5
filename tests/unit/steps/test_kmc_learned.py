"""KMC(learned): what a chain does with a posterior that was learned before it."""

import re
import warnings
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.moves.base import MoveKind
from pymc_kmc.steps.kmc import SETTLING_TUNE
from pymc_kmc.steps.kmc_adaptation import SETTLING, Disagreement
from pymc_kmc.steps.messages import of_disagreement
from tests.chains import iterate, run

pytestmark = pytest.mark.usefixtures("with_short_sequences")


def model(error=0.0):
    def square(x):
        return np.array([x[0] - error, x[0] ** 2 + x[1]])

    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=2)
        outputs = kmc.BlackBox("square", square, x, shape=(2,))
        pm.Normal("y", outputs, 0.5, observed=[1.0, 0.5])
    return model


@pytest.fixture(scope="module")
def learned():
    return kmc.learn(model(), progressbar=False)


def sample(learned, error=0.0, tune=100, draws=50, n_parallel=None, **arguments):
    with warnings.catch_warnings(), model(error):
        warnings.simplefilter("ignore")
        return pm.sample(
            step=kmc.KMC(learned, n_parallel=n_parallel),
            tune=tune,
            draws=draws,
            random_seed=3,
            progressbar=False,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            chains=2,
            **arguments,
        )


@pytest.mark.exactness
def test_tuning_costs_a_few_evaluations(learned):
    idata = sample(learned, cores=1)
    warmup = idata["warmup_sample_stats"]
    # The start, and those of settling.
    assert np.all(warmup["kmc_n_evaluations"].sum("draw") <= SETTLING + 1)
    kinds = np.asarray(warmup["kmc_move"])
    assert np.all(kinds[:, 0] == MoveKind.LEARNED_DRAW)
    assert np.all(kinds[:, SETTLING + 1 :] == MoveKind.STAY)
    drawn = np.asarray(idata["sample_stats"]["kmc_move"])
    assert not np.isin(drawn, [MoveKind.LEARNED_DRAW, MoveKind.STAY]).any()
    assert float(idata["sample_stats"]["acceptance_rate"].mean()) > 0.8


@pytest.mark.parametrize("n", [32, 512])
def test_settling_with_partners_takes_one_batch(learned, n):
    """Of its start and a sweep; what of that is left serves the first draws."""
    idata = sample(learned, cores=1, n_parallel=n)
    warmup, drawn = idata["warmup_sample_stats"], idata["sample_stats"]
    assert np.all(warmup["kmc_n_evaluations"][:, 0] == n)
    assert np.all(warmup["kmc_n_evaluations"][:, 1:] == 0)
    assert np.all(np.asarray(warmup["kmc_move"])[:, 0] == MoveKind.LEARNED_DRAW)
    assert np.all(np.asarray(warmup["kmc_move"])[:, SETTLING + 1 :] == MoveKind.STAY)
    assert np.all((drawn["kmc_n_evaluations"] > 0).sum("draw") <= 50 // n + 1)
    assert float(drawn["acceptance_rate"].mean()) > 0.8


@pytest.mark.one_line
def test_partners_on_a_surrogate_that_fails_are_given_up(learned):
    idata = sample(learned, error=8.0, tune=400, cores=1, n_parallel=64)
    warmup, drawn = idata["warmup_sample_stats"], idata["sample_stats"]
    assert np.all(warmup["kmc_n_evaluations"].sum("draw") > 200)
    assert np.all(warmup["kmc_n_fits"][:, -1] > 1)
    # There are new ones on the surrogate that was fitted instead.
    assert np.all(drawn["kmc_n_evaluations"][:, 0] >= 64)
    assert np.all((np.asarray(drawn["kmc_move"]) == MoveKind.EXCHANGE).any(axis=1))


def test_chains_begin_dispersed(learned):
    idata = sample(learned, cores=1)
    starts = np.asarray(idata["warmup_posterior"]["x"])[:, 0]
    assert not np.allclose(starts[0], starts[1])
    for start in starts:
        assert (start == learned.wide_positions).all(axis=1).any()


@pytest.mark.one_line
def test_a_surrogate_that_fails_is_given_up(learned):
    idata = sample(learned, error=8.0, tune=400, cores=1)
    warmup = idata["warmup_sample_stats"]
    assert np.all(warmup["kmc_n_evaluations"].sum("draw") > 200)
    assert np.all(warmup["kmc_n_fits"][:, -1] > 1)


def told(learned, error, n=60):
    """What a chain says of what was learned, and the tuning that it asks for, after n of tuning."""
    with model(error) as m:
        step = kmc.KMC(learned)
    step.set_rng(np.random.default_rng(2))
    point, statistics = run(step, m.initial_point(), n)
    step.stop_tuning()
    statistics += run(step, point, 2)[1]
    messages = [s["warning"].message for s in statistics if s["warning"] is not None]
    messages = [message for message in messages if "What was learned" in message]
    return messages, statistics[-1]["kmc_default_tune"]


@pytest.mark.one_line
def test_a_chain_says_that_what_was_learned_is_wrong(learned):
    """Once, with the error that it found and the tuning that it now needs."""
    (message,), asked = told(learned, error=8.0)
    found = re.search(r"first 8 evaluations had errors of (\S+) nats, and (\d+) % of", message)
    # An output that is 8 smaller, of standard deviation .5: the log density's slope changes by 32.
    assert 2.0 < float(found[1]) < 200.0
    assert 0 <= int(found[2]) <= 100
    assert "pm.sample(tune=2200)" in message
    assert asked == 2200
    assert "kmc.learn(evaluations=step.evaluations, max_evaluations=...)" in message


@pytest.mark.one_line
def test_it_does_so_after_little_tuning(learned):
    (message,), asked = told(learned, error=8.0, n=5)
    assert "its first 5 evaluations" in message and asked == 2200
    assert told(learned, error=0.0, n=5)[0] == told(learned, error=8.0, n=1)[0] == []


@pytest.mark.one_line
def test_a_chain_that_agrees_with_what_was_learned_says_nothing(learned):
    assert told(learned, error=0.0) == ([], SETTLING_TUNE)
    # That learning ended early is told when it ends.
    messages, _ = told(replace(learned, has_converged=False, is_close=False), error=0.0)
    assert messages == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ((8, np.inf, 0.0, 0.0, 1.0), "8 evaluations weren't finite, and 0 % of proposals"),
        ((15, 5.25, 1.5, 0.04, 0.3), "5.2 nats, 1.5 of them noise, and 4 % of proposals, where 30"),
    ],
)
def test_what_a_chain_says_of_what_was_learned(seen, words):
    assert words in of_disagreement(Disagreement(*seen), 2200)


def test_draws_do_not_depend_on_processes(learned):
    """Spawned ones get what was learned by pickle."""
    with model() as m:
        step = kmc.KMC(learned)
    chains = []
    for each in (step, cloudpickle.loads(cloudpickle.dumps(step))):
        each.set_rng(np.random.default_rng(3))
        point, _ = run(each, m.initial_point(), 20)
        each.stop_tuning()
        chains.append([point["x"] for point, _ in iterate(each, point, 20)])
    assert len(np.unique(chains[0], axis=0)) > 5
    np.testing.assert_array_equal(*chains)


def test_another_models_posterior_is_refused(learned):
    with pm.Model():
        pm.Normal("z", 0, 1, shape=2)
        with pytest.raises(ValueError, match=r"\['x'\].*\['z'\]"):
            kmc.KMC(learned)


@pytest.mark.parametrize("arguments", [{"blocked": False}, {"surrogate": "s"}])
def test_it_is_one_surrogate_of_all(learned, arguments):
    with model(), pytest.raises(ValueError, match="leave surrogate= and blocked"):
        kmc.KMC(learned, **arguments)


@pytest.mark.one_line
def test_it_is_no_keyword(learned):
    with model(), pytest.raises(TypeError, match=r"write KMC\(learned\)"):
        kmc.KMC(posterior=learned)


@pytest.mark.one_line
def test_a_learned_posterior_that_did_not_converge_is_learned_on():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = kmc.learn(model(), max_evaluations=20, progressbar=False)
    assert not posterior.has_converged
    idata = sample(posterior, tune=200, cores=1)
    assert np.all(idata["warmup_sample_stats"]["kmc_n_evaluations"].sum("draw") > 150)


@pytest.mark.one_line
def test_chains_settle_on_what_is_close(learned):
    idata = sample(replace(learned, has_converged=False), cores=1)
    assert np.all(idata["warmup_sample_stats"]["kmc_n_evaluations"].sum("draw") <= SETTLING + 1)


@pytest.mark.exactness
@pytest.mark.one_line
def test_noise_that_was_learned_is_known_to_the_chains():
    """Perfect proposals are accepted in .54 of cases; a chain that rests has probed .03 to .9."""

    def estimator(x, rng):
        return -0.5 * np.sum((x - 1.0) ** 2) / 0.1 + 0.86 * rng.standard_normal() - 0.37

    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kmc.PseudoMarginalPotential("l", estimator, pm.Normal("x", 0, 1, shape=2))
        step = kmc.KMC(kmc.learn(progressbar=False))
        options = {"tune": 1000, "draws": 20, "cores": 1, "chains": 2, "random_seed": 3}
        options |= {"progressbar": False, "compute_convergence_checks": False}
        idata = pm.sample(step=step, **options)
    assert step.posterior.has_converged
    assert np.all(np.abs(idata.sample_stats["kmc_ideal_acceptance"].values - 0.54) < 0.15)


@pytest.mark.parametrize(("options", "is_known"), [({}, True), ({"n_normals": 1}, False)])
def test_noise_of_which_a_proposal_keeps_much_is_less_than_what_was_learned(options, is_known):
    def estimator(x, **noise):
        return -0.5 * np.sum((x - 1.0) ** 2) / 0.1

    with pm.Model():
        kmc.PseudoMarginalPotential("l", estimator, pm.Normal("x", 0, 1, shape=2), **options)
        step = kmc.KMC(n_landmarks=30, learn=False)
    assert step.target.has_independent_noise == is_known
