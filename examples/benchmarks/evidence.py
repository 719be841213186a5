"""What README and the documentation claim, by which command, and what falls short: one page.

    python -m examples.benchmarks.evidence           # writes docs/evidence.md
    python -m examples.benchmarks.evidence --check   # says what has changed, and writes nothing

The claims are rows of `data/claims.csv`. Each has the words of its page that state it: a page that
no longer says them is an error. Figures of papers are medians of rows of `examples/paper/results`.
"""

import argparse
from pathlib import Path

import pandas as pd

from examples.benchmarks.targets import markdown

ROOT = Path(__file__).parents[2]
DATA, PAPER = ROOT / "examples" / "benchmarks" / "data", ROOT / "examples" / "paper" / "results"
PAGE = ROOT / "docs" / "evidence.md"
BEGIN = """# What is claimed, and how it was measured

The main figures of README and these pages, the command that makes each, and what falls short.
Computers had two cores and did other work beside; seconds of another one differ. Dates are those on
which a figure came into its page.

    python -m examples.benchmarks.evidence

## What these pages claim

"""
OF_PAPERS = """
## Figures of the papers

`python -m examples.paper` and a name makes each. Medians of runs, beside the published ones.
`examples/paper/README.md` has all of them, and says why some differ.

"""
SHORT = """
## What falls short

"""


def squeezed(text):
    """Return a text with single spaces: pages break lines anywhere."""
    return " ".join(text.split())


def claims():
    """Return the claims, a table of strings; a ValueError names one that its page doesn't make."""
    table = pd.read_csv(DATA / "claims.csv", dtype=str, keep_default_na=False)
    for row in table.itertuples():
        if squeezed(row.text) not in squeezed((ROOT / row.page).read_text()):
            raise ValueError(f"{row.page} no longer says {row.text!r}: see {DATA / 'claims.csv'}")
    return table


def of_papers():
    """Return the papers' figures, a table of strings."""
    table = pd.read_csv(DATA / "paper_claims.csv", dtype=str, keep_default_na=False)
    table["figure"] = [
        f"{pd.read_csv(PAPER / f'{row.csv}.csv').query(row.query)[row.column].median():.3g}"
        for row in table.itertuples()
    ]
    return table


def cells(text):
    return text.replace("|", "").strip()


def page():
    """Return the page's text."""
    made, papers = claims(), of_papers()
    rows = [
        [row.claim, cells(row.figure), row.to_reach, f"`{row.command}`" if row.command else "none"]
        + [row.date, link(Path(row.page))]
        for row in made.itertuples()
    ]
    text = BEGIN + markdown(["claim", "figure", "to reach", "command", "date", "page"], rows)
    rows = [
        [row.claim, row.figure, row.published, row.to_reach, f"`{row.command}`"]
        for row in papers.itertuples()
    ]
    text += "\n" + OF_PAPERS
    text += markdown(["", "figure", "published", "to reach", "command"], rows)
    short = [f"- {row.claim}: {row.figure}; {row.falls_short}." for row in made.itertuples()]
    short = [line for line, row in zip(short, made.itertuples(), strict=True) if row.falls_short]
    short += [
        f"- {row.claim}: {row.figure}, {row.to_reach} was to be reached."
        for row in papers.itertuples()
        if row.to_reach and float(row.figure) < float(row.to_reach)
    ]
    return text + "\n" + SHORT + "\n".join(short) + "\n"


def link(page):
    """Return the name of a page, with a link where the documentation has it."""
    return f"[{page.stem}]({page.name})" if page.parent.name == "docs" else str(page)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    text = page()
    if not options.check:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        raise SystemExit("docs/evidence.md isn't what its command writes: run it without --check")


if __name__ == "__main__":
    main()
