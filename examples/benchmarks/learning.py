"""What learning once costs: evaluations of all phases, and what the chains do with it.

    python -m examples.benchmarks.learning                                # some minutes
    python -m examples.benchmarks.learning --targets outputs,scalar --seeds 3
    python -m examples.benchmarks.learning --no-chains                    # what learning costs
    python -m examples.benchmarks.learning --quick

Every run is `kmc.learn`, from PyMC's own jittered starts and draws of the prior, then four chains
of `kmc.KMC(learned)` with 200 iterations of tuning and 1000 draws each. Cells are "median (worst)"
over seeds.

learning       evaluations of the opaque part until it was learned, all starts and searches counted
tuning         evaluations of the four chains while tuning
in chains      evaluations of four chains of KMC(learn=False) while tuning
ESS            the smallest bulk effective sample size over variables, of x and of (x - mean)^2, per
               1000 evaluations while drawing
mean, sd       the largest error of a mean, in standard deviations, and of a log standard deviation:
               of the draws; of what was learned, before any draw
to 400         evaluations of all phases to 400 effective draws; beside it, as a share of what
               KMC(learn=False) takes while tuning alone
own seconds    of processor time besides the model: of learning
own ms         of a proposal of the chains

References: Lotka-Volterra's moments are NUTS's (:mod:`examples.benchmarks.lotka_volterra`), as the
panel's are, Glass's are those of a long run (:mod:`examples.benchmarks.glass`), eight schools' are
exact; the others' are those of 4 x 5000 draws of the same chains, which are exact
however well anything was learned.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks import lotka_volterra as lynx_and_hare  # noqa: E402
from examples.benchmarks.glass import load_reference  # noqa: E402
from examples.benchmarks.targets import (  # noqa: E402
    SCHOOL_EFFECTS,
    SCHOOL_ERRORS,
    TARGETS,
    markdown,
)

TUNE, DRAWS, CHAINS = 200, 1000, 4
QUICK_DRAWS = 200
#: Effective draws whose price is told.
EFFECTIVE = 400
REFERENCE_DRAWS = 5000
#: Largest logarithm of a population that has left the numbers.
LARGEST_LOG = 300.0


def populations(rates, first):
    """Hares and lynx of 21 years, (21, 2)."""
    x = np.concatenate([np.log(rates), np.log(first), np.zeros(2)])
    n_years = len(lynx_and_hare.LOG_COUNTS)
    states = lynx_and_hare.solve(x, 0, n_years, lynx_and_hare.STEPS_A_YEAR)[:, :, 0]
    return np.exp(np.clip(np.nan_to_num(states), -LARGEST_LOG, LARGEST_LOG))


def log_likelihood_of_counts(rates, first, sigma):
    """Log density of the logarithms of the counts."""
    residuals = (lynx_and_hare.LOG_COUNTS - np.log(populations(rates, first))) / sigma
    return -0.5 * np.sum(residuals**2) - len(residuals) * np.log(sigma).sum()


def lynx_and_hare_priors():
    means, sds = lynx_and_hare.RATE_MEANS, lynx_and_hare.RATE_SDS
    return (
        pm.TruncatedNormal("rates", means, sds, lower=0, shape=4),
        pm.LogNormal("first", lynx_and_hare.LOG_MEANS[:2], 1, shape=2),
        pm.LogNormal("sigma", lynx_and_hare.LOG_MEANS[2:], 1, shape=2),
    )


def outputs(solve=populations, coarse=None):
    """Lotka-Volterra: the solver is opaque, and returns 42 numbers."""
    counts = np.exp(lynx_and_hare.LOG_COUNTS)
    with pm.Model() as model:
        rates, first, sigma = lynx_and_hare_priors()
        shape = counts.shape
        solution = kmc.BlackBox("populations", solve, rates, first, shape=shape, coarse=coarse)
        pm.LogNormal("counts", pt.log(solution), sigma, observed=counts)
    return model


def scalar():
    """The same posterior: the log likelihood is opaque."""
    with pm.Model() as model:
        priors = lynx_and_hare_priors()
        term = kmc.BlackBox("log likelihood", log_likelihood_of_counts, *priors)
        pm.Potential("counts", term)
    return model


def schools():
    """Eight schools, non-centred: the log likelihood is an opaque function of the effects."""

    def log_likelihood(effects):
        return -0.5 * np.sum(((SCHOOL_EFFECTS - effects) / SCHOOL_ERRORS) ** 2)

    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        eta = pm.Normal("eta", 0, 1, shape=8)
        pm.Potential("y", kmc.BlackBox("log likelihood", log_likelihood, mu + tau * eta))
    return model


def time_series():
    """An autoregression with a trend, 4-d: the log likelihood is opaque."""
    log_likelihood = time_series_log_likelihood()
    with pm.Model() as model:
        priors = time_series_priors()
        pm.Potential("y", kmc.BlackBox("log likelihood", log_likelihood, *priors))
    return model


def time_series_priors():
    return pm.Normal("mu", 0, 2), *(pm.Normal(name, 0, 1) for name in ("a", "s", "slope"))


def time_series_log_likelihood():
    rng = np.random.default_rng(1)
    y = np.zeros(100)
    for i in range(1, len(y)):
        y[i] = 0.5 + 0.7 * (y[i - 1] - 0.5) + 0.3 * rng.standard_normal()
    trend = np.linspace(0, 1, 99)

    def log_likelihood(mu, a, log_sigma, slope):
        error = y[1:] - mu - np.tanh(a) * (y[:-1] - mu) - slope * trend
        return -0.5 * np.sum(error**2) * np.exp(-2 * log_sigma) - 99 * log_sigma

    return log_likelihood


def dose_response():
    """Bioassay with an extra parameter, 3-d: the log likelihood is opaque."""
    dose, n, deaths = np.array([-0.86, -0.3, -0.05, 0.73]), 5, np.array([0, 1, 3, 5])

    def log_likelihood(a, b, curvature):
        logit = a + b * dose + curvature * dose**2
        return np.sum(deaths * logit - n * np.logaddexp(0, logit))

    with pm.Model() as model:
        priors = pm.Normal("a", 0, 5), pm.Normal("b", 5, 5), pm.Normal("curvature", 0, 1)
        pm.Potential("deaths", kmc.BlackBox("log likelihood", log_likelihood, *priors))
    return model


def survival():
    """Censored Weibull regression, 4-d: the log likelihood is opaque."""
    rng = np.random.default_rng(1)
    times = 2 * rng.weibull(1.5, 60)
    is_seen, times = times < 3, np.minimum(times, 3)
    covariates = rng.standard_normal((60, 2))

    def log_likelihood(log_shape, intercept, slopes):
        u = np.exp(log_shape) * (np.log(times) - intercept - covariates @ slopes)
        return np.sum(is_seen * (log_shape + u) - np.exp(u))

    with pm.Model() as model:
        priors = (
            pm.Normal("log_shape", 0, 1),
            pm.Normal("intercept", 0, 2),
            pm.Normal("slopes", 0, 1, shape=2),
        )
        pm.Potential("times", kmc.BlackBox("log likelihood", log_likelihood, *priors))
    return model


def mixture():
    """Two Gaussians, ordered, 5-d: the log likelihood is opaque."""
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.normal(-1, 0.5, 40), rng.normal(1.5, 0.7, 60)])

    def log_likelihood(first, log_gap, log_sd_1, log_sd_2, logit):
        second = first + np.exp(log_gap)
        one = -log_sd_1 - 0.5 * ((y - first) / np.exp(log_sd_1)) ** 2 - np.logaddexp(0, -logit)
        two = -log_sd_2 - 0.5 * ((y - second) / np.exp(log_sd_2)) ** 2 - np.logaddexp(0, logit)
        return np.logaddexp(one, two).sum()

    with pm.Model() as model:
        names = "log_gap", "log_sd_1", "log_sd_2", "logit"
        priors = pm.Normal("first", 0, 2), *(pm.Normal(name, 0, 1) for name in names)
        pm.Potential("y", kmc.BlackBox("log likelihood", log_likelihood, *priors))
    return model


def sine():
    """A wave of unknown frequency, 4-d: the log likelihood is opaque, and has many local maxima."""
    rng, t = np.random.default_rng(3), np.linspace(0, 10, 60)
    y = 1.2 * np.sin(2 * np.pi * 1.3 * t + 0.6) + 0.4 * rng.standard_normal(60)

    def log_likelihood(log_size, log_frequency, phase, log_sd):
        wave = np.exp(log_size) * np.sin(2 * np.pi * np.exp(log_frequency) * t + phase)
        return -0.5 * np.sum((y - wave) ** 2) * np.exp(-2 * log_sd) - 60 * log_sd

    with pm.Model() as model:
        priors = (
            pm.Normal("log_size", 0, 1),
            pm.Normal("log_frequency", 0, 0.5),
            pm.Normal("phase", 0, 1.5),
            pm.Normal("log_sd", -1, 1),
        )
        pm.Potential("y", kmc.BlackBox("log likelihood", log_likelihood, *priors))
    return model


def noisy_time_series():
    """The time series; its log likelihood is an estimate, with noise of standard deviation 1."""
    log_likelihood = time_series_log_likelihood()

    def estimate(mu, a, log_sigma, slope, rng):
        return log_likelihood(mu, a, log_sigma, slope) + rng.normal(-0.5, 1.0)

    with pm.Model() as model:
        kmc.PseudoMarginalPotential("y", estimate, *time_series_priors())
    return model


def noisy_scalar():
    """Lotka-Volterra, its log likelihood an estimate with noise of standard deviation 1."""

    def estimate(rates, first, sigma, rng):
        return log_likelihood_of_counts(rates, first, sigma) + rng.normal(-0.5, 1.0)

    with pm.Model() as model:
        kmc.PseudoMarginalPotential("counts", estimate, *lynx_and_hare_priors())
    return model


def glass():
    """Length scales of a classifier, 9-d; an estimate has a variance of some .003."""
    from examples.glass_gp_classification import PRIOR_SD, glass_classifier

    classifier = glass_classifier()
    with pm.Model() as model:
        x = pm.Normal("x", 0, PRIOR_SD, shape=len(kmc.datasets.load_glass().feature_names))
        kmc.PseudoMarginalPotential("labels", classifier.log_likelihood_estimate, x)
    return model


PANEL_X = np.linspace(-1, 1, 15)


def panel_counts():
    """Counts of twenty subjects, (20, 15)."""
    rng = np.random.default_rng(0)
    slopes = rng.normal(0.5, 0.6, (20, 1)), rng.normal(-0.3, 0.4, (20, 1))
    return rng.poisson(np.exp(slopes[0] + slopes[1] * PANEL_X))


def panel_effects():
    mu, log_tau = pm.Normal("mu", 0, 1, shape=2), pm.Normal("log_tau", -1, 0.5, shape=2)
    return pm.Normal("effects", mu, pt.exp(log_tau), shape=(20, 2))


def panel_without_noise():
    """The panel with a gradient."""
    with pm.Model() as model:
        effects = panel_effects()
        pm.Poisson(
            "counts", pt.exp(effects[:, :1] + effects[:, 1:] * PANEL_X), observed=panel_counts()
        )
    return model


def panel():
    """Twenty noisy log likelihoods of two parameters each, a hierarchical prior; 44-d.

    The noise of their sum has standard deviation 1.1.
    """
    counts, x, noise = panel_counts(), PANEL_X, 1.1 / np.sqrt(20)

    def estimator(j):
        def estimate(effects, rng):
            log_rate = effects[0] + effects[1] * x
            exact = np.sum(counts[j] * log_rate - np.exp(log_rate))
            return exact + rng.normal(-0.5 * noise**2, noise)

        return estimate

    with pm.Model() as model:
        effects = panel_effects()
        for j in range(len(counts)):
            kmc.PseudoMarginalPotential(f"counts {j}", estimator(j), effects[j])
    return model


def whole(name):
    """A target whose whole density is opaque: a flat prior, and a number."""

    def build():
        target = TARGETS[name]()
        with pm.Model() as model:
            x = pm.Flat("x", shape=target.dimension)
            pm.Potential("log density", kmc.BlackBox("log density", target.log_density, x))
        return model

    return build


MODELS = {
    "outputs": outputs,
    "scalar": scalar,
    "schools": schools,
    "time-series": time_series,
    "dose-response": dose_response,
    "survival": survival,
    "mixture": mixture,
    "sine": sine,
    "banana": whole("banana"),
    "two-modes": whole("two-modes"),
    "student-t": whole("student-t"),
    "gaussian-20": whole("gaussian-20"),
    "gaussian-50": whole("gaussian-50"),
    "noisy-time-series": noisy_time_series,
    "noisy-scalar": noisy_scalar,
    "glass": glass,
    "panel": panel,
}
#: Evaluations of learning and tuning to reach, median and worst.
GOALS = {
    "outputs": (300, 500),
    "scalar": (500, 1000),
    "schools": (250, None),
    "time-series": (150, 300),
    "dose-response": (150, 300),
    "survival": (150, 300),
    "mixture": (150, 300),
    "sine": (None, None),
    "banana": (1200, None),
    "two-modes": (1200, None),
    "student-t": (1200, None),
    "gaussian-20": (700, None),
    "gaussian-50": (3000, None),
    "noisy-time-series": (300, None),
    "noisy-scalar": (1200, None),
    "glass": (1200, None),
    "panel": (200, None),
}
#: Targets whose moments are exact, or of a long run of NUTS, by the name of their model.
KNOWN = {"outputs": "lotka-volterra", "scalar": "lotka-volterra", "schools": "eight-schools"}
KNOWN["noisy-scalar"] = "lotka-volterra"
KNOWN |= {name: name for name in MODELS if name in TARGETS}
#: Models whose moments are those of another, which is learned, or has a gradient.
SAME, WITH_GRADIENT = {"noisy-time-series": "time-series"}, {"panel": panel_without_noise}


def unconstrained(model, posterior):
    """Draws (chains, n, d) on the unconstrained scale, in the order of the value variables."""
    columns = []
    for variable in model.free_RVs:
        values = np.asarray(posterior[variable.name])
        transform = model.rvs_to_transforms[variable]
        if transform is not None:
            # All bounded variables here are positive.
            values = np.log(values)
        columns.append(values.reshape(*values.shape[:2], -1))
    return np.concatenate(columns, axis=-1)


def reference(name, learned, model):
    """Means and standard deviations of the unconstrained variables."""
    if name in KNOWN:
        target = TARGETS[KNOWN[name]]()
        return target.mean, target.sd
    if name == "glass":
        moments = load_reference()
        return moments["mean"], moments["sd"]
    if name in WITH_GRADIENT:
        model = WITH_GRADIENT[name]()
        draws = unconstrained(model, with_nuts(model).posterior).reshape(-1, 44)
        return draws.mean(axis=0), draws.std(axis=0)
    if name in SAME:
        model = MODELS[SAME[name]]()
        learned = kmc.learn(model, progressbar=False)
    with model:
        idata = sample(kmc.KMC(learned), REFERENCE_DRAWS, seed=1000)
    draws = unconstrained(model, idata.posterior)
    flat = draws.reshape(-1, draws.shape[-1])
    return flat.mean(axis=0), flat.std(axis=0)


def with_nuts(model):
    with model:
        return pm.sample(
            draws=REFERENCE_DRAWS,
            chains=CHAINS,
            cores=1,
            random_seed=1000,
            progressbar=False,
            compute_convergence_checks=False,
        )


def sample(step, n_draws, seed, tune=TUNE):
    """Sample the model of this context with a step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.sample(
            step=step,
            tune=tune,
            draws=n_draws,
            chains=CHAINS,
            cores=1,
            random_seed=seed,
            progressbar=False,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
        )


def errors(draws, moments):
    """Largest error of means, in standard deviations, and of log standard deviations."""
    mean, sd = moments
    flat = draws.reshape(-1, draws.shape[-1])
    error = np.abs(flat.mean(axis=0) - mean) / sd
    return error.max(), np.abs(np.log(flat.std(axis=0) / sd)).max()


def smallest_ess(draws):
    """Smallest bulk effective sample size of x and (x - mean)^2 over draws (chains, n, d)."""
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    return min(
        float(az.ess(values[..., j], method="bulk"))
        for values in (draws, squares)
        for j in range(draws.shape[-1])
    )


def learn(model, seed):
    """Return what is learned, and the seconds of processor time that it took."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = kmc.learn(model, random_seed=seed, progressbar=False)
    return learned, time.process_time() - begin


def without_chains(names, n_seeds):
    """Print evaluations, the error that is stated, and own seconds of learning alone."""
    rows = []
    for name in names:
        found = []
        for seed in range(n_seeds):
            learned, seconds = learn(MODELS[name](), seed)
            found.append((learned.n_evaluations, learned.error, seconds))
            print(name, seed, *[f"{value:.3g}" for value in found[-1]], flush=True)
        n, error, seconds = np.transpose(found)
        digits = (0, 2, 0, 3)
        cells = zip((n, error, seconds, seconds / n), digits, strict=True)
        rows.append([name, *(cell(values, digits=k) for values, k in cells)])
    print(markdown(["target", "learning", "error, nats", "own s", "an evaluation"], rows))


def run(model, seed, n_draws):
    """Learn and sample; return figures, draws and what was learned."""
    learned, seconds = learn(model, seed)
    with model:
        idata = sample(kmc.KMC(learned), n_draws, seed)
    draws = unconstrained(model, idata.posterior)
    n_evaluations = float(idata.sample_stats["kmc_n_evaluations"].sum())
    tuning = float(idata.warmup_sample_stats["kmc_n_evaluations"].sum())
    ess = 1000 * smallest_ess(draws) / n_evaluations
    figures = {
        "learning": learned.n_evaluations,
        "tuning": tuning,
        "ess": ess,
        "to 400": learned.n_evaluations + tuning + 1000 * EFFECTIVE / ess,
        "seconds": seconds,
        "ms": 1e3 * float(idata.sample_stats["kmc_proposal_time"].median()),
    }
    return figures, draws, learned


def by_default(model, seed):
    """Evaluations of four chains of KMC(learn=False) while tuning, as PyMC sets it up."""
    with model:
        return CHAINS * kmc.KMC(rng=seed, learn=False).default_tune_steps


class Slow:
    """The solver of "outputs", made to take some seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, rates, first):
        time.sleep(self.seconds)
        return populations(rates, first)


def cell(values, worst=max, digits=0):
    return f"{np.median(values):.{digits}f} ({worst(values):.{digits}f})"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(MODELS), help="some of: %(default)s")
    parser.add_argument("--seeds", type=int, default=10, help="number of runs a target")
    parser.add_argument("--quick", action="store_true", help="one small target, one seed")
    parser.add_argument("--no-chains", action="store_true", help="learning alone")
    options = parser.parse_args(arguments)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = ["dose-response"] if options.quick else options.targets.split(",")
    n_seeds, n_draws = (1, QUICK_DRAWS) if options.quick else (options.seeds, DRAWS)
    if options.no_chains:
        without_chains(names, n_seeds)
        return
    rows, shares = [], []
    for name in names:
        model = MODELS[name]()
        found, moments, of_draws, of_learned = [], None, [], []
        for seed in range(n_seeds):
            figures, draws, learned = run(model, seed, n_draws)
            if moments is None:
                moments = reference(name, learned, model)
            found.append(figures)
            of_draws.append(errors(draws, moments))
            of_learned.append(errors(learned.positions[None], moments))
            print(name, seed, {key: round(value) for key, value in figures.items()}, flush=True)
        goal, worst = GOALS[name]
        in_chains = by_default(model, 0)
        to_400 = [f["to 400"] for f in found]
        shares.append(np.median(to_400) / in_chains)
        rows.append(
            [
                name,
                cell([f["learning"] for f in found]),
                cell([f["tuning"] for f in found]),
                f"{goal or '-'} ({worst or '-'})",
                f"{in_chains}",
                cell([f["ess"] for f in found], min),
                f"{cell(to_400)}; {shares[-1]:.2f}",
                *(cell([e[i] for e in of_draws], digits=2) for i in (0, 1)),
                *(cell([e[i] for e in of_learned], digits=2) for i in (0, 1)),
                cell([f["seconds"] for f in found]),
                cell([f["ms"] for f in found], digits=1),
            ]
        )
    header = ["target", "learning", "tuning", "both, aim", "in chains", "ESS / 1000", "to 400"]
    header += ["mean", "sd", "learned mean", "learned sd", "own s", "own ms"]
    print(f"\nTo {EFFECTIVE}, share of what is taken in chains: {np.median(shares):.3f} (median)\n")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
