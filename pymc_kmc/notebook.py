"""Results in HTML for a notebook: figures, sentences and tables; all text is escaped here alone.

Colours are the notebook's own or half-transparent, fit for a light and a dark theme.
"""

from collections.abc import Iterable
from html import escape

import numpy as np
import pandas as pd

# Numbers from this size on are written with an exponent.
LARGEST_WHOLE = 1e6

STYLE = """
.kmc-result {max-width: 60em; line-height: 1.45; color: inherit}
.kmc-result p {margin: .5em 0}
.kmc-result .figures {display: flex; flex-wrap: wrap; gap: .5em}
.kmc-result .figures span {padding: .25em .7em; border-radius: .4em; border-left: .3em solid}
.kmc-result .figures b {font-size: 115%}
.kmc-result .figures .good {background: rgba(46, 160, 67, .15); border-color: rgb(46, 160, 67)}
.kmc-result .figures .bad {background: rgba(219, 97, 36, .18); border-color: rgb(219, 97, 36)}
.kmc-result ul {margin: .8em 0; padding-left: 1.4em}
.kmc-result li {margin: .35em 0}
.kmc-result .wide {overflow-x: auto; margin: .5em 0}
.kmc-result table {display: table; width: auto; margin: 0; border: 0; border-collapse: collapse;
  color: inherit; background: none; font-size: 90%; font-variant-numeric: tabular-nums}
.kmc-result th, .kmc-result td {text-align: right; padding: .2em .8em; border: 0; color: inherit;
  background: none; white-space: nowrap}
.kmc-result th:first-child {text-align: left; font-weight: normal; min-width: 0; padding-left: 0}
.kmc-result tr {border: 0; border-bottom: 1px solid rgba(128, 128, 128, .3); background: none}
"""


def result(*parts: str) -> str:
    return f'<div class="kmc-result"><style>{STYLE}</style>{"".join(parts)}</div>'


def paragraph(text: str, is_title: bool = False) -> str:
    return f"<p><b>{escape(text)}</b></p>" if is_title else f"<p>{escape(text)}</p>"


def figures(items: Iterable[tuple[str, str, bool]]) -> str:
    """Return figures side by side, each with its number, its label and whether it is good."""
    spans = "".join(
        f'<span class="{"good" if is_good else "bad"}"><b>{escape(number)}</b> '
        f"{escape(label)}</span>"
        for number, label, is_good in items
    )
    return f'<div class="figures">{spans}</div>'


def sentences(lines: Iterable[str], if_none: str = "") -> str:
    """Return a list of sentences, or `if_none` if there are none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    if items:
        return f"<ul>{items}</ul>"
    return paragraph(if_none) if if_none else ""


def table(frame: pd.DataFrame, digits: int = 3) -> str:
    """Return a table of numbers, NaN as an empty cell; a wide one scrolls by itself."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in frame.columns)
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th>"
        + "".join(f"<td>{number(value, digits)}</td>" for value in values)
        + "</tr>"
        for name, values in zip(frame.index, frame.to_numpy(dtype=float), strict=True)
    )
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def element_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return names of an array's elements, as of x[0, 1]; a number has the array's."""
    return [f"{name}[{', '.join(map(str, i))}]" if i else name for i in np.ndindex(*shape)]


def number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, a count as a whole number, NaN as ""."""
    if np.isnan(value):
        return ""
    is_count = 10**digits <= abs(value) < LARGEST_WHOLE
    return f"{value:.0f}" if is_count else f"{value:.{digits}g}"
