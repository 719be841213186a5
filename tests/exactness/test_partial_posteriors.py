"""Debiased estimates of a conjugate model: unbiased, with the variance and cost of the formulas.

Each check is at 3 standard errors: a false-alarm rate of .003 each were the errors Gaussian, of .02
for the nine of this file; the seeds are fixed.
"""

import numpy as np
import pytest

import pymc_kmc as kmc
from tests.subsets import PRIOR_SD, Conjugate, exact, normal_data

N_DATA, FIRST_SIZE, N_REPLICATIONS, N_DRAWS = 1024, 8, 2000, 3
ALPHAS = (0.3, 0.6, 0.9)
TOLERANCE = 3.0


@pytest.fixture(scope="module", params=ALPHAS)
def result(request):
    model = Conjugate(N_DRAWS)
    return kmc.partial_posteriors(
        model.build,
        normal_data(N_DATA),
        model.functional,
        first_size=FIRST_SIZE,
        alpha=request.param,
        n_replications=N_REPLICATIONS,
        sample=model.sample,
        random_seed=12,
        progressbar=False,
    )


def levels(alpha):
    """Sizes 8, 16, ..., 1024 and P(T >= t), by the definition."""
    sizes = FIRST_SIZE * 2 ** np.arange(8)
    probabilities = 2.0 ** (-alpha * np.arange(8))
    probabilities /= probabilities.sum()
    return sizes, np.array([probabilities[t:].sum() for t in range(8)])


def second_moments(data, sizes):
    """E phi_s phi_t over nested subsets without replacement and N_DRAWS exact draws a level."""
    variance = data.var(ddof=1) * (1.0 / sizes - 1.0 / len(data))
    precision = sizes + PRIOR_SD**-2
    weights = sizes / precision
    # The mean of the larger subset is what both have in common.
    larger = np.maximum.outer(np.arange(len(sizes)), np.arange(len(sizes)))
    moments = np.outer(weights, weights) * (data.mean() ** 2 + variance[larger])
    return moments + np.diag(1.0 / (precision * N_DRAWS))


def exact_variance(data, alpha):
    sizes, reach = levels(alpha)
    # Differences of successive levels: D phi.
    D = np.eye(len(sizes)) - np.eye(len(sizes), k=-1)
    products = D @ second_moments(data, sizes) @ D.T
    t = np.arange(len(sizes))
    both = reach[np.maximum.outer(t, t)]
    mean = exact(data)[0]
    return np.sum(products * both / np.outer(reach, reach)) - mean**2


def test_unbiased_for_the_full_data(result):
    z = (result.estimate - exact(normal_data(N_DATA))[0]) / result.standard_error
    assert abs(z) < TOLERANCE


def test_the_variance_is_the_formula(result):
    deviations = (result.debiased - result.estimate) ** 2
    error = deviations.std() / np.sqrt(N_REPLICATIONS)
    expected = exact_variance(normal_data(N_DATA), result.schedule.alpha)
    assert abs(deviations.mean() - expected) < TOLERANCE * error
    assert error < 0.2 * expected


def test_the_cost_is_the_formula(result):
    sizes, reach = levels(result.schedule.alpha)
    costs = result.runs["cost"].groupby("replication").sum()
    error = costs.std() / np.sqrt(N_REPLICATIONS)
    assert costs.sum() == result.cost
    assert abs(costs.mean() - N_DRAWS * sizes @ reach) < TOLERANCE * error


def test_the_paths_alone_are_biased(result):
    """What the check of unbiasedness is for: the mean of the last phi_t is far off."""
    last = np.array([path[-1] for path in result.paths])
    z = (last.mean() - exact(normal_data(N_DATA))[0]) / (last.std() / np.sqrt(N_REPLICATIONS))
    assert abs(z) > 2 * TOLERANCE
