"""The benchmark of many workers: its clock, and that it runs."""

import numpy as np
import pytest

from examples.benchmarks.scaling import Recorder, elapsed, main

pytestmark = pytest.mark.documentation


def recorded(n_batches, size):
    recorder = Recorder(4)
    for _ in range(n_batches):
        tasks = [recorder.submit(pow, 2, k) for k in range(size)]
        assert [task.result() for task in tasks] == [2**k for k in range(size)]
    return recorder.record


def test_the_clock_counts_batches():
    record = recorded(3, 5)
    for n_workers, expected in ((1, 15), (2, 9), (4, 6), (5, 3), (256, 3)):
        assert elapsed(record, n_workers) == expected
        assert elapsed(record, n_workers, seconds=10.0) == 10.0 * expected
    # The slowest of a batch is waited for; the mean of a lognormal is exp(s^2 / 2).
    spread = [elapsed(recorded(400, n), n, spread=0.5) / 400 for n in (1, 5)]
    assert spread[0] == pytest.approx(np.exp(0.125), abs=0.1) and spread[1] > 1.6


def test_what_is_lost_is_evaluated_again():
    """A worker dies half way in the mean: of n evaluations n p / (1 - p) are lost."""
    record = recorded(1, 4000)
    assert elapsed(record, 1, lost=0.2) / 4000 == pytest.approx(1 + 0.5 * 0.2 / 0.8, abs=0.02)
    assert elapsed(recorded(1, 4), 4, lost=0.5) > 1.0


def test_own_seconds_count_if_wanted():
    own = [("own", 2.0), ("begin", 0), ("own", 3.0), ("end", 0), ("own", 1.0)]
    assert elapsed(own, 1, seconds=2.0, own=1.0) == 6.0  # three of them beside the evaluation
    assert elapsed(own, 1, seconds=4.0, own=1.0) == 7.0
    assert elapsed(own, 1, seconds=4.0) == 4.0


@pytest.mark.long
def test_it_runs(capsys, tmp_path):
    pytest.importorskip("emcee")
    main(["--quick", "--peers", "emcee", "--lost", "0.1", "--plot", str(tmp_path / "speed.png")])
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[-2:]]
    assert [row[:2] for row in cells] == [["survival", "1"], ["survival", "32"]]
    assert float(cells[1][3]) < 0.5 * float(cells[0][3])
    assert float(cells[1][-2]) > float(cells[1][-1]) > 0.0
    assert (tmp_path / "speed.png").stat().st_size > 0
