"""The benchmark of learning once prints its table."""

import pytest

import pymc_kmc as kmc
from examples.benchmarks.learning import main, noisy_time_series

pytestmark = pytest.mark.documentation


def test_the_quick_table(capsys):
    main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in lines[-1].split("|")[1:-1]]
    assert cells[0] == "dose-response"
    learning, tuning = (float(cell.split()[0]) for cell in cells[1:3])
    assert 0 < learning < 300
    # A proposal outside of the support costs nothing.
    assert 32 <= tuning <= 36


def test_learning_alone(capsys):
    main(["--quick", "--no-chains"])
    name, learning, error, *_ = capsys.readouterr().out.splitlines()[-1].split("|")[1:-1]
    assert name.strip() == "dose-response"
    assert 0 < float(learning.split()[0]) < 300
    assert 0 < float(error.split()[0]) < 0.3


def test_deep_values_do_not_keep_a_noisy_log_likelihood_from_being_learned():
    # Of ten seeds the largest number was 293; with deep values that count for more, 602.
    learned = kmc.learn(noisy_time_series(), random_seed=0, progressbar=False)
    assert learned.has_converged
    assert learned.n_evaluations < 400
