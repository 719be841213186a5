"""Settings of the documentation: `make docs` builds it into docs/_build/html."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]

import inventories  # noqa: E402

import pymc_kmc  # noqa: E402

project = "pymc_kmc"
author = "The pymc_kmc developers"
copyright = author
version = release = pymc_kmc.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "api",
    "mathml",
    "notebooks",
]
exclude_patterns = ["_build", "_ext", "_static"]
templates_path = ["_templates"]

# Pages and notebooks. Notebooks are shown with the outputs that they were committed with.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_update_mathjax = False
nb_execution_mode = "off"
nb_ipywidgets_js = {}

# The API, from docstrings. Their section "Parameters" has the types.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Links to other projects. Their inventories are fetched where DOCS_INVENTORIES is set, and what
# can't be fetched is done without: another project's name is a link where its inventory is known,
# and plain text elsewhere.
intersphinx_mapping = inventories.fetch(
    {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "pymc": "https://www.pymc.io/projects/docs/en/stable/",
        "arviz": "https://python.arviz.org/en/stable/",
    },
    HERE / "_build" / "inventories",
)
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(pymc|pytensor|arviz|numpy|pandas|xarray|matplotlib|concurrent)\..*"),
    # What the package is made of, named in docstrings and shown to readers of the code alone.
    (
        r"py:.*",
        r"pymc_kmc\.(_compat|adaptation|advice|diagnostics|dynamics|likelihoods|model|moves|numerics|partial|steps)"
        r"(\..*)?",
    ),
]

# Code side by side, long equations and pictures need the room of the column on the right.
WIDE = ["coming_from", "how_it_works", "notebooks/index"]
WIDE += [f"notebooks/{path.stem}" for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")]

html_theme = "pydata_sphinx_theme"
html_title = "pymc_kmc"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"]} | dict.fromkeys(WIDE, []),
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "tango",
}
html_sidebars = {"index": [], "changelog": []}
