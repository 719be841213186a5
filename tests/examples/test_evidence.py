"""docs/evidence.md is what its command writes, and pages still say what it says that they claim."""

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
    with pytest.raises(ValueError, match="README.md no longer says '611 to 911"):
        evidence.claims()
