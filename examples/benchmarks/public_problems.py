"""The problems of :mod:`examples.benchmarks.public`, built from their definitions.

References
----------
Acerbi, L. (2018). Variational Bayesian Monte Carlo. *Advances in Neural Information Processing
    Systems* 31; the mixture's numbers are those of github.com/lacerbi/infbench.
Acerbi, L. (2020) and Li et al. (2025): see :mod:`examples.benchmarks.metrics`.
Jones, M. C. and Faddy, M. J. (2003). A skew extension of the t-distribution, with applications.
    *Journal of the Royal Statistical Society* B 65, 159-174.
Lueckmann, J.-M., Boelts, J., Greenberg, D., Goncalves, P. and Macke, J. (2021). Benchmarking
    simulation-based inference. *AISTATS*; github.com/sbi-benchmark/results.
Price, L. F., Drovandi, C. C., Lee, A. and Nott, D. J. (2018). Bayesian synthetic likelihood.
    *Journal of Computational and Graphical Statistics* 27, 1-11; g-and-k's summary statistics.
Wood, S. N. (2010). Statistical inference for noisy nonlinear ecological dynamic systems. *Nature*
    466, 1102-1104.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.optimize import minimize
from scipy.special import betaln, digamma, logsumexp, ndtr
from scipy.stats import multivariate_t

import pymc_kmc as kmc
from examples.benchmarks import learning
from examples.benchmarks import lotka_volterra as lynx_and_hare


class Published(NamedTuple):
    """What a paper reports: its evaluations or simulations, and its figures as it prints them."""

    paper: str
    evaluations: int
    mmtv: str = ""
    gskl: str = ""
    c2st: str = ""


class PublicProblem(NamedTuple):
    """A posterior of the literature.

    Attributes
    ----------
    build : callable
        ``build(count, noise)`` is the model; `count` wraps what is evaluated.
    published : Published
    reference : callable or None
        ``reference(n, rng)`` are exact draws (n, d), on the natural scale; None where a long chain
        of the model without noise, or of the same estimates, takes their place.
    budget : int
        Evaluations of `learn` and the chains together.
    most : int or None
        Most evaluations of `learn`, by default its own.
    noise : int
        Standard deviation of the noise that is added to the log likelihood, by default.
    log_evidence : float
        NaN where it isn't known.
    simulations : int
        Simulations of an evaluation, where the paper counts these.
    """

    build: Callable
    published: Published
    reference: Callable | None
    budget: int
    most: int | None = None
    noise: int = 0
    log_evidence: float = np.nan
    simulations: int = 1


def add(log_likelihood, count, noise, *params):
    """Add an opaque log likelihood to the model, or one with a normal number in it."""
    if not noise:
        box = kmc.BlackBox("log likelihood", count(log_likelihood), *params)
        pm.Potential("likelihood", box)
        return

    def estimate(*values, rng):
        return log_likelihood(*values) + rng.normal(-0.5 * noise**2, noise)

    kmc.PseudoMarginalPotential("likelihood", count(estimate), *params)


def rosenbrock(count, noise):
    """Two bananas and a Gaussian under a prior N(0, 9 I), 6-d."""

    def log_likelihood(x):
        bent = (x[:4:2] ** 2 - x[1:4:2]) ** 2 + 0.01 * (x[:4:2] - 1.0) ** 2
        return -np.sum(bent) - 0.5 * np.sum(x[4:] ** 2)

    with pm.Model() as model:
        add(log_likelihood, count, noise, pm.Normal("x", 0, 3, shape=6))
    return model


def rosenbrock_draws(n, rng):
    """Exact: x on a grid, and given x, y is N(x^2 / p, 1 / (2 p)) with p = 1 + 1 / 18."""
    grid, p = np.linspace(-5.0, 5.0, 20_001), 1.0 + 1.0 / 18.0
    # What the integral of exp(-(x^2 - y)^2 - y^2 / 18) over y leaves.
    logs = -(grid**4) * (1.0 - 1.0 / p) - 0.01 * (grid - 1.0) ** 2 - grid**2 / 18.0
    cumulative = np.cumsum(np.exp(logs))
    x = np.interp(rng.random((2, n)), cumulative / cumulative[-1], grid)
    y = x**2 / p + rng.standard_normal((2, n)) / np.sqrt(2.0 * p)
    flat = rng.standard_normal((n, 2)) / np.sqrt(1.0 + 1.0 / 9.0)
    return np.column_stack([x[0], y[0], x[1], y[1], flat])


@functools.cache
def lumpy_components():
    """Weights (12,), means (12, 10) and variances (12, 10): MATLAB's, from its seed 0.

    Its generator makes the mixtures of 1 to 9 dimensions before, and a permutation is the order of
    uniform numbers.
    """
    rng = np.random.RandomState(5489)  # noqa: NPY002  MATLAB's generator; its seed 0 is this one
    for d in range(1, 11):
        means = rng.random_sample((d, 12)).T
        orders = np.array([np.argsort(rng.random_sample(d)) for _ in range(12)])
        weights = -np.log(rng.random_sample(12))
    return weights / weights.sum(), means, np.linspace(0.2, 0.6, 10)[orders] ** 2


def lumpy(count, noise):
    """A mixture of twelve Gaussians that overlap, 10-d; the whole density is opaque."""
    weights, means, variances = lumpy_components()
    constants = np.log(weights) - 0.5 * np.log(2.0 * np.pi * variances).sum(axis=1)

    def log_density(x):
        return logsumexp(constants - 0.5 * np.sum((x - means) ** 2 / variances, axis=1))

    with pm.Model() as model:
        add(log_density, count, noise, pm.Flat("x", shape=10))
    return model


def lumpy_draws(n, rng):
    weights, means, variances = lumpy_components()
    chosen = rng.choice(12, n, p=weights)
    return means[chosen] + np.sqrt(variances[chosen]) * rng.standard_normal((n, 10))


def populations(count, noise):
    """Lotka-Volterra, 8-d: the solver is opaque."""
    with pm.Model() as model:
        rates, first, sigma = learning.lynx_and_hare_priors()
        shape = lynx_and_hare.LOG_COUNTS.shape
        solve = count(learning.populations)
        solution = kmc.BlackBox("populations", solve, rates, first, shape=shape)
        pm.LogNormal("counts", pt.log(solution), sigma, observed=np.exp(lynx_and_hare.LOG_COUNTS))
    return model


def predator_and_prey(count, noise):
    """The same posterior; the log likelihood is opaque, as in the paper."""
    with pm.Model() as model:
        priors = learning.lynx_and_hare_priors()
        add(learning.log_likelihood_of_counts, count, noise, *priors)
    return model


def predator_and_prey_draws(n, rng):
    """Draws of NUTS, which has the gradient."""
    with lynx_and_hare.build_model():
        idata = pm.sample(
            draws=n // 4,
            tune=1000,
            chains=4,
            cores=1,
            initvals={"x": lynx_and_hare.NEAR_THE_MODE},
            target_accept=0.9,
            nuts_sampler="pymc",
            random_seed=rng,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return np.exp(np.asarray(idata.posterior["x"]).reshape(-1, lynx_and_hare.DIMENSION))


#: Timing: durations of the stimuli, bounds and plausible bounds of w_s, w_m, mu_p, sigma_p, lambda.
STIMULI = np.linspace(0.6, 0.975, 6)
LOWEST, LOW = np.array([0.01, 0.01, 0.3, 0.0375, 0.01]), np.array([0.05, 0.05, 0.6, 0.075, 0.02])
HIGH, HIGHEST = np.array([0.25, 0.25, 0.975, 0.375, 0.05]), np.array([0.5, 0.5, 1.95, 0.75, 0.2])
#: The published posterior mean, at which data are simulated, and trials of each stimulus.
TIMING_MEAN, TRIALS = np.array([0.0890, 0.0310, 0.7009, 0.1363, 0.0113]), 252
#: Edges of the bins of 20 ms that responses fall into, and the grids of durations and measurements.
EDGES, DURATIONS, SDS = np.linspace(0, 2, 101), np.linspace(0, 2, 101)[1:], np.linspace(-5, 5, 81)


def response_probabilities(theta):
    """Probability of each bin, (6, 100), given the stimulus.

    A measurement is N(s, w_s^2 s^2), a response N(m, w_m^2 m^2) around the posterior mean m of the
    duration under the observer's prior, or uniform in a lapse.
    """
    w_s, w_m, mean, sd, lapse = theta
    measured = STIMULI[:, None] * (1.0 + w_s * SDS)
    logs = -0.5 * ((measured[..., None] / DURATIONS - 1.0) / w_s) ** 2 - np.log(DURATIONS)
    logs -= 0.5 * ((DURATIONS - mean) / sd) ** 2
    posterior = np.exp(logs - logs.max(axis=-1, keepdims=True))
    estimated = (posterior @ DURATIONS / posterior.sum(axis=-1))[..., None]
    below = ndtr((EDGES - estimated) / (w_m * estimated))
    weights = np.exp(-0.5 * SDS**2)
    kept = np.einsum("j,ijk->ik", weights / weights.sum(), np.diff(below, axis=-1))
    return (1.0 - lapse) * kept + lapse / (len(EDGES) - 1)


def timing(count, noise, is_flat=False):
    """Bayesian timing, 5-d, data simulated; the prior is flat, or falls off towards the bounds."""
    p = response_probabilities(TIMING_MEAN)
    counts = np.random.default_rng(1).multinomial(TRIALS, p / p.sum(axis=1, keepdims=True))

    def log_likelihood(theta):
        return float(np.sum(counts * np.log(response_probabilities(theta))))

    with pm.Model() as model:
        theta = pm.Uniform("theta", LOWEST, HIGHEST, shape=5)
        if not is_flat:
            up, down = (theta - LOWEST) / (LOW - LOWEST), (HIGHEST - theta) / (HIGHEST - HIGH)
            z = pt.clip(pt.minimum(up, down), 1e-12, 1.0)
            pm.Potential("slopes", pt.sum(pt.log(z**2 * (3.0 - 2.0 * z))))
        add(log_likelihood, count, noise, theta)
    return model


#: Ricker: bounds of log r, phi and the noise; the true ones, and the number of observations.
RICKER_LOWEST, RICKER_HIGHEST = np.array([3.0, 4.0, 0.0]), np.array([5.0, 20.0, 0.8])
RICKER_TRUE, N_TIMES = np.array([3.8, 10.0, 0.3]), 50


def ricker_counts(theta, rng, size):
    """Poisson counts (size, 50) of a population N <- r N exp(e - N)."""
    log_r, phi, sd = theta
    logs = np.zeros((N_TIMES + 1, size))
    for t in range(N_TIMES):
        logs[t + 1] = log_r + logs[t] - np.exp(logs[t]) + sd * rng.standard_normal(size)
    return rng.poisson(phi * np.exp(logs[1:])).T.astype(float)


def centred(x):
    return x - x.mean(axis=-1, keepdims=True)


def ricker_summaries(counts, observed):
    """Wood's 13 statistics of counts (n, 50); a regression is on the observed differences."""
    x, n = centred(counts), counts.shape[1]
    lags = [np.sum(x[:, k:] * x[:, : n - k], axis=1) / (n - k) for k in range(6)]
    change = centred(np.sort(np.diff(observed)))
    cubic = np.linalg.pinv(np.column_stack([change, change**2, change**3]))
    powers = centred(counts**0.3)
    before = np.stack([powers[:, :-1], powers[:, :-1] ** 2], axis=-1)
    turned = before.swapaxes(1, 2)
    slopes = np.linalg.solve(turned @ before, turned @ powers[:, 1:, None])
    shares = cubic @ centred(np.sort(np.diff(counts))).T
    return np.column_stack(
        [*lags, *shares, slopes[..., 0], counts.mean(axis=1), np.sum(counts == 0, axis=1)]
    )


def ricker(count, noise):
    """Ricker's map, 3-d, by synthetic likelihoods of 100 simulations, plugged in as theirs are."""
    (observed,) = ricker_counts(RICKER_TRUE, np.random.default_rng(1), 1)
    with pm.Model() as model:
        theta = pm.Uniform("theta", RICKER_LOWEST, RICKER_HIGHEST, shape=3)
        kmc.SyntheticLikelihoodPotential(
            "counts",
            count(ricker_counts),
            theta,
            observed=observed,
            summary=functools.partial(ricker_summaries, observed=observed),
            density="plugin",
            n_simulations=100,
        )
    return model


#: g-and-k: bounds of a, b, g and k; the true ones, and the number of observations.
GK_LOWEST, GK_HIGHEST = np.array([2.5, 0.5, 1.5, 0.3]), np.array([3.5, 1.5, 2.5, 0.7])
GK_TRUE, N_OBSERVED = np.array([3.0, 1.0, 2.0, 0.5]), 10_000
#: Standard normal numbers that averages over its data are taken at.
GK_NODES = np.linspace(-8.0, 8.0, 801)


def g_and_k(theta, z):
    """Values of the g-and-k distribution at standard normal numbers z (...), theta (..., 4)."""
    a, b, g, k = np.moveaxis(theta[..., None], -2, 0)
    return a + b * (1.0 + 0.8 * np.tanh(0.5 * g * z)) * (1.0 + z**2) ** k * z


def skew_t(parameters, x):
    """Log density (n,) of Jones and Faddy's skew t, and its score (n, 4) by all parameters."""
    a, b, location, scale = parameters
    z, total = (x - location) / scale, a + b
    square = total + z**2
    u = z / np.sqrt(square)
    up, down = np.log1p(u), np.log1p(-u)
    constant = (total - 1.0) * np.log(2.0) + betaln(a, b) + 0.5 * np.log(total) + np.log(scale)
    value = (a + 0.5) * up + (b + 0.5) * down - constant
    by_z = ((a + 0.5) / (1.0 + u) - (b + 0.5) / (1.0 - u)) * total / (square * np.sqrt(square))
    both = digamma(total) - np.log(2.0) - 0.5 / total - 0.5 * by_z * z / total
    of_shapes = up + both - digamma(a), down + both - digamma(b)
    score = np.stack([*of_shapes, -by_z / scale, -(1.0 + z * by_z) / scale], axis=-1)
    return value, score


@functools.cache
def observed_g_and_k():
    """The data (10,000,), and the parameters of the skew t that fits them best."""
    data = g_and_k(GK_TRUE, np.random.default_rng(1).standard_normal(N_OBSERVED))

    def loss(logs):
        parameters = np.exp(logs)
        value, score = skew_t(parameters, data)
        return -value.sum(), -score.sum(axis=0) * parameters

    return data, np.exp(minimize(loss, np.log([2.0, 1.0, 3.0, 1.0]), jac=True).x)


def gk_simulator(theta, rng, size):
    return g_and_k(theta, rng.standard_normal((size, N_OBSERVED)))


def gk_scores(data):
    """The auxiliary model's score (n, 4) of data (n, 10,000)."""
    return skew_t(observed_g_and_k()[1], data)[1].sum(axis=-2)


def gk(count, noise):
    """g-and-k, 4-d, by synthetic likelihoods of 100 simulations, plugged in as theirs are."""
    with pm.Model() as model:
        theta = pm.Uniform("theta", GK_LOWEST, GK_HIGHEST, shape=4)
        kmc.SyntheticLikelihoodPotential(
            "data",
            count(gk_simulator),
            theta,
            observed=observed_g_and_k()[0],
            summary=gk_scores,
            density="plugin",
            n_simulations=100,
        )
    return model


def gk_log_likelihood(theta):
    """The synthetic log likelihood of theta (4,) with any number of simulations, by quadrature.

    A sum of 10,000 scores has 10,000 times the mean and the covariance of one.
    """
    data, fitted = observed_g_and_k()
    scores, weights = skew_t(fitted, g_and_k(theta, GK_NODES))[1], np.exp(-0.5 * GK_NODES**2)
    factor = np.linalg.cholesky(N_OBSERVED * np.cov(scores.T, aweights=weights, ddof=0))
    away = gk_scores(data) - N_OBSERVED * np.average(scores, axis=0, weights=weights)
    whitened = np.linalg.solve(factor, away)
    return -0.5 * whitened @ whitened - np.log(np.diag(factor)).sum()


def gk_draws(n, rng):
    """Draws by importance, of a Student t at the maximum whose scales are 1.2 times as large."""
    best = minimize(lambda theta: -gk_log_likelihood(theta), GK_TRUE)
    proposal = multivariate_t(best.x, 1.44 * best.hess_inv, df=8, seed=rng)
    theta = proposal.rvs(4 * n)
    theta = theta[((theta > GK_LOWEST) & (theta < GK_HIGHEST)).all(axis=1)]
    logs = np.array(list(map(gk_log_likelihood, theta))) - proposal.logpdf(theta)
    weights = np.exp(logs - logs.max())
    return theta[rng.choice(len(theta), n, p=weights / weights.sum())]


#: sbibm's first observation of "Gaussian linear", and the variance of its prior and its noise.
LINEAR_OBSERVED = [1.0471346, 0.5566712, -0.23618454, 0.027879834, -1.0051446]
LINEAR_OBSERVED += [-0.007930746, 0.06117077, -0.29286885, -0.38539964, 0.2449614]
LINEAR_VARIANCE = 0.1


def linear_simulator(theta, rng, size):
    return theta + np.sqrt(LINEAR_VARIANCE) * rng.standard_normal((size, len(theta)))


def linear(count, noise):
    """sbibm's "Gaussian linear", 10-d: a mean, by synthetic likelihoods of 50 simulations."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, np.sqrt(LINEAR_VARIANCE), shape=10)
        kmc.SyntheticLikelihoodPotential(
            "data", count(linear_simulator), theta, observed=LINEAR_OBSERVED, n_simulations=50
        )
    return model


def linear_draws(n, rng):
    noise = np.sqrt(0.5 * LINEAR_VARIANCE) * rng.standard_normal((n, 10))
    return 0.5 * np.array(LINEAR_OBSERVED) + noise


#: sbibm's first observation of "two moons"; the bandwidth is the width of a moon.
MOONS_OBSERVED, MOONS_EPSILON = np.array([-0.6396706, 0.16234657]), 0.01


def crescent(rng, n):
    angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, n), rng.normal(0.1, 0.01, n)
    return np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)])


def moons_simulator(theta, rng, size):
    shift = np.array([-abs(theta[0] + theta[1]), theta[1] - theta[0]]) / np.sqrt(2.0)
    return crescent(rng, size) + shift


def moons(count, noise):
    """sbibm's "two moons", 2-d, by ABC with 100 simulations an estimate."""
    with pm.Model() as model:
        theta = pm.Uniform("theta", -1, 1, shape=2)
        kmc.ABCPotential(
            "data",
            count(moons_simulator),
            theta,
            observed=MOONS_OBSERVED,
            epsilon=MOONS_EPSILON,
            n_simulations=100,
        )
    return model


def moons_draws(n, rng):
    """Exact: the prior is flat, and the moon's place is a linear map of the parameters."""
    total, difference = (crescent(rng, n) - MOONS_OBSERVED).T * np.sqrt(2.0) * [[1.0], [-1.0]]
    total = total * rng.choice([-1.0, 1.0], n)
    return 0.5 * np.column_stack([total - difference, total + difference])


FLOWS, NOISY, SBIBM = "Li et al. 2025", "Acerbi 2020", "Lueckmann et al. 2021"
PROBLEMS = {
    "rosenbrock": PublicProblem(
        rosenbrock,
        Published(FLOWS, 18_000, ".028", ".0042"),
        rosenbrock_draws,
        1800,
        log_evidence=-6.8223,
    ),
    "lumpy": PublicProblem(
        lumpy, Published(FLOWS, 30_000, ".022", ".0020"), lumpy_draws, 3000, log_evidence=0.0
    ),
    "lotka-volterra": PublicProblem(
        predator_and_prey,
        Published(FLOWS, 24_000, ".016", ".00066"),
        predator_and_prey_draws,
        2400,
    ),
    "populations": PublicProblem(
        populations, Published(FLOWS, 24_000, ".016", ".00066"), predator_and_prey_draws, 2400
    ),
    "timing": PublicProblem(timing, Published(FLOWS, 15_000, ".049", ".0086"), None, 1500, noise=3),
    "timing-350": PublicProblem(
        functools.partial(timing, is_flat=True),
        Published(NOISY, 350, ".13"),
        None,
        3500,
        350,
        noise=2,
    ),
    "ricker": PublicProblem(ricker, Published(NOISY, 250, "<.2"), None, 2500, 250),
    "g-and-k": PublicProblem(gk, Published(NOISY, 300, "<.2"), gk_draws, 3000, 300),
    "gaussian-linear": PublicProblem(
        linear, Published(SBIBM, 10_000, c2st=".534"), linear_draws, 2000, 200, simulations=50
    ),
    "two-moons": PublicProblem(
        moons, Published(SBIBM, 100_000, c2st=".653"), moons_draws, 1000, simulations=100
    ),
}
