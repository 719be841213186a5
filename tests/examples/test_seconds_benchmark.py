"""The sums of the benchmark of seconds."""

import pytest

from examples.benchmarks.seconds import main, ratios, seconds, table

FIGURES = {"calls": 100, "seconds": 2.0, "more calls": 50, "more seconds": 1.0, "rhat": 1.0}
SLOW = FIGURES | {"calls": 10_000, "more calls": 40_000, "seconds": 0.1, "more seconds": 0.4}


def test_an_evaluation_adds_its_milliseconds_to_each_call():
    assert seconds(FIGURES, 30.0) == pytest.approx((5.0, 7.5))


def test_kmc_is_compared_with_the_least_of_those_that_have_mixed():
    found = {("a", "KMC()"): [FIGURES], ("a", "Slice"): [SLOW]}
    found["a", "Metropolis"] = [FIGURES | {"seconds": 0.0, "rhat": 1.2}]
    row = ratios(found).splitlines()[2]
    at_3_ms = (3.0 + 0.45) / (0.5 + 150.0)
    assert f"{at_3_ms:.2f} (Slice)" in row and "Metropolis" not in row
    assert "| a | Slice | 10000 | 50000 | 0.1 | 0.5 | 1.00 |" in table(found)


@pytest.mark.documentation
@pytest.mark.one_line
def test_it_runs_in_short(capsys):
    main(["--quick"])
    assert "| to reach | 3 | 1.5 | 1 | 1 |" in capsys.readouterr().out
