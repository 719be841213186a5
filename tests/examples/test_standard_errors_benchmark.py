"""The benchmark of standard errors runs."""

import pytest

from examples.benchmarks.standard_errors import main


@pytest.mark.documentation
@pytest.mark.one_line
def test_it_runs_in_short(capsys):
    main(["--quick"])
    assert "| dose-response |" in capsys.readouterr().out
