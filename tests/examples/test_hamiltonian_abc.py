"""Hamiltonian ABC and the benchmark that has it: the gradient is right, and the tables are made."""

import numpy as np
import pytest

from examples import hamiltonian_abc as example
from examples.benchmarks import abc as benchmark


def test_the_gradient_is_that_of_the_gaussian_at_the_observation():
    """With many simulations, whose first two moments are known."""
    sampler = example.HamiltonianABC(n_simulations=2000, n_directions=300)
    theta = sampler.observed - 1.0
    gradient = sampler.gradient(theta, np.random.default_rng(1))
    delta = example.DELTA * example.AXIS
    mean = theta + delta * np.sqrt(2 / np.pi)
    covariance = (
        np.eye(10) - np.outer(delta, delta) * 2 / np.pi
    ) / 10 + example.EPSILON**2 * np.eye(10)
    expected = theta / example.PRIOR_SD**2 - np.linalg.solve(covariance, sampler.observed - mean)
    # Of one of the 300 directions the sd is about |gradient|.
    error = np.linalg.norm(expected) / np.sqrt(300)
    assert np.all(np.abs(gradient - expected) < 4.5 * error)
    assert np.linalg.norm(expected) > 20 * error / np.sqrt(10)


def test_the_example_runs(capsys):
    example.main(["--quick", "--draws", "100"])
    printed = capsys.readouterr().out
    assert "exact" in printed and "step 0.05" in printed


def test_tables_and_goals():
    def row(name, cost, sd=1.0, error=1.0):
        return benchmark.Figures(name, 10, sd, error, 5.0, cost)

    reference = row("KMC", 100.0)
    assert benchmark.cells(row("x", 420.0, error=9.0), reference)[2:] == [
        "**1.00**",
        "**9.0**",
        "5.0",
        "420",
        "4.2",
    ]
    rows = [
        reference,
        row("random walk, scale 1", 900.0),
        row("random walk, scale 0.8", 700.0),
        row("Hamiltonian ABC, step 0.1", 200.0, sd=1.4),
        row("Hamiltonian ABC, step 0.02", 1500.0),
    ]
    assert benchmark.goals(rows, reference) == [
        "KMC against random walk: 7.0 times fewer; 5 reached.",
        "KMC against Hamiltonian ABC: 15.0 times fewer; 20 not reached.",
    ]


def test_figures_of_exact_draws():
    rng = np.random.default_rng(2)
    exact = example.exact_posterior()
    chains = [
        benchmark.Chain(rng.multivariate_normal(exact.mean, exact.covariance, 500), 5000)
        for _ in range(2)
    ]
    figures = benchmark.figures("exact", 10, chains, exact)
    assert figures.sd == pytest.approx(1.0, abs=0.05)
    assert figures.error < 4.5
    assert 5 < figures.cost < 20


def test_arguments():
    options = benchmark.parse(["--samplers", "KMC,random walk", "--simulations", "3,10", "--quick"])
    assert options.samplers == ["KMC", "random walk"]
    assert options.simulations == [3, 10]
    with pytest.raises(SystemExit):
        benchmark.parse(["--samplers", "KMCBig"])


def test_the_benchmark_runs(capsys):
    arguments = ["--quick", "--samplers", "random walk,Hamiltonian ABC"]
    rows = benchmark.main([*arguments, "--simulations", "3"])
    assert len(rows) == 3 + 2
    assert "| random walk, scale 0.8 | 3 |" in capsys.readouterr().out
