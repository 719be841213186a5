"""The benchmark on posteriordb's models."""

import numpy as np
import pymc as pm
import pytest

from examples.benchmarks import posteriordb

pytestmark = [pytest.mark.documentation, pytest.mark.one_line]


def test_the_quick_table(capsys):
    posteriordb.main(["--quick"])
    assert "| gp | 1 of 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("name", posteriordb.MODELS)
def test_a_model_has_the_quantities_of_the_reference(name):
    with pm.Model() as model:
        posteriordb.MODELS[name]()
    assert np.isfinite(model.compile_logp()(model.initial_point()))
    draws = pm.draw([model[v.name] for v in model.free_RVs + model.deterministics], 3)
    names = [v.name for v in model.free_RVs + model.deterministics]
    posterior = {key: np.asarray(value)[None] for key, value in zip(names, draws, strict=True)}
    for label in posteriordb.PROBLEMS[name]["moments"]:
        assert posteriordb.quantity(posterior, label).shape == (1, 3)
