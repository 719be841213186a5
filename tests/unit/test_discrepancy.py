"""Squared discrepancies are those of the definition, and their standard errors are right."""

from itertools import permutations, product

import numpy as np
import pytest

import pymc_kmc as kmc


def cubic(a, b):
    return (1.0 + a @ b) ** 3


def by_definition(x, y, kernel=cubic):
    """The unbiased estimate, pair by pair."""
    n, m = len(x), len(y)
    xx = sum(kernel(x[i], x[j]) for i, j in permutations(range(n), 2)) / (n * (n - 1))
    yy = sum(kernel(y[i], y[j]) for i, j in permutations(range(m), 2)) / (m * (m - 1))
    xy = sum(kernel(a, b) for a, b in product(x, y)) / (n * m)
    return xx + yy - 2 * xy


def moments(y):
    return (
        y.mean(axis=0),
        np.einsum("ni,nj->ij", y, y) / len(y),
        np.einsum("ni,nj,nk->ijk", y, y, y) / len(y),
    )


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 3)), rng.normal(0.5, 2.0, size=(17, 3))


def test_quadratic_estimate(draws):
    assert kmc.mmd(*draws).estimate == pytest.approx(by_definition(*draws), rel=1e-12)


@pytest.mark.parametrize("entries", [1, 40, 100])
def test_chunks_change_nothing(draws, entries, monkeypatch):
    whole = kmc.mmd(*draws, at=[5, 12])
    monkeypatch.setattr("pymc_kmc.discrepancy.CHUNK_ENTRIES", entries)
    np.testing.assert_allclose(kmc.mmd(*draws, at=[5, 12]), whole, rtol=1e-12)


def test_linear_estimate(draws):
    x, y = draws
    terms = [
        cubic(x[i], x[i + 1])
        + cubic(y[i], y[i + 1])
        - cubic(x[i], y[i + 1])
        - cubic(x[i + 1], y[i])
        for i in range(0, 12, 2)
    ]
    found = kmc.mmd(x, y, estimate="linear")
    assert found.estimate == pytest.approx(np.mean(terms), rel=1e-12)
    assert found.standard_error == pytest.approx(np.std(terms, ddof=1) / 6**0.5, rel=1e-12)


def test_block_estimate(draws):
    x, y = draws
    blocks = []
    for i in (0, 4, 8):
        pairs = permutations(range(i, i + 4), 2)
        blocks.append(
            np.mean(
                [
                    cubic(x[a], x[b]) + cubic(y[a], y[b]) - cubic(x[a], y[b]) - cubic(x[b], y[a])
                    for a, b in pairs
                ]
            )
        )
    found = kmc.mmd(x, y, estimate="block", block_size=4)
    assert found.estimate == pytest.approx(np.mean(blocks), rel=1e-12)
    assert kmc.mmd(x, y, estimate="block") == kmc.mmd(x, y, estimate="block", block_size=3)


def test_it_compares_all_moments_to_third_order(draws):
    """Less the pairs of a draw with itself, it is the weighted distance of the moments."""
    x, y = draws
    differences = [np.sum((a - b) ** 2) for a, b in zip(moments(x), moments(y), strict=True)]
    biased = 3 * differences[0] + 3 * differences[1] + differences[2]
    own = [np.mean([cubic(a, a) for a in z]) for z in (x, y)]
    means = [
        (np.mean((1 + z @ z.T) ** 3) * len(z) - k) / (len(z) - 1)
        for z, k in zip((x, y), own, strict=True)
    ]
    expected = biased + sum(
        mean - np.mean((1 + z @ z.T) ** 3) for mean, z in zip(means, (x, y), strict=True)
    )
    assert kmc.mmd(x, y).estimate == pytest.approx(expected, rel=1e-10)


def test_reference_moments_stand_for_many_draws(draws):
    x, y = draws
    n = len(x)
    xx = sum(cubic(x[i], x[j]) for i, j in permutations(range(n), 2)) / (n * (n - 1))
    expected = xx - 2 * np.mean((1 + x @ y.T) ** 3) + np.mean((1 + y @ y.T) ** 3)
    assert kmc.mmd(x, moments(y)).estimate == pytest.approx(expected, rel=1e-10)


def test_over_iterations(draws):
    x, y = draws
    at = [9, 3, 12]
    for reference in (y, moments(y)):
        path = kmc.mmd(x, reference, at=at)
        singly = [kmc.mmd(x[:n], reference) for n in at]
        np.testing.assert_allclose(path.estimate, [found.estimate for found in singly])
        np.testing.assert_allclose(path.standard_error, [found.standard_error for found in singly])
    path = kmc.mmd(x, y, estimate="linear", at=[4, 12])
    assert path.estimate[0] == kmc.mmd(x[:4], y[:4], estimate="linear").estimate


def test_another_kernel(draws):
    def gaussian(X, Y):
        return np.exp(-np.sum((X[:, None] - Y[None]) ** 2, axis=2))

    expected = by_definition(*draws, lambda a, b: np.exp(-np.sum((a - b) ** 2)))
    assert kmc.mmd(*draws, kernel=gaussian).estimate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.4])
@pytest.mark.parametrize(
    ("estimate", "reference"),
    [("quadratic", "draws"), ("quadratic", "moments"), ("linear", "draws"), ("block", "draws")],
)
def test_estimates_are_unbiased_and_errors_right(shift, estimate, reference):
    """Over 400 seeds of bounded draws: the truth is known from the uniform's moments."""
    rng = np.random.default_rng(1)
    degree, n, n_seeds = 2, 60, 400
    # Uniform on [-1, 1]^2, and the same shifted; moments of order 1 and 2.
    mean, second = np.array([shift, 0.0]), np.diag([1 / 3 + shift**2, 1 / 3])
    truth = 2 * np.sum(mean**2) + np.sum((second - np.eye(2) / 3) ** 2)
    found = []
    for _ in range(n_seeds):
        x = rng.uniform(-1, 1, size=(n, 2)) + mean
        y = rng.uniform(-1, 1, size=(2 * n, 2))
        y = (np.zeros(2), np.eye(2) / 3) if reference == "moments" else y
        found.append(kmc.mmd(x, y, estimate=estimate, degree=degree))
    estimates, errors = np.array(found).T
    z = (estimates.mean() - truth) / (estimates.std() / n_seeds**0.5)
    assert abs(z) < 4
    # The sd of 400 estimates is known to 1 / sqrt(800) = 3.5 %, skewness aside. Without any
    # discrepancy, errors of the quadratic estimate are on the safe side.
    ratio = np.sqrt(np.mean(errors**2)) / estimates.std()
    assert 0.85 < ratio < (1.35 if estimate == "quadratic" and shift == 0.0 else 1.15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimate": "cubic"}, "estimate='cubic' is unknown"),
        ({"degree": 0}, "degree=0 must be"),
        ({"kernel": 3}, "kernel=3 must be callable"),
        ({"block_size": 3}, "block_size=3 has no meaning with estimate='quadratic'"),
        ({"block_size": 1, "estimate": "block"}, "block_size >= 2"),
        ({"at": [1]}, r"at=\[1\] must be numbers of draws from 2 to 12"),
        ({"at": [13]}, r"at=\[13\] must be"),
        ({"y": np.zeros((5, 2))}, "y has 2 columns and x 3"),
        ({"y": np.zeros((1, 3))}, r"y has 1 draw\(s\)"),
        ({"y": (np.zeros(3), np.zeros((3, 3)))}, "moments of shapes .* up to degree=3"),
        ({"y": moments(np.zeros((2, 3))), "estimate": "linear"}, "sequence of moments"),
        ({"x": [[np.nan, 0.0, 0.0]]}, r"x\[0, 0\] is nan"),
    ],
)
def test_bad_arguments(draws, arguments, message):
    x, y = draws
    with pytest.raises(ValueError, match=message):
        kmc.mmd(**({"x": x, "y": y} | arguments))
