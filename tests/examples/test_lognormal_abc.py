"""The log-normal example: its posteriors by other means, what its text says, and it runs."""

import numpy as np
import pytest

from examples import lognormal_abc as example


@pytest.fixture(scope="module")
def posteriors():
    return example.exact_posteriors()


def test_density_of_the_average():
    points, density = example.average_density()
    data = example.simulator(0.0, np.random.default_rng(1), 100_000)
    for level in (0.1, 0.5, 0.9, 0.99):
        quantile = points[np.searchsorted(np.cumsum(density) / density.sum(), level)]
        error = np.sqrt(level * (1 - level) / 100_000)
        assert abs(np.mean(data.mean(axis=1) < quantile) - level) < 4.5 * error


def test_given_all_data(posteriors):
    logs = np.log(example.observed_data())
    mean, sd = example.moments(posteriors["all data"])
    assert mean == pytest.approx(logs.sum() / 11, abs=1e-6)
    assert sd == pytest.approx(11**-0.5, abs=1e-6)


def test_abc_by_importance_sampling(posteriors):
    """From the prior: 200,000 data sets, some 5 % of them near enough."""
    rng = np.random.default_rng(2)
    theta = rng.standard_normal(200_000)
    averages = np.exp(theta + rng.standard_normal((10, len(theta)))).mean(axis=0)
    misfit = (averages - example.observed_data().mean()) / example.EPSILON
    weights = np.exp(-0.5 * misfit**2)
    mean = weights @ theta / weights.sum()
    error = np.sqrt(np.sum((weights * (theta - mean)) ** 2)) / weights.sum()
    exact, _ = example.moments(posteriors["ABC"])
    assert abs(mean - exact) < 4.5 * error
    assert error < 0.005


def test_the_figures_of_the_text(posteriors):
    mean, sd = example.moments(posteriors["average"])
    for name, shift, ratio in (("ABC", 0.006, 1.01), ("synthetic", 0.036, 1.15)):
        this_mean, this_sd = example.moments(posteriors[name])
        assert this_mean - mean == pytest.approx(-shift, abs=5e-4)
        assert this_sd / sd == pytest.approx(ratio, abs=5e-3)
        assert f"mean is {shift:.3f} lower and its sd {ratio} times".replace(" 0.", " .") in (
            " ".join(example.__doc__.split())
        )


@pytest.mark.documentation
def test_it_runs(tmp_path, capsys):
    picture = tmp_path / "lognormal.png"
    example.main(["--tune", "60", "--draws", "40", "--output", str(picture)])
    assert "synthetic, KMC" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
