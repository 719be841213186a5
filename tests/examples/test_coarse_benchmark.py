"""The benchmark of coarse versions prints its table."""

import pytest

from examples.benchmarks.coarse import KINDS, main

pytestmark = [pytest.mark.documentation, pytest.mark.long, pytest.mark.one_line]


def test_the_quick_table(capsys):
    main(["--quick"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [cells[1].strip() for cells in rows] == list(KINDS)
    fine = [float(cells[2].split()[0]) for cells in rows]
    assert fine[1] <= 0.7 * fine[0] and fine[2] <= 1.5 * fine[0]
