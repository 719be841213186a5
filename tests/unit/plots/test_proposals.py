"""Ellipses are the proposals' standard deviations."""

import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.plots.proposals import ellipse, typical_rows
from pymc_kmc.surrogates.protocol import NotFittedError
from tests.plots import labels, line, panels_of


@pytest.mark.parametrize("covariance", [[[4.0, 0.0], [0.0, 1.0]], [[2.0, -1.2], [-1.2, 1.0]]])
def test_an_ellipse_is_one_standard_deviation(covariance):
    """All its points are at Mahalanobis distance 1 from the centre."""
    centre = np.array([1.0, -2.0])
    found = ellipse(centre, np.array(covariance))
    angles = np.linspace(0.0, 2.0 * np.pi, 9)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    vertices = found.get_patch_transform().transform(circle) - centre
    distances = np.einsum("ni,ij,nj->n", vertices, np.linalg.inv(covariance), vertices)
    np.testing.assert_allclose(distances, 1.0)


def test_ellipses_stand_at_draws_and_are_the_steps_own(walked):
    idata, step = walked
    result = kmc.plots.plot_proposals(step, idata, coords={"place": ["b", "a"]}, n_ellipses=5)
    (ax,) = panels_of(result, "proposals")
    assert labels(ax) == ["Proposals of KAMH", "z[a]", "z[b]"]
    draws = idata.posterior["z"].values.reshape(-1, 3)
    np.testing.assert_array_equal(line(ax, "draws"), draws[:, :2].T)
    ellipses = ax.patches
    assert len(ellipses) == 5
    for found in ellipses:
        (index,) = np.flatnonzero(np.all(draws[:, :2] == found.center, axis=1))[:1]
        variances = np.linalg.eigvalsh(step.proposal_covariance(draws[index])[:2, :2])
        sizes = np.sort([found.width, found.height]) / 2
        np.testing.assert_allclose(sizes**2, variances, rtol=1e-9)


def test_places_are_spread():
    """Of four heaps far from each other four places are one in each."""
    rng = np.random.default_rng(0)
    corners = np.array([[0, 0], [0, 9], [9, 0], [9, 9]])
    points = np.repeat(corners, 50, axis=0) + 0.1 * rng.standard_normal((200, 2))
    assert set(typical_rows(points, 4) // 50) == {0, 1, 2, 3}


def test_what_has_no_covariance(curved):
    with pytest.raises(TypeError, match="step is of type KMC, whose proposals have no covariance"):
        kmc.plots.plot_proposals(curved[1], curved[0])


@pytest.mark.parametrize("step_class", [kmc.AdaptiveMetropolis, kmc.KAMH])
def test_a_step_that_has_not_sampled_here(walked, step_class):
    with pm.Model():
        pm.Normal("z", shape=3)
        step = step_class()
        given = kmc.AdaptiveMetropolis(covariance=np.diag([1.0, 4.0, 9.0]))
    with pytest.raises(NotFittedError, match=r"has not sampled yet.*cores=1"):
        kmc.plots.plot_proposals(step, walked[0])
    kmc.plots.plot_proposals(given, walked[0])
