"""Paths are Hamilton's, by a leapfrog of the test's own; acceptance is the target's."""

import numpy as np
import pytest

import pymc_kmc as kmc
from pymc_kmc.numerics.samples import shrunk_covariance
from tests.plots import line, panels_of

NAMES = ("trajectories", "acceptance")


class Wrong:
    """A surrogate of a standard normal that is far too narrow in its last coordinate."""

    n_features_in_ = 3
    PRECISION = np.array([1.0, 1.0, 20.0])

    def log_density(self, X):
        return -0.5 * np.sum(self.PRECISION * X**2, axis=-1)

    def gradient(self, X):
        return -self.PRECISION * X


def target(x):
    return -0.5 * float(x @ x)


def leapfrog(gradient, x, p, covariance, step_size, n_steps):
    """Positions and kinetic energies, the start included."""
    positions, energies = [x], [0.5 * p @ covariance @ p]
    for _ in range(n_steps):
        p = p + 0.5 * step_size * gradient(x)
        x = x + step_size * covariance @ p
        p = p + 0.5 * step_size * gradient(x)
        positions.append(x)
        energies.append(0.5 * p @ covariance @ p)
    return np.array(positions), np.array(energies)


@pytest.mark.parametrize("kind", ["surrogate", "target"])
def test_paths_and_acceptance(curved, kind):
    idata, _ = curved
    result = kmc.plots.plot_trajectories(
        Wrong(), idata, log_density=target, n_trajectories=1, n_steps=20, step_size=0.2
    )
    paths, acceptance = panels_of(result, *NAMES)
    draws = np.column_stack([idata.posterior[name].values.ravel() for name in ("x", "y", "s")])
    covariance = shrunk_covariance(draws)
    start = line(paths, "starts").ravel()
    (index,) = np.flatnonzero(np.all(draws[:, :2] == start, axis=1))[:1]
    normal = np.random.default_rng(0).standard_normal(3)
    momentum = np.linalg.solve(np.linalg.cholesky(covariance).T, normal)
    gradient = Wrong().gradient if kind == "surrogate" else (lambda x: -x)
    positions, energies = leapfrog(gradient, draws[index], momentum, covariance, 0.2, 20)
    np.testing.assert_allclose(line(paths, f"on the {kind}").T, positions[:, :2], atol=1e-5)
    height = np.array([target(x) for x in positions]) - energies
    steps, rates = line(acceptance, f"on the {kind}")
    np.testing.assert_array_equal(steps, np.arange(21))
    np.testing.assert_allclose(rates, np.exp(np.minimum(0.0, height - height[0])), atol=1e-5)
    assert kind == "target" or rates.min() < 0.99


def test_a_step_is_beside_its_own_target(curved):
    """KMC's surrogate resembles the model's log density: what it proposes is accepted."""
    idata, step = curved
    before = step.target.state
    result = kmc.plots.plot_trajectories(step, idata, n_steps=10)
    paths, acceptance = panels_of(result, *NAMES)
    assert len(paths.get_lines()) == 3 * 2 + 3
    rates = np.array([found.get_ydata() for found in acceptance.get_lines()])
    assert rates.shape == (6, 11) and np.median(rates) > 0.9
    assert step.target.recycled is before[0]
    assert paths.get_xlabel() == "x" and paths.get_ylabel() == "y"


def test_none_on_the_target_where_not_wanted(curved):
    idata, step = curved
    result = kmc.plots.plot_trajectories(step, idata, on_target=False, n_trajectories=2)
    _, acceptance = panels_of(result, *NAMES)
    assert [found.get_label() for found in acceptance.get_lines()][:1] == ["on the surrogate"]
    assert len(acceptance.get_lines()) == 2


def test_a_diverging_path_is_never_accepted(curved):
    result = kmc.plots.plot_trajectories(
        Wrong(), curved[0], log_density=target, n_trajectories=1, n_steps=700, step_size=50.0
    )
    _, acceptance = panels_of(result, *NAMES)
    assert line(acceptance, "on the surrogate")[1][-1] == 0.0


def test_a_surrogate_needs_the_targets_log_density(curved):
    with pytest.raises(ValueError, match="log_density is missing"):
        kmc.plots.plot_trajectories(Wrong(), curved[0])
    with pytest.raises(ValueError, match=r"step_size=0.0 must be a number, positive and finite"):
        kmc.plots.plot_trajectories(Wrong(), curved[0], log_density=target, step_size=0.0)
