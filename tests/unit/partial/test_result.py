"""The result: estimate, cost, storage, joining, text and picture."""

from html import escape

import matplotlib
import numpy as np
import pytest

import pymc_kmc as kmc
from tests.subsets import Conjugate, normal_data

matplotlib.use("Agg")
DATA = normal_data(500)


def estimate(n_draws=50, data=DATA, functional=None, **options):
    model = Conjugate(n_draws)
    settings = {"first_size": 16, "alpha": 0.7, "n_replications": 30, "random_seed": 2}
    return kmc.partial_posteriors(
        model.build,
        data,
        functional or model.functional,
        sample=model.sample,
        progressbar=False,
        **settings | options,
    )


def spread(draws):
    return draws["theta"].std()


@pytest.fixture(scope="module")
def result():
    return estimate()


def test_the_estimate_is_the_mean_of_the_debiased_paths(result):
    reach = result.schedule.reach
    debiased = []
    for path in result.paths:
        total, before = 0.0, 0.0
        for t, value in enumerate(path):
            total += (value - before) / reach[t]
            before = value
        debiased.append(total)
    assert result.estimate == pytest.approx(np.mean(debiased))
    assert result.standard_error == pytest.approx(np.std(debiased, ddof=1) / np.sqrt(30))
    np.testing.assert_array_equal([len(path) - 1 for path in result.paths], result.levels)


def test_intervals_are_students(result):
    half = 1.6991 * result.standard_error  # t of 29 degrees of freedom at .95
    np.testing.assert_allclose(
        result.interval(0.9), [result.estimate - half, result.estimate + half], rtol=1e-4
    )
    with pytest.raises(ValueError, match="probability must be between 0 and 1, got 90"):
        result.interval(90)


def test_what_it_cost(result):
    terms = sum(result.schedule.sizes[: level + 1].sum() for level in result.levels)
    assert result.terms_per_iteration == terms
    assert result.cost == 50 * terms
    assert result.full_cost == 50 * 500
    assert result.runs["cost"].sum() == result.cost
    assert len(result.runs) == np.sum(result.levels + 1)


def test_functionals_of_any_shape():
    array = estimate(functional=lambda draws: np.quantile(draws["theta"], [[0.1, 0.5], [0.2, 0.9]]))
    assert array.estimate.shape == array.standard_error.shape == (2, 2)
    assert array.interval().shape == (2, 2, 2)
    assert array.paths[0].shape[1:] == (2, 2)
    assert list(array.summary.index) == array.labels
    assert array.summary["estimate"].iloc[3] == array.estimate[1, 1]
    named = estimate(functional="theta")
    assert named.labels == ["mean of theta", "sd of theta"]
    assert named.estimate[0] == pytest.approx(estimate().estimate)


def test_it_prints(result):
    text = str(result)
    assert f"{result.estimate:.5g}" in text and f"{result.standard_error:.5g}" in text
    assert "30 replications" in text and f"{result.cost:,} likelihood terms" in text
    assert repr(result) == text
    html = result._repr_html_()
    assert "<table" in html and f"{result.cost:,}" in html
    assert all(escape(finding) in html for finding in result.findings)


def test_labels_are_text_in_a_notebook(result):
    replications = result.replications.assign_coords(element=["<script>"])
    html = kmc.PartialPosteriors(replications)._repr_html_()
    assert "&lt;script&gt;</th>" in html and "<script>" not in html


def test_storage(result, tmp_path):
    result.to_netcdf(tmp_path / "result.nc")
    read = kmc.PartialPosteriors.from_netcdf(tmp_path / "result.nc")
    np.testing.assert_array_equal(read.debiased, result.debiased)
    assert str(read) == str(result)


def test_replications_of_two_seeds_are_joined(result):
    other = estimate(random_seed=3, n_replications=20)
    both = result + other
    np.testing.assert_array_equal(both.debiased, np.r_[result.debiased, other.debiased])
    assert both.cost == result.cost + other.cost
    assert not both.interrupted
    with pytest.raises(ValueError, match="same random_seed"):
        both + other
    with pytest.raises(ValueError, match="same random_seed"):
        both + estimate(random_seed=[3], n_replications=2)
    with pytest.raises(ValueError, match="alpha is 0.7 and 0.8"):
        result + estimate(random_seed=5, alpha=0.8)
    with pytest.raises(ValueError, match="shape is"):
        result + estimate(random_seed=5, functional="theta")
    with pytest.raises(ValueError, match="different functionals: .*functional.* and .*spread"):
        result + estimate(random_seed=5, functional=spread)
    with pytest.raises(TypeError):
        result + 3


def test_the_picture_has_the_paths(result):
    ax = result.plot(reference=0.9)
    lines = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 0]
    paths = [line for line in lines if line.get_color() == "C0"]
    assert len(paths) == 30
    for line, path in zip(paths, result.paths, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), path)
        np.testing.assert_array_equal(line.get_xdata(), result.schedule.sizes[: len(path)])
    levels = {line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1}
    assert {result.estimate, 0.9} <= levels
    assert ax.get_xscale() == "log"


def test_the_picture_marks_runs_that_were_too_short():
    short = estimate(n_draws=12, functional="theta")
    ax = short.plot("sd of theta", figsize=(4, 3))
    (marked,) = [line for line in ax.lines if line.get_label() == "chains too short"]
    suspect = short.runs[short.runs["suspect"]]
    assert len(suspect) > 5
    expected = [short.paths[r][t, 1] for r, t in suspect.index]
    np.testing.assert_array_equal(marked.get_ydata(), expected)
    assert ax.get_ylabel() == "sd of theta"
    with pytest.raises(ValueError, match=r"'x' isn't one of \['mean of theta', 'sd of theta'\]"):
        short.plot("x")
    with pytest.raises(ValueError, match="element must be from 0 to 1, got 2"):
        short.plot(2)


def test_numbers_below_the_picture_do_not_overlap():
    """A last level that hardly grows has none of its own."""
    few = estimate(data=normal_data(550), n_replications=2)
    assert few.plot().get_xticks().tolist() == [16, 32, 64, 128, 256, 512]
    many = estimate(data=normal_data(2**13), n_replications=2, first_size=2)
    assert len(many.plot().get_xticks()) <= 8
