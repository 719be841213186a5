"""What `docs/exactness.md` promises of same seeds where there are gradients."""

import os
import subprocess
import sys

import pytest

from tests.snippets import ROOT

REMEDY = 'kmc.GadMALA(compile_kwargs={"mode": "CVM"})'
# Too many terms for sums that happen to be rounded alike: with PyMC 6's default backend the two
# runs differ.
CODE = f"""
import numpy as np
import pymc as pm
import pymc_kmc as kmc

rng = np.random.default_rng(0)
X = rng.standard_normal((100, 25))
with pm.Model() as model:
    b = pm.Normal("b", shape=25, initval=np.zeros(25))
    pm.Bernoulli("y", logit_p=X @ b, observed=rng.random(100) < 0.5)
    step = {REMEDY}
step.set_rng(np.random.default_rng(1))
point = {{"b": np.zeros(25)}}
for _ in range(1000):
    point, _ = step.step(point)
print(point["b"].tobytes().hex())
"""


def test_the_documentation_names_the_remedy():
    page = ROOT / "docs" / "exactness.md"
    if not page.exists():
        pytest.skip("The documentation isn't part of this tree.")
    assert REMEDY in page.read_text(encoding="utf-8")


@pytest.mark.documentation
def test_the_run_that_compiles_agrees_with_the_next_one(tmp_path):
    environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}"}
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    first, second = (
        subprocess.run(
            command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )
    assert len(first.strip()) == 25 * 16 and first == second
