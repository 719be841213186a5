"""Python code in Markdown pages, run as printed but for the length of chains."""

import re
from pathlib import Path

import pymc as pm

ROOT = Path(__file__).parents[1]
# What every run of `pymc.sample` in a page is cut down to.
SHORT = {
    "tune": 150,
    "draws": 50,
    "chains": 2,
    "cores": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def python_blocks(path):
    """Return the Python code blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), flags=re.DOTALL | re.M)


def run_blocks(blocks, name, monkeypatch, namespace=None, quicker=()):
    """Run blocks one after another in one namespace, with short chains.

    Parameters
    ----------
    blocks : iterable of str
    name : str
        Name of the page, for tracebacks.
    monkeypatch : pytest.MonkeyPatch
    namespace : dict, optional
        What is defined before.
    quicker : iterable of (str, str)
        Text of the page that takes long, each exactly once, and what runs in its place.

    Returns
    -------
    dict
        What is defined afterwards.
    """
    sample = pm.sample

    def sample_shortly(draws=1000, **options):
        return sample(**options | SHORT)

    monkeypatch.setattr(pm, "sample", sample_shortly)
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    blocks = list(blocks)
    for long, short in quicker:
        assert sum(block.count(long) for block in blocks) == 1, long
        blocks = [block.replace(long, short) for block in blocks]
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)
    return namespace
