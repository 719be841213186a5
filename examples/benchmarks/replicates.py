"""How many replicates, and what correlated noise is worth.

    python -m examples.benchmarks.replicates
    python -m examples.benchmarks.replicates --parts correlated --seeds 5
    python -m examples.benchmarks.replicates --quick

correlated: successes in 30 groups, whose random effects are integrated out by importance sampling
with so few draws that the log estimate has variance 10. The same estimator with fresh normal
numbers and with correlated ones (Deligiannidis, Doucet and Pitt, 2018).

auto: ESS per simulation with fixed numbers of replicates and with n_replicates="auto", for the
random effects and for approximate Bayesian computation with a Gaussian kernel.

ESS is the smallest over x and (x - mean)^2 of all parameters (ArviZ, method "mean"); everything is
a median over seeds. A simulation is one call of the estimator.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

N_GROUPS, N_TRIALS = 30, 12
#: Importance draws a group: the log estimate has variance 10 with the first, 6 with the second.
FEW_DRAWS, SOME_DRAWS = 6, 8
#: Iterations with fixed numbers of replicates: so many simulations, within bounds.
SIMULATIONS, FEWEST, MOST = 40_000, 2000, 10_000


def successes():
    rng = np.random.default_rng(1)
    effects = 0.5 + 0.8 * rng.standard_normal(N_GROUPS)
    return rng.binomial(N_TRIALS, 1.0 / (1.0 + np.exp(-effects)))


SUCCESSES = successes()


def random_effects(intercept, spread, normals):
    """Log likelihood estimated with normal numbers, shape (n, N_GROUPS); no constants.

    The proposal is the effects' prior.
    """
    logit = intercept + spread * normals
    terms = SUCCESSES * logit - N_TRIALS * np.logaddexp(0.0, logit)
    largest = terms.max(axis=0)
    return float(np.sum(largest + np.log(np.mean(np.exp(terms - largest), axis=0))))


def random_effects_model(n_draws, with_u, **options):
    def from_u(intercept, spread, u):
        return random_effects(intercept, spread, u.reshape(n_draws, N_GROUPS))

    def from_rng(intercept, spread, rng):
        return random_effects(intercept, spread, rng.standard_normal((n_draws, N_GROUPS)))

    if with_u:
        options["n_normals"] = n_draws * N_GROUPS
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2, initval=0.5)
        spread = pm.HalfNormal("spread", 2, initval=0.8)
        estimator = from_u if with_u else from_rng
        kmc.PseudoMarginalPotential("loglik", estimator, intercept, spread, **options)
    return model


def abc_model(**options):
    """Mean and log sd of 20 normals from their sample's mean and log sd."""

    def estimator(mean, log_sd, rng):
        sample = mean + np.exp(log_sd) * rng.standard_normal(20)
        distances = (sample.mean() - 1.0) / 0.15, (np.log(sample.std()) - 0.0) / 0.15
        return -0.5 * (distances[0] ** 2 + distances[1] ** 2)

    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 3, initval=1.0)
        log_sd = pm.Normal("log_sd", 0, 1)
        kmc.PseudoMarginalPotential("loglik", estimator, mean, log_sd, **options)
    return model


def chain(model, step_class, seed, tune, n_draws):
    """ESS, acceptance, noise variance, replicates and simulations of a chain after tuning."""
    with model:
        step = step_class()
    step.set_rng(np.random.default_rng(seed))
    point = model.initial_point()
    for _ in range(tune):
        point, _ = step.step(point)
    step.stop_tuning()
    n = step.target.n_replicates
    draws, accepted = [], 0
    for _ in range(n_draws(n)):
        point, (statistics,) = step.step(point)
        draws.append(np.concatenate([np.ravel(value) for value in point.values()]))
        accepted += statistics["kmc_accepted"]
    draws = np.array(draws)
    values = np.concatenate([draws, (draws - draws.mean(axis=0)) ** 2], axis=1).T
    ess = min(
        float(az.ess(np.stack(np.split(x[: len(x) // 2 * 2], 2)), method="mean")) for x in values
    )
    return ess, accepted / len(draws), statistics["kmc_noise_variance"], n, n * len(draws)


def median(model, step_class, seeds, tune, n_draws):
    """Acceptance, noise variance, replicates, ESS per 1000 simulations."""
    rows = []
    for seed in range(seeds):
        ess, acceptance, variance, n, simulations = chain(model, step_class, seed, tune, n_draws)
        rows.append((acceptance, variance, n, 1000 * ess / simulations))
    return np.median(rows, axis=0)


def correlated(options):
    rows = []
    for name in options.steps.split(","):
        for correlation in (0.0, 0.9, 0.99):
            model = random_effects_model(FEW_DRAWS, True, correlation=correlation)
            found = median(
                model, getattr(kmc, name), options.seeds, options.tune, lambda n: options.draws
            )
            acceptance, variance, _, ess = found
            if correlation == 0:
                plain = acceptance, ess
            row = [name, f"{correlation:g}", f"{variance:.2f}", f"{acceptance:.3f}", f"{ess:.1f}"]
            rows.append([*row, f"{acceptance / plain[0]:.1f}", f"{ess / plain[1]:.1f}"])
            print(rows[-1], flush=True)
    header = ["step", "correlation", "noise variance", "acceptance", "ESS per 1000 simulations"]
    print(markdown([*header, "acceptance / plain", "ESS / plain"], rows), flush=True)


def auto(options):
    def n_draws(n):
        if options.quick:
            return options.draws
        return int(np.clip(SIMULATIONS // n, FEWEST, MOST))

    models = {
        "random effects": lambda n: random_effects_model(SOME_DRAWS, False, n_replicates=n),
        "ABC": lambda n: abc_model(n_replicates=n),
    }
    numbers = [int(number) for number in options.numbers.split(",") if number]
    rows = []
    for name in options.models.split(","):
        model_of = models[name]
        best = -np.inf
        for n_replicates in (*numbers, "auto"):
            found = median(
                model_of(n_replicates), kmc.AdaptiveMetropolis, options.seeds, options.tune, n_draws
            )
            acceptance, variance, n, ess = found
            row = [name, n_replicates, f"{n:.0f}", f"{variance:.2f}", f"{acceptance:.3f}"]
            share = f"{ess / best:.2f}" if n_replicates == "auto" and best > 0 else ""
            best = max(best, ess)
            rows.append([*map(str, row), f"{ess:.2f}", share])
            print(rows[-1], flush=True)
    header = ["model", "n_replicates", "replicates", "noise variance", "acceptance"]
    print(markdown([*header, "ESS per 1000 simulations", "of the best fixed"], rows), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="How many replicates, and what correlated noise is worth.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--parts", default="correlated,auto", help="comma-separated")
    parser.add_argument("--steps", default="AdaptiveMetropolis,KMC", help="of correlated")
    parser.add_argument("--models", default="random effects,ABC", help="of auto")
    parser.add_argument("--numbers", default="1,2,4,8,16,32,64", help="fixed ones, of auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=5000, help="of correlated")
    parser.add_argument("--quick", action="store_true", help="one seed, tune 450, draws 200")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.tune, options.draws, options.numbers = 1, 450, 200, "1,4"
    for part in options.parts.split(","):
        {"correlated": correlated, "auto": auto}[part](options)


if __name__ == "__main__":
    main()
