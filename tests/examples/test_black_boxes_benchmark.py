"""The benchmark of the default step on log likelihoods."""

import pytest

from examples.benchmarks import black_boxes

pytestmark = pytest.mark.documentation


def test_the_quick_table(capsys):
    black_boxes.main(["--quick"])
    assert "| pharmacokinetics | 1 of 1 |" in capsys.readouterr().out
