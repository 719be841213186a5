"""Hares and lynx: the model is Carpenter's, what is counted is what was called, and it runs."""

import re

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from examples import ode_lotka_volterra as example
from examples.benchmarks import lotka_volterra as reference
from tests.scripts import run_quickly

# Unconstrained values of the model, in the order of the benchmark's x.
VALUES = [f"{name}_log__" for name in ("hares_1900", "lynx_1900", "sigma")]
VALUES = [f"{name}_interval__" for name in example.PARAMETERS[:4]] + VALUES


def point(x):
    """A point of the model at x (8,), the benchmark's coordinates."""
    return dict(zip(VALUES, [*x[:6], x[6:]], strict=True))


@pytest.fixture(scope="module")
def model():
    return example.build_model()


def test_the_data_are_the_benchmarks():
    np.testing.assert_array_equal(np.log(example.PELTS), reference.LOG_COUNTS)


def test_solution_is_the_benchmarks():
    x = reference.NEAR_THE_MODE
    found = example.log_populations(*np.exp(x[:6]))
    expected = reference.solve(x, 0, 21, reference.STEPS_A_YEAR)[:, :, 0]
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_log_density_is_carpenters(model):
    """Up to a constant; both solutions have errors, which a residual multiplies."""
    rng = np.random.default_rng(1)
    points = reference.NEAR_THE_MODE + 0.1 * rng.standard_normal((5, 8))
    compiled = model.compile_logp(mode="FAST_COMPILE")
    found = np.array([compiled(point(x)) for x in points])
    expected = reference.log_density(points)
    assert np.ptp(expected) > 1.0
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=0.01)


def test_where_the_solver_gives_up_the_density_is_zero():
    model = example.build_model()  # each warns once
    x = reference.NEAR_THE_MODE.copy()
    x[0], x[3] = np.log(515.0), np.log(5e-9)
    with pytest.raises(OverflowError):
        example.log_populations(*np.exp(x[:6]))
    with pytest.warns(UserWarning, match="OverflowError"):
        assert model.compile_logp(mode="FAST_COMPILE")(point(x)) == -np.inf


@pytest.mark.documentation
def test_meter_counts_what_is_called():
    """Tuning pays for compilation."""
    with example.build_model() as model:
        meter = example.Meter(model)
        pm.sample(
            step=kmc.AdaptiveMetropolis(),
            tune=7,
            draws=5,
            chains=2,
            cores=1,
            callback=meter,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    tuning, drawing = meter.spent[True], meter.spent[False]
    assert drawing[0] == 2 * 5
    # The starting point of each chain may count, and what finds the scales of eight coordinates.
    assert 2 * 7 <= tuning[0] <= 2 * (8 + 8 * 20)
    assert tuning[1] > drawing[1] > 0
    (box,) = kmc.black_boxes(model)
    # A black box is tried out twice when the model is built.
    assert tuning[0] + drawing[0] == box.n_evaluations - 2


class Drawn(example.Run):
    """A run of given draws."""

    draws = np.random.default_rng(2).standard_normal((8, 2, 500))


def test_wanted_is_what_was_spent_before_and_drawing_in_proportion():
    run = Drawn("x", None, np.array([300.0, 20.0]), np.array([1000.0, 5.0]))
    assert run.n_effective() == pytest.approx(1000, rel=0.3)
    expected = 300 + 1000 * example.WANTED / run.n_effective(), 20 + 2000 / run.n_effective()
    assert tuple(run.wanted) == pytest.approx(expected)
    assert run.curve[-1] == pytest.approx([1300, run.n_effective()])
    assert run.curve[0] == pytest.approx([400, run.n_effective(50)])


def test_chains_that_differ_have_no_price(capsys):
    run = Drawn("x", None, np.array([300.0, 20.0]), np.array([1000.0, 5.0]))
    example.print_cost([run])
    assert "chains differ" not in capsys.readouterr().out
    run.draws = Drawn.draws.copy()
    run.draws[3, 1] += 2.0
    example.print_cost([run])
    assert "chains differ" in capsys.readouterr().out


@pytest.mark.documentation
def test_the_script_runs(tmp_path):
    """The mean of alpha is Carpenter's, .55, within ten standard errors."""
    printed = run_quickly("ode_lotka_volterra.py", tmp_path)
    assert "populations (42 outputs)" in printed
    (mean,) = re.findall(r"^alpha +([\d.]+)", printed, flags=re.M)
    assert float(mean) == pytest.approx(0.55, abs=0.05)
    (evaluations,) = re.findall(r"KMC\(learned\) +([\d,]+) \+ ([\d,]+)", printed)
    before, drawing = (int(n.replace(",", "")) for n in evaluations)
    assert before < 500 and drawing <= 200


def test_what_a_population_spends_is_split_by_its_iterations(model):
    meter = example.Meter(model)
    meter.box.n_evaluations += 90
    meter.end(example.Length(tune=10, draws=20))
    spent = [meter.spent[is_tuning][0] for is_tuning in (True, False)]
    assert spent == pytest.approx([30.0, 60.0])


def test_the_gallerys_samplers_are_added():
    options = example.parse_arguments(["--quick", "--gallery"])
    assert list(options.lengths) == [*example.QUICK_LENGTHS, *example.GALLERY_LENGTHS]
    assert set(options.lengths) == {example.LEARNED, example.SMC, *example.STEPS}
