"""The benchmark of sweeps runs."""

import pytest

from examples.benchmarks.sweeps import main


@pytest.mark.documentation
@pytest.mark.one_line
def test_it_runs_in_short(capsys):
    main(["--quick"])
    assert "| dose-response | 32 |" in capsys.readouterr().out
