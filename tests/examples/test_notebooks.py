"""Notebooks: they run on this line of PyMC, and are committed as a reader wants to see them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import pymc_kmc as kmc
from tests.snippets import run_quickly

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.ipynb")
}
GLASS = kmc.datasets.load_glass()
SMALL_GLASS = replace(GLASS, data=GLASS.data[::4], target=GLASS.target[::4], y=GLASS.y[::4])
# What makes a notebook quick besides fewer iterations: pieces of its code, and their replacements.
QUICK = {
    # What KMC() would learn before its chains takes a thousand evaluations, and fits of as many.
    "glass": {
        "kmc.datasets.load_glass()": "SMALL_GLASS",
        "step=step()": "step=step(*[kmc.learn(max_evaluations=120)] * (step is kmc.KMC))",
    },
    "hours_a_run": {
        "tune=50": "tune=9",
        "draws=200": "draws=9",
        "chains=2": "chains=1",
        "n_before_kill=200": "n_before_kill=40",
    },
    "noisy_likelihood": {"[1, 2, 4, 8, 16]": "[1]", "n=400": "n=20"},
    "particle_filter": {"n=300": "n=20"},
    "partial_posteriors": {
        "N = 2**22": "N = 2**11",
        '"tune": 500, "draws": 1000': '"tune": 50, "draws": 50',
        "n_replications=32": "n_replications=2",
        "n_replications=5": "n_replications=2",
    },
    "regressions_with_gradients": {"    run(asked, 20, 20, seed=2)\n": ""},
    "simulators": {"[2.0, 1.0, 0.5, 0.25]": "[2.0]"},
    # Where estimates fail is learned in "where_a_solver_fails".
    "when_it_goes_wrong": {
        "run(root(False)), run(root(True))": (
            "run(root(False), lambda: kmc.KMC(learn=False)), "
            "run(root(True), lambda: kmc.KMC(learn=False))"
        )
    },
}


def cells(name, kind):
    return [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == kind]


def text(cell):
    return "".join(cell["source"])


def outputs(name):
    return [output for cell in cells(name, "code") for output in cell["outputs"]]


@pytest.mark.documentation
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_it_runs(name, monkeypatch):
    monkeypatch.chdir(Path.cwd())  # back from where a notebook has gone
    code = [text(cell) for cell in cells(name, "code")]
    run_quickly(code, name, QUICK.get(name, {}).items(), SMALL_GLASS=SMALL_GLASS)
    assert not plt.get_fignums(), "a picture is made and not shown"


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_outputs_are_of_one_clean_run(name):
    counts = [cell["execution_count"] for cell in cells(name, "code")]
    assert counts == list(range(1, len(counts) + 1))
    for output in outputs(name):
        assert output["output_type"] in ("stream", "display_data", "execute_result")
        assert output.get("name") != "stderr"
    written = json.dumps(outputs(name))
    assert not re.search(r"[\"\s](/home|/root|/tmp|/work|[A-Z]:\\\\)", written)


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_it_asks_shows_and_leads_on(name):
    first, last = (text(cells(name, "markdown")[i]) for i in (0, -1))
    assert first.startswith("# ") and "?" in first
    assert "## Next\n\n- " in last
    assert any("image/png" in output.get("data", {}) for output in outputs(name))


def test_there_are_notebooks():
    assert set(QUICK) <= set(NOTEBOOKS)
