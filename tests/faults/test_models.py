"""Random models: a step's target is the model's log density, and draws are what the model says.

Models are put together of distributions with every kind of transform, of shapes with no, one and
many values, and of chained parents; the step has some or all of the continuous variables, beside
PyMC's own for the others. `FAULTS_EXAMPLES=200 pytest tests/faults/test_models.py` tries more.
"""

import os

import hypothesis.strategies as st
import numpy as np
import pymc as pm
import pytensor
import pytest
from hypothesis import HealthCheck, given, settings
from pymc.pytensorf import floatX

from pymc_kmc.model.differentiable import DifferentiableTarget
from tests.steps import STEPS

# In `make test`: each compiles a model and samples it, half a second or two.
FEW = 12
N_EXAMPLES = int(os.environ.get("FAULTS_EXAMPLES", FEW))
ITERATIONS = 5
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (0,), (2, 0)])


def is_positive(x):
    return np.all(x > 0)


# Constructor and support of each, the parent being a number that the first argument may depend on.
DISTRIBUTIONS = {
    "normal": (lambda n, p, s: pm.Normal(n, p, 1.0, shape=s), np.isfinite),
    "student": (lambda n, p, s: pm.StudentT(n, 4.0, mu=p, shape=s), np.isfinite),
    "half-normal": (lambda n, p, s: pm.HalfNormal(n, 1.0 + p**2, shape=s), is_positive),
    "gamma": (lambda n, p, s: pm.Gamma(n, 2.0, 1.0 + p**2, shape=s), is_positive),
    "uniform": (
        lambda n, p, s: pm.Uniform(n, -1.0, 3.0, shape=s),
        lambda x: (-1.0 <= x) & (x <= 3.0),
    ),
    "interval": (
        lambda n, p, s: pm.TruncatedNormal(n, p, 1.0, lower=-2.0, shape=s),
        lambda x: x >= -2.0,
    ),
    "beta": (lambda n, p, s: pm.Beta(n, 2.0, 3.0, shape=s), lambda x: (0.0 <= x) & (x <= 1.0)),
    "dirichlet": (
        lambda n, p, s: pm.Dirichlet(n, np.ones(3), shape=(*s, 3)),
        lambda x: np.isclose(x.sum(axis=-1), 1.0),
    ),
    "ordered": (
        lambda n, p, s: pm.Normal(
            n,
            np.arange(3.0),
            1.0,
            shape=(*s, 3),
            transform=pm.distributions.transforms.ordered,
            initval=floatX(np.broadcast_to(np.arange(3.0), (*s, 3))),
        ),
        lambda x: np.all(np.diff(x, axis=-1) >= 0),
    ),
    "poisson": (lambda n, p, s: pm.Poisson(n, 2.0, shape=s), lambda x: x >= 0),
}
CONTINUOUS = [name for name in DISTRIBUTIONS if name != "poisson"]
OBSERVED = np.array([0.3, -0.2])


@st.composite
def recipes(draw):
    """Names of distributions with shapes, which of them the step has, it, and the precision."""
    kinds = [draw(st.sampled_from(CONTINUOUS))]
    kinds += draw(st.lists(st.sampled_from(list(DISTRIBUTIONS)), max_size=2))
    shapes = [draw(SHAPES) for _ in kinds]
    shapes[0] = draw(st.sampled_from([(), (1,), (3,)]))  # something to sample
    has_all, own = draw(st.booleans()), [0]
    for i, (kind, shape) in enumerate(zip(kinds[1:], shapes[1:], strict=True), start=1):
        # Variables without values too: PyMC gives what is left over to NUTS, which fails at them.
        if kind == "poisson":
            shapes[i] = tuple(max(1, n) for n in shape)
        elif has_all or 0 in shape or draw(st.booleans()):
            own.append(i)
    step = draw(st.sampled_from(["AdaptiveMetropolis", "GadMALA", "KMC"]))
    return kinds, shapes, own, step, draw(st.sampled_from(["float64", "float64", "float32"]))


def build(kinds, shapes):
    with pm.Model() as model:
        parent, variables = 0.0, []
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
            make, _ = DISTRIBUTIONS[kind]
            variables.append(make(f"{kind}_{i}", parent, shape))
            if kind != "poisson":
                parent = variables[-1].sum() * 0.3
        pm.Normal("y", parent, 1.0, observed=OBSERVED)
    return model, variables


@settings(
    max_examples=N_EXAMPLES,
    derandomize=N_EXAMPLES == FEW,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(recipes())
def test_targets_and_draws(recipe):
    kinds, shapes, own, step_name, precision = recipe
    with pytensor.config.change_flags(mode="FAST_COMPILE", floatX=precision):
        model, variables = build(kinds, shapes)
        with model:
            step = STEPS[step_name]([variables[i] for i in own])
            check_target(model, step.target, precision)
            rest = [v for i, v in enumerate(variables) if i not in own]
            others = [pm.Metropolis([v]) for v in rest]
            draws = pm.sample(
                ITERATIONS,
                tune=ITERATIONS,
                step=[step, *others] if others else step,
                chains=1,
                cores=1,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
                quiet=True,
            ).posterior
    for kind, shape, variable in zip(kinds, shapes, variables, strict=True):
        found = draws[variable.name].values
        event = (3,) if kind in ("dirichlet", "ordered") else ()
        assert found.shape == (1, ITERATIONS, *shape, *event)
        assert np.all(DISTRIBUTIONS[kind][1](found)) or not found.size


def check_target(model, target, precision):
    """The step's log density is `model.compile_logp`'s, wherever it is asked; its slope too."""
    start, rng = model.initial_point(), np.random.default_rng(0)
    expected = model.compile_logp()
    tolerance = 1e-10 if precision == "float64" else 1e-3
    for _ in range(3):
        point = {
            name: (value + 0.3 * rng.standard_normal(value.shape)).astype(value.dtype)
            if value.dtype.kind == "f"
            else value
            for name, value in start.items()
        }
        target.follow(point)
        position = target.position(point)
        found = target.evaluate(position, ()).log_density
        assert found == pytest.approx(float(expected(point)), rel=tolerance, abs=tolerance)
        if isinstance(target, DifferentiableTarget) and precision == "float64":
            step = 1e-6 * rng.standard_normal(position.shape)
            ends = [target.evaluate(position + sign * step, ()).log_density for sign in (1, -1)]
            slope = 2.0 * target.gradient(position) @ step
            assert ends[0] - ends[1] == pytest.approx(slope, rel=1e-3, abs=1e-8)
