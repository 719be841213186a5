"""The README: its quick start runs as printed, its commands exist."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from tests.steps import STEPS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def section(heading):
    start = README.index(heading)
    return README[start : README.index("\n## ", start + 1)]


def quick_start():
    (block,) = [block for block in BLOCKS if "az.summary" in block]
    return block


def run_short(block, namespace):
    short, n_replaced = re.subn(
        r"tune=\d+, draws=\d+, chains=2",
        "tune=150, draws=50, chains=2, cores=1, progressbar=False",
        block,
    )
    assert n_replaced == 1
    exec(compile(short, "README.md", "exec"), namespace)


def test_quick_start_runs(capsys):
    matplotlib.use("Agg")
    namespace = {}
    run_short(quick_start(), namespace)
    assert namespace["idata"].posterior["spread"].shape == (2, 50)
    printed = capsys.readouterr().out
    assert "intercept" in printed
    assert "spread" in printed


def test_the_simulator_runs():
    """It goes on where the quick start ends."""
    (block,) = [block for block in BLOCKS if "ABCPotential(" in block]
    namespace = {"np": np, "pm": pm, "kmc": kmc, "data_rng": np.random.default_rng(1)}
    run_short(block, namespace)
    assert np.ptp(namespace["idata"].posterior["shape"].values) > 0


def test_every_block_is_python():
    assert len(BLOCKS) >= 2
    for block in BLOCKS:
        compile(block, "README.md", "exec")


def test_commands_are_in_the_makefile():
    targets = re.findall(
        r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    commands = set(re.findall(r"make (demo|test|lint|\w+)(?=`| {2,})", README))
    assert {"demo", "test"} <= commands
    assert commands <= set(targets)


def test_benchmarks_are_there():
    named = re.findall(r"^\| `(\w+)` \|", section("## Installing"), flags=re.MULTILINE)
    assert set(named) == {
        "surrogates",
        "cold_start",
        "default",
        "oracle",
        "pseudo_marginal",
        "replicates",
        "executors",
        "overhead",
        "glass",
        "logistic",
        "abc",
    }
    for name in named:
        assert (ROOT / "examples" / "benchmarks" / f"{name}.py").is_file(), name


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `(\w+)` \|", section("## Which sampler"), flags=re.M)
)
def test_samplers_of_the_table_are_there(name):
    assert hasattr(kmc, name)


def test_statistics_of_the_table_are_the_steps():
    lines = section("## Sample statistics").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    documented = set(re.findall(r"`(\w+)`", " ".join(rows))) - {"lp"}
    with pm.Model():
        pm.Normal("x")
        declared = set()
        for name in STEPS:
            step = STEPS[name]()
            declared |= set(step.stats_dtypes_shapes)
    # What PyMC and every step add: shown elsewhere.
    assert documented == declared - {"warning", "tune"}
