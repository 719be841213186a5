"""Pages of docs/: their code is Python, and what it names is there."""

import re
from pathlib import Path

import pytest

import pymc_kmc as kmc

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page(page):
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")
        for name in re.findall(r"\bkmc((?:\.\w+)+)", block):
            found = kmc
            for part in name.split(".")[1:]:
                assert hasattr(found, part), f"kmc{name} of {page} is missing"
                found = getattr(found, part)


def test_every_plot_is_on_the_page():
    rows = re.findall(r"^\| `(plot_\w+)` \|", PAGES["plots.md"], flags=re.MULTILINE)
    assert sorted(rows) == sorted(kmc.plots.__all__)


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([\w/.-]+)\)", text):
            assert (DOCS / target).exists(), f"{target} of {page}"
