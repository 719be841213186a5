"""Scales of coordinates found around a chain's start."""

import numpy as np
import pytest

from pymc_kmc.adaptation.first_scales import first_scales


class Gaussian:
    def __init__(self, sd):
        self.sd = np.array(sd)
        self.n_calls = 0

    def __call__(self, x):
        self.n_calls += 1
        return -0.5 * np.sum((x / self.sd) ** 2)


@pytest.mark.parametrize("distance", [0.0, 30.0])
def test_of_a_gaussian_from_anywhere(distance):
    """Thirty standard deviations away too: second differences are the same everywhere."""
    target = Gaussian([1e-8, 1e-3, 1e8])
    start = distance * target.sd
    found = first_scales(target, start, target(start))
    np.testing.assert_allclose(found, target.sd, rtol=0.01)
    assert target.n_calls <= 1 + 3 * 16


def test_usual_scales_cost_two_evaluations_and_are_left():
    target = Gaussian([0.8, 1.5, 1.0])
    np.testing.assert_array_equal(first_scales(target, np.ones(3), target(np.ones(3))), 1.0)
    assert target.n_calls == 1 + 2 * 3


@pytest.mark.parametrize(
    "log_density",
    [
        lambda x: 0.0,  # flat
        lambda x: 0.3 * x[0],  # rises for ever
        lambda x: np.nan,
        lambda x: -np.inf if x[0] != 0.0 else 0.0,
    ],
)
def test_where_there_is_none_it_stays(log_density):
    with np.errstate(all="raise"):
        assert first_scales(log_density, np.zeros(1), log_density(np.zeros(1))) == 1.0


def test_a_narrow_support_is_a_scale():
    """Uniform on a millionth: any scale of that order or less."""
    found = first_scales(lambda x: 0.0 if abs(x[0]) < 1e-6 else -np.inf, np.zeros(1), 0.0)
    assert found == 1.0  # no curvature inside: nothing to go by


def test_beside_a_wall():
    """Log-normal at 1e-7: the far side is possible, zero and below are not."""

    def log_density(x):
        return -2.0 * (np.log(x[0] / 1e-7)) ** 2 - np.log(x[0]) if x[0] > 0 else -np.inf

    start = np.array([1e-7])
    (found,) = first_scales(log_density, start, log_density(start))
    assert 1e-8 < found < 1e-6
