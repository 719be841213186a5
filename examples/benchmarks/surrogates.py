"""Speed of the surrogates, beside plain NumPy and beside what was aimed at.

Run as ``python -m examples.benchmarks.surrogates``; prints Markdown. One thread (the environment
variables are set before NumPy is imported), 8 dimensions.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import time  # noqa: E402
import warnings  # noqa: E402

import numba  # noqa: E402
import numpy as np  # noqa: E402

from pymc_kmc.surrogates import (  # noqa: E402
    KernelExpFinite,
    KernelExpLite,
    LogDensityGP,
    gradient_at,
    select,
)

DIMENSION = 8
SIGMA = 20.0
SIZES = (200, 500, 1000, 2000)
#: Targets, in microseconds a gradient and milliseconds an update.
GRADIENT_TARGETS = {("finite", 1000): 11.0, ("lite", 1000): 5.0}
UPDATE_TARGET = 5.0


@numba.njit
def trajectory(parameters, x, momentum, step_size, n_leapfrog):
    """A leapfrog trajectory, as a sampler runs it: one gradient a step."""
    gradient = np.empty_like(x)
    gradient_at(parameters, x, gradient)
    for _ in range(n_leapfrog):
        momentum += 0.5 * step_size * gradient
        x += step_size * momentum
        gradient_at(parameters, x, gradient)
        momentum += 0.5 * step_size * gradient


def gradient_microseconds(surrogate, x, n_leapfrog=500, repeats=30):
    """Best time, of several, of one gradient inside a compiled trajectory."""
    parameters = surrogate.parameters_
    trajectory(parameters, x.copy(), np.zeros_like(x), 1e-6, 1)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        trajectory(parameters, x.copy(), np.zeros_like(x), 1e-6, n_leapfrog)
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / (n_leapfrog + 1)


def numpy_gradient(surrogate):
    """The gradient at one point as a few lines of NumPy."""
    if isinstance(surrogate, KernelExpLite):
        points, alpha, sigma = surrogate.points_, surrogate.coefficients_, surrogate.sigma

        def gradient(x):
            delta = points - x
            weights = alpha * np.exp(-np.einsum("nd,nd->n", delta, delta) / sigma)
            return 2.0 / sigma * (weights @ delta)

        return gradient
    omega, phase = surrogate.omega_, surrogate.phase_
    theta = surrogate.parameters_.coefficients
    return lambda x: -omega @ (theta * np.sin(x @ omega + phase))


def numpy_microseconds(surrogate, x, calls=1000):
    """Best time, of several, of one NumPy gradient, the call included."""
    gradient = numpy_gradient(surrogate)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(calls // 10):
            gradient(x)
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / (calls // 10)


def surrogate_of(kind, size, X):
    """A fitted surrogate of ``size`` points or features, and the seconds to fit it."""
    if kind == "lite":
        surrogate, X = KernelExpLite(SIGMA, 1.0), X[:size]
    else:
        surrogate, X = KernelExpFinite(size, SIGMA, 1e-3, rng=0), X[:size]
    start = time.perf_counter()
    surrogate.fit(X)
    return surrogate, time.perf_counter() - start


def log_density_gp(X):
    """Print what fits of LogDensityGP and its gradients cost, on a banana's values."""
    print("\n### LogDensityGP, p = 54 trend features\n")
    print("| values n | landmarks m | first fit, ms | later fits, ms | gradient, us |")
    print("|---:|---:|---:|---:|---:|")
    X = X.copy()
    X[:, 1] += 0.5 * X[:, 0] ** 2
    values = -0.5 * (X**2).sum(axis=1) + 0.5 * X[:, 1] ** 2
    values -= 0.5 * (X[:, 1] - 0.5 * X[:, 0] ** 2) ** 2
    for n in (500, 2500):
        for m in (100, 300):
            milliseconds, last = [], None
            for _ in range(4):
                start = time.perf_counter()
                last = LogDensityGP(m, rng=1).fit(X[:n], values[:n], last=last)
                milliseconds.append(1e3 * (time.perf_counter() - start))
            later = np.median(milliseconds[1:])
            gradient = gradient_microseconds(last, X[0])
            print(f"| {n} | {m} | {milliseconds[0]:.0f} | {later:.0f} | {gradient:.2f} |")


def main():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2500, DIMENSION))

    print(f"### Gradient inside a compiled trajectory, d = {DIMENSION}, one thread\n")
    print("| surrogate | size | compiled, us | target | NumPy, us | fit, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in ("lite", "finite"):
        for size in SIZES:
            surrogate, seconds = surrogate_of(kind, size, X)
            compiled = gradient_microseconds(surrogate, X[0])
            plain = numpy_microseconds(surrogate, X[0])
            target = GRADIENT_TARGETS.get((kind, size))
            wanted = f"<= {target:g}" if target else ""
            cells = (kind, size, f"{compiled:.2f}", wanted, f"{plain:.1f}", f"{1e3 * seconds:.1f}")
            print("| " + " | ".join(map(str, cells)) + " |")
    print("\nSize: n points (lite), m features (finite).")

    print("\n### Online update of KernelExpFinite, one point\n")
    print("| m | mean, ms | median, ms | worst, ms | target (mean) |")
    print("|---:|---:|---:|---:|---:|")
    for m in SIZES:
        surrogate = KernelExpFinite(m, SIGMA, 1e-3, rng=0).fit(X[:1000]).update(X[1000])
        times = []
        for x in X[1001:1201]:
            start = time.perf_counter()
            surrogate.update(x)
            times.append(1e3 * (time.perf_counter() - start))
        target = f"<= {UPDATE_TARGET:g}" if m == 1000 else ""
        print(
            f"| {m} | {np.mean(times):.2f} | {np.median(times):.2f} | {max(times):.2f} | {target} |"
        )

    log_density_gp(X)

    print("\n### Choosing sigma and the regularisation (`select`), 2000 states\n")
    print("| estimator | cold, s | bandwidths tried | warm, s | bandwidths tried |")
    print("|---|---:|---:|---:|---:|")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a Gaussian's best sigma may be at the edge
        for kind in ("lite", "finite"):
            cells, warm_start = [], None
            for _ in range(2):
                start = time.perf_counter()
                warm_start = select(X[:2000], kind, random_seed=1, warm_start=warm_start)
                cells.append(f"{time.perf_counter() - start:.2f} | {len(warm_start.table)}")
            print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
