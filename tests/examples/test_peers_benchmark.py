"""The benchmark of peers counts every evaluation, and compares what each knew by then."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

import pymc_kmc as kmc
from examples.benchmarks import learning, peers
from examples.benchmarks.peer_samplers import PEERS, QUICK_BUDGET, Problem, Snapshot

pytestmark = [pytest.mark.documentation, pytest.mark.one_line]

#: Mean and standard deviation of dose-response, of 4 x 5000 draws of `KMC`; tested to a tenth.
MEAN, SD = np.array([0.81, 7.92, -0.02]), np.array([0.84, 2.97, 0.98])
#: A Gaussian with these moments stands for its draws.
DRAWS = MEAN + SD * np.random.default_rng(0).standard_normal((5000, 3))
KNOWN = peers.Reference(MEAN, SD, DRAWS)
#: Of all peers those that end in seconds.
FAST = "DEMetropolisZ", "Slice", "emcee", "emcee-DE", "zeus", "dynesty"


def rows(errors, **others):
    columns = {"evaluations": 100 * np.arange(1, len(errors) + 1), "mean": errors, "sd": 0.0}
    columns |= {"mmtv": errors, "gskl": 0.0}
    columns |= {"target": "a", "peer": "b", "seed": 0, "seconds": 1.0, "log_evidence": np.nan}
    return pd.DataFrame(columns | others)


def test_close_is_what_stays_close():
    assert peers.until(rows([0.05, 0.3, 0.15, 0.08]), peers.is_below(0.2))["evaluations"] == 300
    assert peers.until(rows([0.05, 0.3, 0.15, 0.08]), peers.is_below(0.1))["evaluations"] == 400
    assert peers.until(rows([0.05, 0.05]), peers.is_below(0.1))["evaluations"] == 100
    assert peers.until(rows([0.05, 0.3]), peers.is_below(0.1)) is None
    assert peers.until(rows([np.inf]), peers.is_below(0.1)) is None
    assert peers.until(rows([np.nan]), peers.is_below(0.1)) is None


def test_the_tables():
    found = pd.concat([rows([0.3, 0.05]), rows([0.3, 0.15], peer="c", log_evidence=-1.0)])
    found = pd.concat([found, rows([0.15, 0.05], seed=1)])
    assert peers.evaluations(found).to_numpy().tolist() == [
        ["a", "150 / 150 / 200", "200 / 200 / -"]
    ]
    first, last, _ = peers.seconds(found).to_numpy().tolist()
    # 200 evaluations of .1, 1, 10 and 100 ms, and a second.
    assert first[3:] == ["200", "0.05, 0.00", "", "1.0", "1.0", "1.2", "3.0", "21.0"]
    assert last[3:] == ["200", "0.15, 0.00", "-1.00", "1.0", "-", "-", "-", "-"]


def test_weights_count():
    draws = np.array([[0.0], [1.0], [5.0]])
    mean, sd = peers.moments(Snapshot(3, 0.0, draws, np.array([0.5, 0.5, 0.0])))
    assert (mean, sd) == (0.5, 0.5)


@pytest.mark.parametrize("weights", [None, np.array([0.5, 0.5, 0.0])])
def test_learning_is_judged_by_its_weights(monkeypatch, weights):
    learned = SimpleNamespace(positions=np.array([[0.0], [1.0], [5.0]]), weights=weights)
    learned.log_evidence, learned.has_converged = SimpleNamespace(value=-1.0), True
    monkeypatch.setattr(kmc, "learn", lambda *_, **__: learned)
    problem = Problem("dose-response", 0, 0)
    problem.begin()
    (found,) = PEERS["learn"].run(problem, 500)
    mean, _ = peers.moments(found)
    assert mean == (2.0 if weights is None else 0.5)


@pytest.mark.parametrize("noise", [0, 1])
def test_the_density_counts_and_is_the_models(noise):
    problem, model = Problem("dose-response", noise, 0), learning.dose_response()
    problem.begin()
    x = np.array([0.5, 4.0, 0.1])
    # A box that is asked for the same again knows it.
    values = [problem.log_density(x + 1e-12 * i) for i in range(200)]
    assert problem.n_calls == 200
    exact = float(model.compile_logp()(dict(zip("a b curvature".split(), x, strict=True))))
    # Wrong one time in 30,000 of a right mean.
    assert abs(np.mean(values) - exact) <= 4.2 * noise / np.sqrt(200) + 1e-8
    assert np.isclose(np.std(values), noise, rtol=0.25, atol=1e-8)


@pytest.mark.parametrize("name", FAST)
def test_each_finds_the_posterior_and_is_charged_for_it(name):
    pytest.importorskip(PEERS[name].needs)
    problem = Problem("dose-response", 0, 0)
    problem.begin()
    *_, last = PEERS[name].run(problem, 2000)
    assert abs(last.evaluations - problem.n_calls) <= 0.1 * problem.n_calls
    found = peers.row(last, KNOWN)
    assert max(found["mean"], found["sd"]) < 1.0 and found["mmtv"] < 0.4
    nowhere = peers.row(last, peers.Reference(MEAN + 3.0 * SD, SD, DRAWS + 3.0 * SD))
    assert nowhere["mean"] > 2.0 and nowhere["mmtv"] > 0.6 and nowhere["gskl"] > 1.0


def test_the_command_makes_each_run_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers, "reference", lambda name: KNOWN)
    command = ["--quick", "--peers", "learn+KMC,Metropolis,none", "--folder", str(tmp_path)]
    monkeypatch.setitem(PEERS, "none", PEERS["emcee"]._replace(needs="no_such_package"))
    peers.main(command)
    printed = capsys.readouterr().out
    assert "none is left out: no_such_package is not installed." in printed
    assert "| target | learn+KMC | Metropolis |" in printed
    assert imread(tmp_path / "quick" / "peers.png").std() > 0.0
    kept = pd.read_csv(tmp_path / "quick" / "peers.csv")
    learned = kept[kept["peer"] == "learn+KMC"].iloc[-1]
    # Wrong one time in 1000 with some 300 effective draws.
    assert learned["evaluations"] < 2 * QUICK_BUDGET and max(learned["mean"], learned["sd"]) < 0.2
    monkeypatch.setattr(peers, "run", None)  # a second time there is nothing to run
    peers.main(command)


def test_what_a_peer_raises_is_its_result(monkeypatch):
    def fails(problem, budget):
        problem.log_density(np.zeros(3))
        raise ZeroDivisionError("in its depths")

    monkeypatch.setattr(peers, "reference", lambda name: KNOWN)
    monkeypatch.setitem(PEERS, "SMC", PEERS["SMC"]._replace(run=fails))
    (found,) = peers.run("dose-response", "SMC", 0, 100, 0)
    assert found["failed"] == "ZeroDivisionError: in its depths"
    assert found["evaluations"] == 1 and found["mean"] == np.inf


def test_a_reference_is_of_learning_that_converged_and_of_chains_that_agree(monkeypatch):
    draws, seeds = np.random.default_rng(0).standard_normal((4, 500, 3)), []

    def learn(random_seed, progressbar):
        seeds.append(random_seed)
        return SimpleNamespace(has_converged=random_seed == 2)

    monkeypatch.setattr(peers.kmc, "learn", learn)
    monkeypatch.setattr(peers.kmc, "KMC", lambda learned: learned)
    monkeypatch.setattr(learning, "sample", lambda *_, **__: SimpleNamespace(posterior=None))
    monkeypatch.setattr(learning, "unconstrained", lambda *_: draws)
    moments = np.arange(3.0), np.ones(3)
    monkeypatch.setattr(peers, "exact_moments", lambda *_: moments)
    found = peers.reference.__wrapped__("dose-response")
    assert seeds == [0, 1, 2]
    assert (found.mean, found.sd) == moments
    np.testing.assert_array_equal(found.draws, draws.reshape(-1, 3))
    draws[0] += 1.0
    with pytest.raises(RuntimeError, match="no reference: its chains have an R-hat of 1"):
        peers.reference.__wrapped__("dose-response")
