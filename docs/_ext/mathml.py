r"""Equations as MathML: part of the page, drawn by the browser, with no script and nothing to load.

LaTeX is converted by docutils. A command that docutils doesn't know is a warning, with which the
build fails: no broken equation is published.
"""

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from latex import readable
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


def mathml(node, as_block):
    """Convert a node's LaTeX."""
    try:
        return str(latex2mathml.tex2mathml(readable(node.astext()), as_block=as_block))
    except (MathError, ValueError) as error:
        LOGGER.warning("equation %r: %s", node.astext(), error, location=node)
        return ""


def visit_inline(self, node):
    self.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_block(self, node):
    self.body.append(f'<div class="equation">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
