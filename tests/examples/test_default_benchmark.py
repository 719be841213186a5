"""The benchmark of the default step counts, stores and judges what it says."""

import dataclasses
import json

import numpy as np
import pytensor
import pytest

from examples.benchmarks import default
from examples.benchmarks.default import Run

pytestmark = pytest.mark.documentation

RUN = Run("gaussian", "AdaptiveMetropolis", 0, 0.0, 40, 60)


@pytest.fixture(autouse=True)
def quickly_compiled():
    """The runs are so short that compiling takes longer."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.mark.parametrize("sampler", ["AdaptiveMetropolis", "DEMetropolisZ", "HMC"])
def test_a_run_is_an_object_of_json(sampler):
    result = default.execute(dataclasses.replace(RUN, sampler=sampler))
    assert "error" not in result
    assert default.of_run(json.loads(json.dumps(result))).sampler == sampler
    assert len(result["log_sd_ratio"]) == 10
    tuning, drawing = result["evaluations"]
    if sampler == "HMC":  # one leapfrog step an iteration or more
        assert tuning >= RUN.tune and drawing >= RUN.draws
    else:  # the starting point may count, and what finds the scales of ten coordinates
        assert RUN.tune <= tuning <= RUN.tune + 1 + 10 * 20 and drawing == RUN.draws


def test_all_samplers_start_at_one_point():
    starts = [default.starting_point("gaussian", seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.allclose(starts[0], starts[2])


def test_noise_reaches_the_log_density_once_a_look():
    target = default.target_named("gaussian")
    at = {"x": target.mean}
    ours = default.noisy_model(target, 1.0, False, None).compile_logp()
    assert ours(at) == ours(at)
    redrawn = default.noisy_model(target, 2.0, True, 1).compile_logp()
    values = np.array([redrawn(at) for _ in range(2000)])
    assert values.std() == pytest.approx(2.0, rel=0.1)
    assert values.mean() == pytest.approx(target.log_density(target.mean) - 2.0, abs=0.2)


def test_a_chain_that_never_moved_has_no_effective_samples():
    x = np.random.default_rng(0).standard_normal((100, 2))
    assert default.smallest_ess(x) > 10
    x[:, 1] = 3.0
    assert default.smallest_ess(x) == 0.0


def test_a_failure_is_a_result():
    result = default.execute(dataclasses.replace(RUN, sampler="NoSuchStep"))
    assert "NoSuchStep" in result["error"]


def test_r_hat_is_of_four_seeds_that_belong_together():
    rng = np.random.default_rng(0)
    results = [
        {"seed": seed, "kept": (rng.standard_normal((200, 2)) + 5 * (seed == 5)).tolist()}
        for seed in range(10)
    ]
    alike, apart = default.r_hats(results)
    assert alike < 1.05 < 1.2 < apart


def test_results_are_read_back_and_an_interrupted_line_left_out(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    for ess in (1.0, 2.0):
        default.append_result(path, dataclasses.asdict(RUN) | {"ess": ess})
    with open(path, "a") as file:
        file.write('{"target": "gau')
    assert default.read_results(path)[RUN]["ess"] == 2.0
    assert "line 3" in capsys.readouterr().err


def test_what_was_done_is_not_done_again(tmp_path, capsys):
    arguments = ["--targets", "gaussian", "--samplers", "AdaptiveMetropolis", "--seeds", "1"]
    arguments += ["--tune", "40", "--draws", "60", "--append", str(tmp_path / "results.jsonl")]
    default.main(arguments)
    first = capsys.readouterr()
    assert "[1/1] gaussian AdaptiveMetropolis 0" in first.err
    default.main(arguments)
    again = capsys.readouterr()
    assert again.err == "" and again.out == first.out
    default.main(["--from", str(tmp_path / "results.jsonl")])
    assert capsys.readouterr().out == first.out


def test_missed_goals_are_bold():
    assert default.median_and_worst([1.0, 2.0, 3.0], max, 1, (2.5, 2.5)) == "2.0 (**3.0**)"
    assert default.median_and_worst([1.0, 2.0, 3.0], min, 1, (2.5, None)) == "**2.0** (1.0)"
    assert default.goal_text((None, 0.8), ">=", 1) == ">= (0.8)"
