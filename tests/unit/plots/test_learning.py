"""Errors, best values and costs are those of the run's statistics."""

import copy
import warnings

import numpy as np
import pytest

import pymc_kmc as kmc
from tests.plots import line, panels_of

NAMES = ("error", "best", "cost")


def along(idata, name):
    groups = idata.warmup_sample_stats, idata.sample_stats
    return np.concatenate([group[name].values for group in groups], axis=1)


def test_errors_at_fresh_evaluations(curved):
    idata, _ = curved
    (error, *_) = panels_of(kmc.plots.plot_learning(idata, n_bins=3, chains=[1]), *NAMES)
    errors = np.abs(along(idata, "kmc_prediction_error")[1])
    evaluations = np.cumsum(along(idata, "kmc_n_evaluations")[1])
    known = np.isfinite(errors)
    assert 100 < known.sum() < 250  # none before the first fit
    x, y = line(error, "one evaluation")
    np.testing.assert_array_equal(x, evaluations[known])
    np.testing.assert_allclose(y, np.maximum(errors[known], 1e-4))
    _, medians = line(error, "median")
    ends = np.linspace(0, known.sum(), 4).astype(int)
    parts = zip(ends[:-1], ends[1:], strict=True)
    np.testing.assert_allclose(medians, [np.median(y[a:b]) for a, b in parts])


def test_an_exact_surrogate_has_errors_too_small_to_draw(curved):
    exact = copy.deepcopy(curved[0])
    for group in (exact.warmup_sample_stats, exact.sample_stats):
        group["kmc_prediction_error"].values[:] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (error, *_) = panels_of(kmc.plots.plot_learning(exact), *NAMES)
    low, high = error.get_ylim()
    assert low < 1e-4 < high  # the line is drawn inside the panel


def test_best_log_density_rises(curved):
    idata, _ = curved
    _, best, _ = panels_of(kmc.plots.plot_learning(idata), *NAMES)
    x, y = line(best, "chain 0")
    values = along(idata, "lp")[0]
    np.testing.assert_allclose(y, [values[: i + 1].max() for i in range(len(values))])
    np.testing.assert_array_equal(x, np.cumsum(along(idata, "kmc_n_evaluations")[0]))


def test_costs_of_the_phases(curved):
    idata, _ = curved
    *_, cost = panels_of(kmc.plots.plot_learning(idata), *NAMES)
    bars = np.array([bar.get_width() for bar in cost.patches]).reshape(2, 2)
    groups = (idata.warmup_sample_stats, idata.sample_stats)
    names = ("kmc_evaluation_time", "kmc_proposal_time")
    expected = np.array([[float(group[name].sum()) for group in groups] for name in names])
    unit = 1.0 if expected.sum() >= 1 else 1e3
    np.testing.assert_allclose(bars, unit * expected)
    assert cost.get_xlabel().startswith("seconds" if unit == 1.0 else "milliseconds")
    counts = [int(group["kmc_n_evaluations"].sum()) for group in groups]
    assert [text.get_text().strip() for text in cost.texts] == [
        f"{n:,} evaluations" for n in counts
    ]


def test_what_it_needs_is_said(curved, walked, noisy):
    with pytest.raises(ValueError, match="discard_tuned_samples=False"):
        kmc.plots.plot_learning(noisy)
    with pytest.raises(ValueError, match="its step has no surrogate"):
        kmc.plots.plot_learning(walked[0])
    with pytest.raises(ValueError, match=r"chains=\[2\] must be numbers from 0 to 1"):
        kmc.plots.plot_learning(curved[0], chains=[2])
