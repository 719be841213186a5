"""Which of nine measurements tell window glass from other glass? A posterior without a likelihood.

The length scales of a Gaussian-process classifier have a posterior whose likelihood is an integral
over the 214 latent function values. It has no closed form, let alone a gradient, but importance
sampling estimates it without bias, and that is all Kernel Hamiltonian Monte Carlo needs
(Strathmann et al., 2015, section 6, on the UCI Glass data). `kmc.learn` learns the posterior once,
from estimates at some hundred places. Chains on what was learned then draw from the posterior
itself.

    python examples/glass_gp_classification.py                  # two to five minutes, or
    python examples/glass_gp_classification.py --quick          # a few iterations, to see it run

The model, for whitened measurements x_i and labels y_i = +1 (window) or -1 (other):

    theta ~ N(0, 5 I)                                           nine log inverse length scales
    f     ~ N(0, K(theta))
    K_ij  = exp(-1/2 sum_s exp(2 theta_s) (x_is - x_js)^2) + 0.001 [i = j]
    p(y | f) = prod_i 1 / (1 + exp(-y_i f_i))

and p(y | theta) is estimated around the Laplace approximation to p(f | y, theta).

References
----------
H. Strathmann, D. Sejdinovic, S. Livingstone, Z. Szabo and A. Gretton (2015). Gradient-free
    Hamiltonian Monte Carlo with efficient kernel exponential families. NeurIPS 28.
M. Filippone and M. Girolami (2014). Pseudo-marginal Bayesian inference for Gaussian processes.
    IEEE Transactions on Pattern Analysis and Machine Intelligence 36(11).
C. E. Rasmussen and C. K. I. Williams (2006). Gaussian Processes for Machine Learning, section 3.4.
"""

import argparse
import time
from pathlib import Path

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from scipy.linalg import blas, cholesky, lapack, solve_triangular
from scipy.special import expit
from scipy.stats import gaussian_kde, norm

import pymc_kmc as kmc

REFERENCE = Path(__file__).parent / "benchmarks" / "data" / "glass_posterior.npz"
# A length scale is short below this, in standard deviations: over the data, of which most lie
# within two of the mean, the classifier then bends.
SHORT = 3.0
# sd of theta under the prior (Filippone and Girolami's prior for the same model).
PRIOR_SD = 5**0.5
# Added to the diagonal of K: noise of the latent function; it also keeps K well conditioned.
JITTER = 1e-3
# Beyond this, exp(2 theta) would overflow; K is the identity long before.
LARGEST_LOG_INVERSE_SCALE = 300.0
# Newton's method has done enough when a step gains less than this in log density (the squared
# Newton decrement): one more full step, taken below in any case, then lands close to the mode.
# The estimate is unbiased wherever it stops, and its variance is the same from 0 to 10.
NEWTON_TOLERANCE = 3.0
NEWTON_MAX_STEPS = 20
# Learning: evaluations a round, many, since an estimate takes milliseconds and a fit seconds, and
# the error that ends it, in nats. From 759 evaluations, which ended at an error of one nat, chains
# had 280 effective draws of 4000.
BATCH_SIZE, TOLERANCE = 50, 0.4
# Levels at which the picture compares a run with the reference: white lines and black ticks.
QUANTILES = (0.05, 0.5, 0.95)


class GPClassifier:
    """Gaussian-process classifier with logit likelihood and a Gaussian ARD kernel.

    Parameters
    ----------
    X : numpy.ndarray, shape (n, d)
        Inputs; they are centred and whitened here.
    y : numpy.ndarray, shape (n,)
        Labels, +1 or -1.
    n_samples : int
        Importance samples an estimate. One half of them mirrors the other (antithetic draws).
    """

    def __init__(self, X, y, n_samples=100):
        X = X - X.mean(axis=0)
        factor = cholesky(np.cov(X, rowvar=False), lower=True)
        X = solve_triangular(factor, X.T, lower=True).T
        self.n_samples = n_samples
        self.y = y
        # Only the lower triangles of symmetric matrices are ever stored or read, by columns as
        # LAPACK does. The squared differences of all pairs are computed once.
        columns, rows = np.triu_indices(len(y))
        self._lower = columns * len(y) + rows
        self._squared_differences = np.asfortranarray((X[rows] - X[columns]) ** 2)

    def kernel_matrix(self, theta):
        """K(theta): shape (n, n), its lower triangle, zeros above."""
        n = len(self.y)
        inverse_scales = np.exp(2 * np.minimum(theta, LARGEST_LOG_INVERSE_SCALE))
        exponents = self._squared_differences @ (-0.5 * inverse_scales)
        K = np.zeros((n, n), order="F")
        entries = K.reshape(-1, order="F")  # a view
        entries[self._lower] = np.exp(exponents, out=exponents)
        entries[:: n + 1] += JITTER
        return K

    def log_likelihood_estimate(self, theta, rng):
        """Logarithm of an unbiased estimate of p(y | theta).

        With K = L L' and f = L z the latent values are a priori z ~ N(0, I). At a point f near the
        mode of p(f | y, theta), W the negative second derivatives of log p(y | f) there, and
        M = I + L' W L = C C', the importance density is N(z_hat, M^-1), z_hat being where a Newton
        step from f leads. A draw z = z_hat + C^-T e, e ~ N(0, I), has the log weight

            log p(y | L z) - |z|^2 / 2 + |e|^2 / 2 - log |C|.

        Parameters
        ----------
        theta : numpy.ndarray, shape (d,)
            Log inverse length scales.
        rng : numpy.random.Generator

        Returns
        -------
        float
        """
        n = len(self.y)
        K = self.kernel_matrix(theta)
        W, right_side = self._approach_mode(K)

        # The last Newton step and the importance density share one factorisation.
        L, _ = lapack.dpotrf(K, lower=1, clean=0, overwrite_a=1)
        M = np.multiply(L, np.sqrt(W)[:, None], order="F")
        M, _ = lapack.dlauum(M, lower=1, overwrite_c=1)  # the product M' M of a triangle
        M[np.diag_indices(n)] += 1
        C, _ = lapack.dpotrf(M, lower=1, clean=0, overwrite_a=1)
        z_hat, _ = lapack.dpotrs(C, blas.dtrmv(L, right_side, lower=1, trans=1), lower=1)

        # z_hat + step and z_hat - step are both draws from the importance density.
        n_minus = self.n_samples // 2
        n_plus = self.n_samples - n_minus
        e = rng.standard_normal((n_plus, n)).T
        step = blas.dtrsm(1.0, C, e, lower=1, trans_a=1)
        quadratic = 0.5 * (_column_squares(e) - _column_squares(step))
        linear = z_hat @ step
        L_step = blas.dtrmm(1.0, L, step, lower=1, overwrite_b=1)
        f = np.empty((n, self.n_samples), order="F")
        f[:, :n_plus] = L_step
        f[:, n_plus:] = -L_step[:, :n_minus]
        f += blas.dtrmv(L, z_hat, lower=1)[:, None]

        log_weights = self._log_labels(f)
        log_weights[:n_plus] += quadratic - linear
        log_weights[n_plus:] += (quadratic + linear)[:n_minus]
        largest = log_weights.max()
        log_mean = largest + np.log(np.mean(np.exp(log_weights - largest)))
        return float(log_mean - 0.5 * z_hat @ z_hat - np.log(C.diagonal()).sum())

    def _approach_mode(self, K):
        """Newton's method for the mode of p(f | y, theta) (Rasmussen and Williams, algorithm 3.1).

        It always begins at f = 0: begun where the last call ended, the estimate's distribution
        would depend on the chain's path and not on theta alone.

        Single precision will do to solve for a step: the matrix is well conditioned (K >= 0 and
        1/W >= 4), and where the importance density lies is a matter of variance, not of bias.

        Returns
        -------
        W, right_side : numpy.ndarray, shape (n,)
            At a point near the mode, the negative second derivatives of log p(y | f) and the right
            side W f + grad log p(y | f) of the next Newton step.
        """
        n = len(self.y)
        K_single = K.astype(np.float32)
        label = 0.5 * (self.y + 1)
        f = np.zeros(n)
        a = np.zeros(n)  # K^-1 f
        decrement = np.inf
        for _ in range(NEWTON_MAX_STEPS):
            probability = expit(f)
            gradient = label - probability
            W = probability * (1 - probability)
            right_side = W * f + gradient
            if decrement < NEWTON_TOLERANCE:
                break
            # a <- b - (K + W^-1)^-1 K b, b the right side. Scaled by sqrt(W) on both sides the
            # matrix is the book's I + sqrt(W) K sqrt(W); Cholesky factors don't mind the scale.
            B = K_single.copy(order="F")
            B[np.diag_indices(n)] += 1 / W
            B, _ = lapack.spotrf(B, lower=1, clean=0, overwrite_a=1)
            solution, _ = lapack.spotrs(B, blas.dsymv(1.0, K, right_side, lower=1), lower=1)
            a_new = right_side - solution
            f_new = blas.dsymv(1.0, K, a_new, lower=1)
            decrement = (gradient - a) @ (f_new - f)
            f, a = f_new, a_new
        return W, right_side

    def _log_labels(self, f):
        """log p(y | f) for each column of f, which is overwritten."""
        f *= -self.y[:, None]
        np.exp(f, out=f)
        np.log1p(f, out=f)
        return -f.sum(axis=0)


def _column_squares(a):
    return np.einsum("ij,ij->j", a, a)


def glass_classifier(n_samples=100):
    """The classifier of window glass against other glass, on the UCI Glass data."""
    glass = kmc.datasets.load_glass()
    return GPClassifier(glass.data, glass.y, n_samples)


def build_model(n_samples=100):
    """The PyMC model of the module's docstring; its likelihood is an estimate."""
    classifier = glass_classifier(n_samples)
    measurements = list(kmc.datasets.load_glass().feature_names)
    with pm.Model(coords={"measurement": measurements}) as model:
        theta = pm.Normal("theta", 0, PRIOR_SD, dims="measurement")
        kmc.PseudoMarginalPotential("loglik", classifier.log_likelihood_estimate, theta)
    return model


def load_reference():
    """Quantiles of a long run (`examples/benchmarks/glass.py`): `q05`, `q50`, `q95`, (9,) each."""
    with np.load(REFERENCE) as arrays:
        return {name: arrays[name] for name in ("q05", "q50", "q95")}


def relevance(theta):
    """Posterior probability of each measurement that its length scale is below `SHORT`.

    Parameters
    ----------
    theta : numpy.ndarray, shape (n, d)

    Returns
    -------
    numpy.ndarray, shape (d,)
    """
    return np.mean(theta > -np.log(SHORT), axis=0)


def say_what_matters(names, theta):
    """Return the answer to the example's question, in a sentence or two.

    Parameters
    ----------
    names : sequence of str
    theta : numpy.ndarray, shape (n, d)
    """
    probabilities = relevance(theta)
    groups = {
        "Surely": probabilities >= 0.95,
        "Perhaps": (probabilities >= 0.3) & (probabilities < 0.95),
        "Hardly": probabilities < 0.3,
    }
    parts = []
    for verdict, chosen in groups.items():
        if chosen.any():
            order = sorted(np.flatnonzero(chosen), key=lambda k: -probabilities[k])
            listed = ", ".join(f"{names[k]} ({probabilities[k]:.2f})" for k in order)
            parts.append(f"{verdict} {listed}.")
    return (
        f"What tells window glass from other glass? {' '.join(parts)}\n(In brackets: probability "
        f"of a length scale below {SHORT:g} standard deviations. A measurement counts for what "
        "those before it don't say.)"
    )


def as_matrix(data):
    """The draws of theta, (n, d), of all chains."""
    theta = data["theta"].values
    return theta.reshape(-1, theta.shape[-1])


def plot(draws, approximate, path):
    """The measurements in the order of what they say, beside the reference; written to `path`.

    White lines in a marginal are its 5, 50 and 95 % quantiles, black ticks below those of a long
    run.

    Parameters
    ----------
    draws, approximate : numpy.ndarray, shape (n, d), (n', d)
        Exact draws of theta, and draws of what was learned.
    path : str
    """
    names = np.array(kmc.datasets.load_glass().feature_names)
    reference = load_reference()
    probabilities = relevance(draws)
    order = np.argsort(np.median(draws, axis=0))

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    marginals, bars = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
    grid = np.linspace(-2.5, 7.0, 300)  # of the log length scale, -theta
    prior = norm.pdf(grid, scale=PRIOR_SD)
    for row, k in enumerate(order):
        density, learned = (gaussian_kde(-found[:, k])(grid) for found in (draws, approximate))
        height = 0.85 / max(density.max(), learned.max(), prior.max())
        colour = matplotlib.colormaps["viridis_r"](0.1 + 0.8 * probabilities[k])
        exact = marginals.fill_between(grid, row, row + height * density, color=colour, alpha=0.75)
        quantiles = -np.quantile(draws[:, k], QUANTILES)
        tops = row + height * np.interp(quantiles, grid, density)
        marginals.vlines(quantiles, row, tops, color="w", linewidth=1.2)
        (before,) = marginals.plot(grid, row + height * learned, color="k", lw=0.8, ls="--")
        (dotted,) = marginals.plot(grid, row + height * prior, color="0.5", linestyle=":")
        ticks = [-reference[name][k] for name in ("q05", "q50", "q95")]
        (long_run,) = marginals.plot(ticks, [row] * 3, "k|-", lw=1, ms=9, clip_on=False)
        bars.barh(row + 0.4, probabilities[k], height=0.6, color=colour)
        fits_inside = probabilities[k] > 0.8
        bars.text(
            probabilities[k] + (-0.03 if fits_inside else 0.03),
            row + 0.4,
            f"{probabilities[k]:.2f}",
            color="w" if fits_inside else "k",
            horizontalalignment="right" if fits_inside else "left",
            verticalalignment="center",
        )
    marginals.axvline(np.log(SHORT), color="0.7", linewidth=0.8, zorder=0)
    marginals.set_yticks(np.arange(len(order)) + 0.4, names[order])
    marginals.set_xlabel("length scale in standard deviations: short where it matters")
    lengths = np.array([0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000])
    marginals.set_xticks(np.log(lengths), [f"{length:g}" for length in lengths])
    marginals.set_xlim(grid[0], grid[-1])
    shown = {
        exact: "posterior, this run; 5, 50, 95 % in white",
        before: "what was learned before",
        long_run: "5, 50, 95 % after 240,000 iterations",
        dotted: "prior",
    }
    marginals.legend(shown, shown.values(), loc="upper right", frameon=False)
    bars.set_xlim(0, 1)
    bars.set_xlabel(f"probability of a\nlength scale < {SHORT:g}")
    for axes in (marginals, bars):
        axes.spines[["right", "top", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle("Which measurements tell window glass from other glass?")
    figure.savefig(path, dpi=130)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Sample the length scales of a Gaussian-process classifier on the Glass data.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=1000, help="draws kept a chain")
    parser.add_argument("--chains", type=int, default=4, help="chains, on two cores")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same draws")
    parser.add_argument("--quick", action="store_true", help="few evaluations and draws")
    parser.add_argument("--output", default="glass_gp_classification.png", help="the PNG to write")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(arguments)
    most, n_draws = (60, 50) if options.quick else (None, options.draws)
    begin = time.perf_counter()
    with build_model():
        learned = kmc.learn(
            max_evaluations=most,
            batch_size=BATCH_SIZE,
            tolerance=TOLERANCE,
            random_seed=options.seed,
        )
        print(f"\nLearned in {time.perf_counter() - begin:.0f} s: {learned}\n", flush=True)
        idata = pm.sample(
            step=kmc.KMC(learned),
            tune=50,
            draws=n_draws,
            chains=options.chains,
            cores=2,
            random_seed=options.seed,
        )
    print(f"\nLearned and sampled in {time.perf_counter() - begin:.0f} s:\n")
    print(az.summary(idata, var_names=["theta"]).to_string())
    draws = as_matrix(idata.posterior)
    names = kmc.datasets.load_glass().feature_names
    print(f"\n{say_what_matters(names, draws)}\n\n{kmc.diagnose(idata)}\n")
    plot(draws, as_matrix(learned.draws(2000, random_seed=0)), options.output)
    print(f"Marginals, beside a long run's quantiles: {options.output}")
    return idata


if __name__ == "__main__":
    main()
