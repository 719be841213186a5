"""docs/evidence.md is what its command writes, and pages say what it claims and what runs say."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from examples.benchmarks import evidence

pytestmark = pytest.mark.documentation


def test_the_page_is_what_the_command_writes(tmp_path, monkeypatch):
    evidence.main(["--check"])
    monkeypatch.setattr(evidence, "PAGE", tmp_path / "evidence.md")
    evidence.main([])
    evidence.main(["--check"])
    evidence.PAGE.write_text("older")
    with pytest.raises(SystemExit, match="without --check"):
        evidence.main(["--check"])


def test_a_claim_that_its_page_no_longer_makes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("Once tuned, it gives some effective draws.")
    with pytest.raises(ValueError, match="README.md no longer says '400 effective draws"):
        evidence.claims()


def test_a_claim_that_the_runs_do_not_bear_out_is_named(monkeypatch):
    computed = evidence.of_peers()
    monkeypatch.setattr(evidence, "of_peers", lambda: computed | {"fewest of draws": "none"})
    with pytest.raises(ValueError, match=r"learn\+KMC`, .*: \d is none by peers.csv"):
        evidence.claims()


@pytest.mark.parametrize(
    "table_of",
    [
        partial(evidence.evaluations_of_peers, 0),
        partial(evidence.evaluations_of_peers, 2),
        evidence.seconds_of_peers,
    ],
    ids=["evaluations", "noise of two", "seconds"],
)
def test_a_row_of_the_tables_that_the_runs_do_not_bear_out_is_named(
    table_of, tmp_path, monkeypatch
):
    text = evidence.TABLES.read_text()
    cell = table_of().set_index("target").loc["mixture", "learn+KMC"]
    (line,) = (
        line for line in text.splitlines() if line.startswith("| mixture") and f" {cell} |" in line
    )
    monkeypatch.setattr(evidence, "TABLES", tmp_path / "README.md")
    evidence.TABLES.write_text(text)
    evidence.compare_tables()
    evidence.TABLES.write_text(text.replace(line, line.replace(f" {cell} |", " 0 / 0 / 0 |")))
    with pytest.raises(ValueError, match="other figures than peers.csv: mixture"):
        evidence.compare_tables()


def test_about_the_fewest_is_finite_and_at_most_a_fifth_more():
    others = pd.DataFrame({"a": [10.0, 10.0, np.inf, np.inf], "b": [20.0, 20.0, np.inf, np.inf]})
    assert evidence.n_about_fewest(pd.Series([12.0, 13.0, 99.0, np.inf]), others) == 2
