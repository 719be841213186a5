"""What README and the documentation claim, by which command, and what falls short: one page.

    python -m examples.benchmarks.evidence           # writes docs/evidence.md
    python -m examples.benchmarks.evidence --check   # says what has changed, and writes nothing

The claims are rows of `data/claims.csv`. Each has the words of its page that state it: a page that
no longer says them is an error. So is a figure that isn't what `results/peers.csv` says, here (its
name is in the column "computed") or in README's tables of the peers. Figures of papers are medians
of rows of `examples/paper/results`.
"""

import argparse
import functools
from pathlib import Path

import numpy as np
import pandas as pd

from examples.benchmarks import peers
from examples.benchmarks.targets import markdown

ROOT = Path(__file__).parents[2]
DATA, PAPER = ROOT / "examples" / "benchmarks" / "data", ROOT / "examples" / "paper" / "results"
PAGE = ROOT / "docs" / "evidence.md"
#: The page with the tables of the peers, and their columns.
TABLES = ROOT / "examples" / "benchmarks" / "README.md"
COLUMNS = "learn", "learn+KMC", "PyVBMC", "nautilus"
#: Targets on which PyVBMC needs fewer evaluations than `learn`, or about as many.
CONTESTED = "dose-response", "time-series", "mixture", "two-modes", "survival"
#: As many times the fewest evaluations are about the fewest.
ABOUT = 1.2
#: Seconds with a decimal.
TENTHS = 9.95
#: When the papers' figures were made, where it wasn't `MADE`.
MADE = "2026-11-28"
LATER = dict.fromkeys(
    ("gad-tables", "kmc-figure-2", "kmc-figure-4-left", "kmc-figure-5"), "2026-11-29"
)
BEGIN = """# What is claimed, and how it was measured

The main figures of README and these pages, the command that makes each, and what falls short.
"Busy" cores did other work beside it; seconds of another computer differ. On a virtual clock an
evaluation takes 10 seconds. Dates are those on which a figure came into its page.

    python -m examples.benchmarks.evidence

## What these pages claim

"""
OF_PAPERS = """
## Figures of the papers

`python -m examples.paper` and a name makes each, here on two busy cores. Medians of runs, beside
the published ones. `examples/paper/README.md` has means of all, and says why some differ.

"""
SHORT = """
## What falls short

"""


def squeezed(text):
    """Return a text with single spaces: pages break lines anywhere."""
    return " ".join(text.split())


def runs_of_peers(noise):
    """Return the rows of `results/peers.csv` with noise of a standard deviation."""
    results = pd.read_csv(peers.RESULTS / "peers.csv")
    return results[results["noise"] == noise]


@functools.cache
def evaluations_of_peers(noise):
    return peers.evaluations(runs_of_peers(noise))


def until_close():
    """Return the evaluations until .1, a row a target and a column a peer; inf is never."""
    cells = evaluations_of_peers(0).set_index("target")
    last = cells.map(lambda cell: cell.split(" / ")[-1] or "-")
    return last.replace("-", "inf").astype(float)


def n_about_fewest(one, others):
    """Return on how many targets a peer needs at most `ABOUT` times the fewest evaluations."""
    return np.sum(np.isfinite(one) & (one <= ABOUT * others.min(axis=1)))


def decimals(number):
    return f"{number:.2f}".removeprefix("0")


def of_peers():
    """Return what `results/peers.csv` says, by the names that claims have for it."""
    close = until_close()
    elsewhere = close.drop(columns=["learn", "learn+KMC"])
    noisy = runs_of_peers(1).query("target == 'banana'").sort_values("evaluations")
    noisy = noisy.groupby("peer")[["mean", "sd"]].last()
    errors = noisy.loc[["learn", "learn+KMC"]].max(axis=1)
    return {
        "until .1": ", ".join(f"{close.loc[name, 'learn']:.0f}" for name in CONTESTED),
        "fewest of learn": str(n_about_fewest(close["learn"], close)),
        "fewest of draws": str(n_about_fewest(close["learn+KMC"], elsewhere)),
        "noisy banana": ", ".join(map(decimals, errors)),
    }


def rounded(seconds):
    """Return seconds as tables have them: two digits, all before the point, "-" for never."""
    digits = f"{seconds:.1f}" if seconds < TENTHS else f"{seconds:.0f}"
    return digits if np.isfinite(seconds) else "-"


@functools.cache
def seconds_of_peers():
    """Return cells of own seconds / until .1 at 1 ms / at 100 ms, medians; a row a target."""
    costs = ["own s", "1 ms", "100 ms"]
    runs = peers.seconds(runs_of_peers(0))
    runs[costs] = runs[costs].replace("-", "inf").astype(float)
    middle = runs.groupby(["target", "peer"], sort=False)[costs].median()
    return middle.map(rounded).agg(" / ".join, axis=1).unstack().reset_index()


def rows_of(text):
    """Return the rows of a text's tables: cells without brackets and what follows a comma."""
    lines = (line.strip("| ") for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip(" ()").split(",")[0] for cell in line.split("|")] for line in lines]


def compare_tables():
    """Raise a ValueError that names a row of the peers that `TABLES` hasn't, or has otherwise."""
    known = {tuple(row[: 1 + len(COLUMNS)]) for row in rows_of(TABLES.read_text())}
    for table in (*map(evaluations_of_peers, (0, 1, 2)), seconds_of_peers()):
        for row in table[["target", *COLUMNS]].fillna("").to_numpy():
            if tuple(row) not in known:
                raise ValueError(f"{TABLES} has other figures than peers.csv: {' | '.join(row)}")


def claims():
    """Return the claims, a table of strings.

    A ValueError names one that its page doesn't make, or that `results/peers.csv` doesn't bear out.
    """
    table = pd.read_csv(DATA / "claims.csv", dtype=str, keep_default_na=False)
    computed = of_peers()
    for row in table.itertuples():
        if squeezed(row.text) not in squeezed((ROOT / row.page).read_text()):
            raise ValueError(f"{row.page} no longer says {row.text!r}: see {DATA / 'claims.csv'}")
        if row.computed and row.figure != computed[row.computed]:
            raise ValueError(f"{row.claim}: {row.figure} is {computed[row.computed]} by peers.csv")
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
    compare_tables()
    made, papers = claims(), of_papers()
    rows = [
        [row.claim, cells(row.figure), row.to_reach, f"`{row.command}`" if row.command else "none"]
        + [row.machine, row.date, link(Path(row.page))]
        for row in made.itertuples()
    ]
    header = ["claim", "figure", "to reach", "command", "machine", "date", "page"]
    text = BEGIN + markdown(header, rows)
    rows = [
        [row.claim, row.figure, row.published, row.to_reach, f"`{row.command}`"]
        + [LATER.get(row.csv, MADE)]
        for row in papers.itertuples()
    ]
    text += "\n" + OF_PAPERS
    text += markdown(["", "figure", "published", "to reach", "command", "date"], rows)
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
