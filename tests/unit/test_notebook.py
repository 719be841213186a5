"""Results in HTML: text stays text, tables are whole and scroll."""

from html.parser import HTMLParser

import numpy as np
import pandas as pd

from pymc_kmc import notebook


class Cells(HTMLParser):
    """Collects the cells of tables, row by row, and the classes around the table."""

    def __init__(self):
        super().__init__()
        self.rows, self.classes = [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "div":
            self.classes.append(attrs["class"])

    def handle_data(self, data):
        self.rows[-1][-1] += data


def test_a_table_has_every_cell():
    frame = pd.DataFrame({"a": [1234.56, np.nan], "<b>": [1, 0.25]}, index=["x & y", "z"])
    cells = Cells()
    cells.feed(notebook.table(frame, digits=3))
    assert cells.rows == [["", "a", "<b>"], ["x & y", "1235", "1"], ["z", "", "0.25"]]
    assert cells.classes == ["wide"]


def test_text_is_escaped():
    text = "a < b & c"
    html = (
        notebook.paragraph(text)
        + notebook.sentences([text])
        + notebook.figures([(text, text, True)])
    )
    assert html.count("a &lt; b &amp; c") == 4 and text not in html


def test_nothing_to_say():
    assert notebook.sentences([]) == ""
    assert notebook.sentences([], if_none="All is well.") == "<p>All is well.</p>"


def test_the_style_is_for_results_alone():
    rules = notebook.STYLE.replace("\n  ", " ").strip().splitlines()
    for rule in rules:
        selectors = rule.split("{")[0].split(",")
        assert all(selector.strip().startswith(".kmc-result") for selector in selectors)
    assert notebook.STYLE in notebook.result("x")
