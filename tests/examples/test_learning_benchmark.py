"""The benchmark of learning once prints its table."""

import pytest

from examples.benchmarks.learning import main

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
