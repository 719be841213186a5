"""The gallery: a page for each notebook of examples/notebooks, and a card for each on one page.

Notebooks are copied into docs/notebooks/ before Sphinx looks for pages. A card has the notebook's
title, its first paragraph and its first picture.
"""

import base64
import json
import re
import shutil
from pathlib import Path

HEAD = """# Gallery

Each notebook opens with a question and ends with what to do next. They are in
`examples/notebooks/` of the repository, and are shown here with the outputs that they were
committed with.

::::{grid} 1 2 2 3
:gutter: 3

"""
CARD = """:::{{grid-item-card}} {title}
:link: {name}
:link-type: doc
{picture}
{text}

```{{card-footer}}
{{download}}`{name}.ipynb <{name}.ipynb>`
```
:::

"""
TREE = """::::

```{{toctree}}
:hidden:

{names}
```
"""


def title(notebook):
    """Return the first heading of a notebook."""
    for cell in notebook["cells"]:
        found = re.search(r"^# +(.+)$", "".join(cell["source"]), flags=re.MULTILINE)
        if cell["cell_type"] == "markdown" and found:
            return found[1]
    raise ValueError("a notebook needs a first cell with a heading, '# ...'")


def first_paragraph(notebook):
    """Return the first text under the heading, in one line."""
    source = "".join(notebook["cells"][0]["source"])
    paragraphs = [part for part in re.split(r"\n\s*\n", source) if not part.startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


def first_picture(notebook):
    """Return the bytes of the first PNG among the outputs, or None."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                return base64.b64decode("".join(output["data"]["image/png"]))
    return None


def write_gallery(source, folder):
    """Copy the notebooks of `source` into `folder`, with a page of cards.

    Returns
    -------
    list of str
        Names of the notebooks, in the order of the cards.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cards, names = [], []
    for path in sorted(source.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        shutil.copy(path, folder)
        png = first_picture(notebook)
        picture = ""
        if png is not None:
            (folder / f"{path.stem}.png").write_bytes(png)
            picture = f":img-top: {path.stem}.png\n"
        names.append(path.stem)
        card = CARD.format(
            name=path.stem,
            title=title(notebook),
            text=first_paragraph(notebook),
            picture=picture,
        )
        cards.append(card)
    page = HEAD + "".join(cards) + TREE.format(names="\n".join(names))
    (folder / "index.md").write_text(page, encoding="utf-8")
    return names


def write_pages(app, config):
    source = Path(app.srcdir)
    write_gallery(source.parent / "examples" / "notebooks", source / "notebooks")


def setup(app):
    app.connect("config-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
