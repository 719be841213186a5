"""Targets with known moments, for benchmarks: from Gaussians to the posterior behind an ODE.

Each is a :class:`Target`: the density, its gradient and, where there are any, exact draws in NumPy,
and the same density as a PyMC model with one variable, ``x``. The model's density is a
`pymc.Potential` on a flat prior, so that a step's unconstrained coordinates are x itself.

    python -m examples.benchmarks.targets      # checks each target against itself
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from examples.benchmarks import lotka_volterra as lynx_and_hare

#: Starting points are this far out, in every coordinate.
START_SD = 3.0


@dataclasses.dataclass(frozen=True)
class Target:
    """A density on R^d whose moments are known.

    Attributes
    ----------
    name : str
    mean : ndarray, shape (d,)
    covariance : ndarray, shape (d, d)
        Exact, unless the target says otherwise; so are the others that follow from it.
    log_density : callable
        Up to a constant, (..., d) to (...).
    gradient : callable
        Of `log_density`, (..., d) to (..., d).
    symbolic : callable
        `log_density` of a PyTensor vector, with a gradient.
    sample : callable or None
        ``sample(n, rng)`` are n independent draws, (n, d).
    axes : ndarray, shape (k, d), optional
        Rows are the directions along which spread and mixing are to be judged, by default all
        coordinates.
    start : callable, optional
        ``start(rng)`` is a starting point (d,) of a chain that nothing was done to place well, by
        default a draw from N(0, 9 I).
    """

    name: str
    mean: np.ndarray
    covariance: np.ndarray
    log_density: Callable
    gradient: Callable
    symbolic: Callable
    sample: Callable | None = None
    axes: np.ndarray | None = None
    start: Callable | None = None

    def __post_init__(self):
        if self.axes is None:
            object.__setattr__(self, "axes", np.eye(self.dimension))
        if self.start is None:
            start = functools.partial(_far_out, np.zeros(self.dimension), np.ones(self.dimension))
            object.__setattr__(self, "start", start)

    @property
    def dimension(self):
        return len(self.mean)

    @property
    def sd(self):
        """Standard deviation of each coordinate of x, (d,)."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def axes_mean(self):
        """Mean along each of the axes, (k,)."""
        return self.axes @ self.mean

    @property
    def axes_sd(self):
        """Standard deviation along each of the axes, (k,)."""
        return np.sqrt(np.diag(self.axes @ self.covariance @ self.axes.T))

    def along_axes(self, x):
        """The draws' coordinates to be judged by, (..., d) to (..., k)."""
        return x @ self.axes.T

    def model(self):
        """The target as a PyMC model of one variable, x."""
        with pm.Model() as model:
            x = pm.Flat("x", shape=self.dimension)
            pm.Potential("log_density", self.symbolic(x))
        return model


def _far_out(mean, sd, rng):
    return mean + START_SD * sd * rng.standard_normal(len(mean))


def random_rotation(dimension, rng):
    """An orthogonal matrix, uniformly distributed."""
    Q, R = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    return Q * np.sign(np.diag(R))


def rotated(target, Q, name):
    """The density of Q y where y has the target's, Q orthogonal; the axes turn with it."""
    return Target(
        name=name,
        mean=Q @ target.mean,
        covariance=Q @ target.covariance @ Q.T,
        log_density=lambda x: target.log_density(np.asarray(x) @ Q),
        gradient=lambda x: target.gradient(np.asarray(x) @ Q) @ Q.T,
        symbolic=lambda x: target.symbolic(pt.dot(pt.constant(Q.T), x)),
        sample=lambda n, rng: target.sample(n, rng) @ Q.T,
        axes=target.axes @ Q.T,
    )


def banana(b=0.03, v=100.0, dimension=8):
    """The banana B(b, v): N(0, diag(v, 1, ..., 1)), twisted by x_2 <- x_2 + b (x_1^2 - v).

    Haario, H., Saksman, E. and Tamminen, J. (1999). Adaptive proposal distribution for random walk
    Metropolis algorithm. *Computational Statistics* 14, 375-395.
    """

    def log_density(x):
        x = np.asarray(x)
        twisted = x[..., 1] - b * (x[..., 0] ** 2 - v)
        others = np.sum(x[..., 2:] ** 2, axis=-1)
        return -0.5 * (x[..., 0] ** 2 / v + twisted**2 + others)

    def gradient(x):
        out = -np.asarray(x, dtype=float)
        twisted = x[..., 1] - b * (x[..., 0] ** 2 - v)
        out[..., 0] = -x[..., 0] / v + 2.0 * b * x[..., 0] * twisted
        out[..., 1] = -twisted
        return out

    def symbolic(x):
        twisted = x[1] - b * (x[0] ** 2 - v)
        return -0.5 * (x[0] ** 2 / v + twisted**2 + pt.sum(x[2:] ** 2))

    def sample(n, rng):
        x = rng.standard_normal((n, dimension))
        x[:, 0] *= np.sqrt(v)
        x[:, 1] += b * (x[:, 0] ** 2 - v)
        return x

    variances = np.ones(dimension)
    variances[0] = v
    variances[1] = 1.0 + 2.0 * (b * v) ** 2  # var(x_1^2) = 2 v^2; x_1 and x_2 are uncorrelated
    return Target(
        name=f"banana({b:g}, {v:g}), {dimension}-d",
        mean=np.zeros(dimension),
        covariance=np.diag(variances),
        log_density=log_density,
        gradient=gradient,
        symbolic=symbolic,
        sample=sample,
    )


def rotated_banana(b=0.1, v=100.0, dimension=8, seed=7):
    """The banana, uniformly rotated."""
    Q = random_rotation(dimension, np.random.default_rng(seed))
    return rotated(banana(b, v, dimension), Q, f"banana({b:g}, {v:g}), rotated, {dimension}-d")


def gaussian(variances):
    """N(0, diag(variances))."""
    variances = np.asarray(variances, dtype=float)
    return Target(
        name=f"Gaussian, {len(variances)}-d",
        mean=np.zeros(len(variances)),
        covariance=np.diag(variances),
        log_density=lambda x: -0.5 * np.sum(np.asarray(x) ** 2 / variances, axis=-1),
        gradient=lambda x: -np.asarray(x) / variances,
        symbolic=lambda x: -0.5 * pt.sum(x**2 / variances),
        sample=lambda n, rng: rng.standard_normal((n, len(variances))) * np.sqrt(variances),
    )


def rotated_gaussian(dimension=10, seed=3):
    """N(0, Q diag(eigenvalues) Q'), eigenvalues from Gamma(1, 1), Q uniform on the rotations.

    Sejdinovic, D., Strathmann, H., Lomeli, M., Andrieu, C. and Gretton, A. (2014). Kernel adaptive
    Metropolis-Hastings. *ICML* 31.

    In 10 dimensions seed 3 has a smallest eigenvalue, .07, near the median over seeds; with seed 0
    the condition number is 3000.
    """
    rng = np.random.default_rng(seed)
    eigenvalues = rng.gamma(1.0, 1.0, size=dimension)
    Q = random_rotation(dimension, rng)
    return rotated(gaussian(eigenvalues), Q, f"rotated Gaussian, {dimension}-d")


def two_modes(separation=2.5, dimension=5):
    """An equal mixture of N(m, I) and N(-m, I), m = (separation, 0, ..., 0)."""

    def log_density(x):
        x = np.asarray(x)
        along = separation * x[..., 0]
        return np.logaddexp(along, -along) - 0.5 * np.sum(x**2, axis=-1)

    def gradient(x):
        out = -np.asarray(x, dtype=float)
        out[..., 0] += separation * np.tanh(separation * x[..., 0])
        return out

    def symbolic(x):
        along = separation * x[0]
        return pt.logaddexp(along, -along) - 0.5 * pt.sum(x**2)

    def sample(n, rng):
        x = rng.standard_normal((n, dimension))
        x[:, 0] += separation * rng.choice([-1.0, 1.0], size=n)
        return x

    variances = np.ones(dimension)
    variances[0] += separation**2
    return Target(
        name=f"two modes at +-{separation:g}, {dimension}-d",
        mean=np.zeros(dimension),
        covariance=np.diag(variances),
        log_density=log_density,
        gradient=gradient,
        symbolic=symbolic,
        sample=sample,
    )


def student_t(degrees=5.0, dimension=8):
    """The multivariate Student t of unit scale."""
    power = 0.5 * (degrees + dimension)

    def gradient(x):
        x = np.asarray(x)
        return -2.0 * power * x / (degrees + np.sum(x**2, axis=-1, keepdims=True))

    def sample(n, rng):
        scale = np.sqrt(degrees / rng.chisquare(degrees, size=(n, 1)))
        return scale * rng.standard_normal((n, dimension))

    return Target(
        name=f"Student t{degrees:g}, {dimension}-d",
        mean=np.zeros(dimension),
        covariance=degrees / (degrees - 2.0) * np.eye(dimension),
        log_density=lambda x: -power * np.log1p(np.sum(np.asarray(x) ** 2, axis=-1) / degrees),
        gradient=gradient,
        symbolic=lambda x: -power * pt.log1p(pt.sum(x**2) / degrees),
        sample=sample,
    )


def funnel(dimension=5, sd=3.0):
    """Neal's funnel: x_1 ~ N(0, sd^2), the others N(0, exp(x_1)).

    Judged along x_1 alone: the variance of the others, exp(sd^2 / 2), is made of rare events.

    Neal, R. M. (2003). Slice sampling. *Annals of Statistics* 31, 705-767.
    """
    n_others = dimension - 1

    def log_density(x):
        x = np.asarray(x)
        squares = np.sum(x[..., 1:] ** 2, axis=-1)
        neck = x[..., 0]
        return -0.5 * ((neck / sd) ** 2 + n_others * neck + np.exp(-neck) * squares)

    def gradient(x):
        x = np.asarray(x)
        precision = np.exp(-x[..., :1])
        squares = np.sum(x[..., 1:] ** 2, axis=-1, keepdims=True)
        along_neck = -x[..., :1] / sd**2 + 0.5 * (precision * squares - n_others)
        return np.concatenate([along_neck, -precision * x[..., 1:]], axis=-1)

    def symbolic(x):
        squares = pt.sum(x[1:] ** 2)
        return -0.5 * ((x[0] / sd) ** 2 + n_others * x[0] + pt.exp(-x[0]) * squares)

    def sample(n, rng):
        x = rng.standard_normal((n, dimension))
        x[:, 0] *= sd
        x[:, 1:] *= np.exp(0.5 * x[:, :1])
        return x

    return Target(
        name=f"funnel, {dimension}-d",
        mean=np.zeros(dimension),
        covariance=np.diag([sd**2] + n_others * [np.exp(0.5 * sd**2)]),
        log_density=log_density,
        gradient=gradient,
        symbolic=symbolic,
        sample=sample,
        axes=np.eye(1, dimension),
    )


def flower(radius=10.0, petal=6.0, n_petals=6, dimension=8):
    """A ring of width 1 in the first two coordinates, bent into petals; the others are N(0, 1).

    Its distance from the origin at the angle a is radius + petal cos(n_petals a).

    Sejdinovic et al. (2014), as for :func:`rotated_gaussian`.
    """

    def ridge(x, y, module):
        return radius + petal * module.cos(n_petals * module.arctan2(y, x))

    def log_density(x):
        x = np.asarray(x)
        across = np.hypot(x[..., 0], x[..., 1]) - ridge(x[..., 0], x[..., 1], np)
        return -0.5 * (across**2 + np.sum(x[..., 2:] ** 2, axis=-1))

    def gradient(x):
        out = -np.asarray(x, dtype=float)
        r = np.hypot(out[..., 0], out[..., 1])
        angle = np.arctan2(-out[..., 1], -out[..., 0])
        across = r - radius - petal * np.cos(n_petals * angle)
        along = -across * petal * n_petals * np.sin(n_petals * angle) / r
        out[..., 0] = -across * np.cos(angle) - along * np.sin(angle)
        out[..., 1] = -across * np.sin(angle) + along * np.cos(angle)
        return out

    def symbolic(x):
        across = pt.sqrt(x[0] ** 2 + x[1] ** 2) - ridge(x[0], x[1], pt)
        return -0.5 * (across**2 + pt.sum(x[2:] ** 2))

    def sample(n, rng):
        # An area far out is larger: proposals are accepted in proportion to their radius.
        farthest = radius + petal + 8.0
        angle = rng.uniform(-np.pi, np.pi, size=4 * n + 100)
        r = radius + petal * np.cos(n_petals * angle) + rng.standard_normal(len(angle))
        kept = np.flatnonzero(rng.uniform(0.0, farthest, size=len(angle)) < r)[:n]
        x = rng.standard_normal((n, dimension))
        x[:, 0] = r[kept] * np.cos(angle[kept])
        x[:, 1] = r[kept] * np.sin(angle[kept])
        return x

    variances = np.ones(dimension)
    # E r^2 / 2, r with density proportional to r N(r; ridge, 1), over all angles.
    variances[:2] = 0.5 * (radius**2 + 1.5 * petal**2 + 3.0)
    return Target(
        name=f"flower, {n_petals} petals, {dimension}-d",
        mean=np.zeros(dimension),
        covariance=np.diag(variances),
        log_density=log_density,
        gradient=gradient,
        symbolic=symbolic,
        sample=sample,
    )


#: Estimated effects of coaching and their standard errors (Rubin, 1981).
SCHOOL_EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOL_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
#: mu ~ N(0, 5^2) and tau ~ half-Cauchy(5), as in Stan's version of the example.
SCHOOLS_PRIOR_SCALE = 5.0
#: log tau at which the posterior given tau is put together; what is outside weighs 1e-8.
LOG_TAU_GRID = np.linspace(-20.0, 10.0, 3001)


def eight_schools():
    """Eight schools, non-centred: x = (mu, log tau, eta_1, ..., eta_8).

    y_j ~ N(mu + tau eta_j, s_j^2), eta_j ~ N(0, 1), mu ~ N(0, 5^2), tau ~ half-Cauchy(5). Given tau
    everything is Gaussian, and so moments and draws are exact but for a quadrature over log tau.

    Rubin, D. B. (1981). Estimation in parallel randomized experiments. *Journal of Educational
    Statistics* 6, 377-401.
    """
    effects, variances, scale = SCHOOL_EFFECTS, SCHOOL_ERRORS**2, SCHOOLS_PRIOR_SCALE

    def log_density(x):
        x = np.asarray(x)
        mu, log_tau, eta = x[..., :1], x[..., 1], x[..., 2:]
        residuals = effects - mu - np.exp(x[..., 1:2]) * eta
        prior = log_tau - np.log1p(np.exp(2.0 * log_tau) / scale**2)
        prior = prior - 0.5 * ((mu[..., 0] / scale) ** 2 + np.sum(eta**2, axis=-1))
        return prior - 0.5 * np.sum(residuals**2 / variances, axis=-1)

    def gradient(x):
        x = np.asarray(x)
        mu, tau, eta = x[..., :1], np.exp(x[..., 1:2]), x[..., 2:]
        scores = (effects - mu - tau * eta) / variances
        along_mu = np.sum(scores, axis=-1, keepdims=True) - mu / scale**2
        along_tau = 1.0 - 2.0 * tau**2 / (scale**2 + tau**2)
        along_tau = along_tau + tau * np.sum(scores * eta, axis=-1, keepdims=True)
        return np.concatenate([along_mu, along_tau, tau * scores - eta], axis=-1)

    def symbolic(x):
        mu, log_tau, eta = x[0], x[1], x[2:]
        residuals = effects - mu - pt.exp(log_tau) * eta
        prior = log_tau - pt.log1p(pt.exp(2.0 * log_tau) / scale**2)
        prior = prior - 0.5 * ((mu / scale) ** 2 + pt.sum(eta**2))
        return prior - 0.5 * pt.sum(residuals**2 / variances)

    def sample(n, rng):
        cumulative = np.cumsum(_log_tau_weights())
        log_tau = np.interp(rng.uniform(size=n), cumulative / cumulative[-1], LOG_TAU_GRID)
        mean, spread, slope, residual = _schools_given(log_tau)
        deviation = np.sqrt(spread)[:, None] * rng.standard_normal((n, 1))
        eta = slope * (effects - mean[:, None] - deviation)
        eta += np.sqrt(residual) * rng.standard_normal((n, len(effects)))
        return np.column_stack([mean + deviation[:, 0], log_tau, eta])

    mean, covariance = _eight_schools_moments()
    return Target(
        name="eight schools, non-centred, 10-d",
        mean=mean,
        covariance=covariance,
        log_density=log_density,
        gradient=gradient,
        symbolic=symbolic,
        sample=sample,
    )


def _schools_given(log_tau):
    """The Gaussian posterior of mu and eta for each of n values of log tau.

    mu ~ N(mean, spread), both (n,); eta_j ~ N(slope_j (y_j - mu), residual_j), both (n, 8).
    """
    tau, variances = np.exp(log_tau)[:, None], SCHOOL_ERRORS**2
    precision = 1.0 / (variances + tau**2)
    spread = 1.0 / (SCHOOLS_PRIOR_SCALE**-2 + precision.sum(axis=1))
    return spread * (precision @ SCHOOL_EFFECTS), spread, tau * precision, variances * precision


def _log_tau_weights():
    """Posterior density of log tau on its grid, normalised to sum to one."""
    mean, spread, _, _ = _schools_given(LOG_TAU_GRID)
    total = SCHOOL_ERRORS**2 + np.exp(2.0 * LOG_TAU_GRID)[:, None]
    log_weights = 0.5 * (np.log(spread) + mean**2 / spread)
    log_weights -= 0.5 * np.sum(np.log(total) + SCHOOL_EFFECTS**2 / total, axis=1)
    log_weights += LOG_TAU_GRID - np.log1p(np.exp(2.0 * LOG_TAU_GRID) / SCHOOLS_PRIOR_SCALE**2)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def _eight_schools_moments():
    """Posterior mean (10,) and covariance (10, 10), by quadrature over log tau."""
    weights = _log_tau_weights()
    mean, spread, slope, residual = _schools_given(LOG_TAU_GRID)
    n, n_schools = slope.shape
    # Given tau, x is linear in mu, with independent residuals in eta.
    conditional = np.column_stack([mean, LOG_TAU_GRID, slope * (SCHOOL_EFFECTS - mean[:, None])])
    per_mu = np.column_stack([np.ones(n), np.zeros(n), -slope])
    overall = weights @ conditional
    deviation = conditional - overall
    covariance = (deviation.T * weights) @ deviation
    covariance += (per_mu.T * (weights * spread)) @ per_mu
    etas = np.arange(2, 2 + n_schools)
    covariance[etas, etas] += weights @ residual
    return overall, covariance


def lotka_volterra(from_prior=False):
    """:mod:`examples.benchmarks.lotka_volterra`; its moments are those of a long NUTS run.

    The logarithms of the rates have standard deviations of .1, and N(0, 9 I) is so far out that
    half of NUTS's chains don't find the way. Chains start three standard deviations out,
    as those of the other targets do, or at a draw from the prior, from where NUTS finds it and a
    random walk ends in another mode, of negligible mass, half the time.
    """
    mean, covariance = lynx_and_hare.load_reference()
    far_out = functools.partial(_far_out, mean, np.sqrt(np.diag(covariance)))
    return Target(
        name="Lotka-Volterra, 8-d" + (", started at the prior" if from_prior else ""),
        mean=mean,
        covariance=covariance,
        log_density=lynx_and_hare.log_density,
        gradient=lynx_and_hare.gradient,
        symbolic=lynx_and_hare.LogDensity(),
        start=lynx_and_hare.prior_draw if from_prior else far_out,
    )


TARGETS = {
    "banana": banana,
    "strong-banana": lambda: banana(0.1),
    "rotated-banana": rotated_banana,
    "gaussian": rotated_gaussian,
    "ill-conditioned": lambda: dataclasses.replace(
        rotated_gaussian(seed=0), name="ill-conditioned Gaussian, 10-d"
    ),
    "gaussian-20": lambda: rotated_gaussian(20),
    "gaussian-50": lambda: rotated_gaussian(50),
    "two-modes": two_modes,
    "eight-schools": eight_schools,
    "student-t": student_t,
    "funnel": funnel,
    "flower": flower,
    "lotka-volterra": lotka_volterra,
    "lotka-volterra-prior": lambda: lotka_volterra(from_prior=True),
}


def markdown(header, rows):
    """A Markdown table; cells are strings."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def check(target, rng, n=200_000):
    """Largest errors of: gradient, density and gradient in PyMC, mean and sd of draws (in sds).

    The gradient is compared with central differences; the two of the draws are taken along the
    axes, and NaN for a target that has no exact draws.
    """
    x = target.sample(n, rng) if target.sample else target.mean[None, :]
    point, step = x[0], 1e-6 * np.eye(target.dimension)
    numeric = (target.log_density(point + step) - target.log_density(point - step)) / 2e-6
    gradient, model = target.gradient(point), target.model()
    in_model = model.compile_dlogp()({"x": point})
    along = target.along_axes(x)
    of_draws = [
        np.max(np.abs(along.mean(axis=0) - target.axes_mean) / target.axes_sd),
        np.max(np.abs(along.std(axis=0) / target.axes_sd - 1.0)),
    ]
    return [
        np.max(np.abs(numeric - gradient) / (1.0 + np.abs(numeric))),
        abs(float(model.compile_logp()({"x": point}) - target.log_density(point))),
        np.max(np.abs(in_model - gradient)),
        *(of_draws if target.sample else [np.nan, np.nan]),
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Check the targets against themselves.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    header = ["target", "gradient", "density in PyMC", "gradient in PyMC"]
    header += ["mean of draws / sd", "sd of draws / sd - 1"]
    rows = []
    for make in TARGETS.values():
        target = make()
        rows.append([target.name, *(f"{error:.1e}" for error in check(target, rng))])
    print("Largest errors; the last two are Monte Carlo errors of 200,000 draws.\n")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
