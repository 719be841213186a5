"""Noisy likelihoods: who samples the right posterior, and who does not.

    python -m examples.benchmarks.pseudo_marginal
    python -m examples.benchmarks.pseudo_marginal --steps AdaptiveMetropolis --variances 0,1
    python -m examples.benchmarks.pseudo_marginal --quick

x ~ N(0, 1), one observation 1 with variance .25: the posterior has mean .8 and sd .447. The
likelihood is estimated without bias; the log of the estimate has variance 0 to 3. Each cell is
"mean, sd", and how many Monte Carlo standard errors the worse of the two is off.

- Our steps: a `pymc_kmc.PseudoMarginalPotential`, alone, and beside a step of PyMC's that samples
  z ~ N(x / 2, 1). The accepted estimate is kept.
- PyMC's own steps: an ordinary Op with a generator inside, as it is written today. The estimate is
  drawn anew at every look, and nothing fails but the answer.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402
import logging  # noqa: E402
import warnings  # noqa: E402

import arviz as az  # noqa: E402
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from pytensor.graph.basic import Apply  # noqa: E402
from pytensor.graph.op import Op  # noqa: E402

import pymc_kmc as kmc  # noqa: E402
from examples.benchmarks.targets import markdown  # noqa: E402

OBSERVATION, VARIANCE = 1.0, 0.25
POSTERIOR_MEAN, POSTERIOR_SD = 0.8, 0.2**0.5
#: More standard errors than this are marked.
SUSPICIOUS = 4.0
#: NUTS costs most an iteration.
NUTS_SHARE = 0.2


def noisy_log_likelihood(x, variance, rng):
    """Log of an unbiased, log-normal estimate of the likelihood."""
    exact = -0.5 * (OBSERVATION - x) ** 2 / VARIANCE
    return exact + np.sqrt(variance) * rng.standard_normal() - 0.5 * variance


class RedrawnLogLikelihood(Op):
    """The estimate as users write it today: an Op with a generator of its own."""

    def __init__(self, variance, seed):
        self.variance = variance
        self.rng = np.random.default_rng(seed)

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        value = noisy_log_likelihood(float(inputs[0]), self.variance, self.rng)
        output_storage[0][0] = np.asarray(value)


def recycled_model(variance, companion):
    """The toy with a potential of ours; with a companion, z depends on x."""
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.PseudoMarginalPotential(
            "loglik", lambda x, rng: noisy_log_likelihood(x, variance, rng), x
        )
        if companion:
            pm.Normal("z", x / 2, 1.0)
    return model


def redrawn_model(variance, seed):
    """The toy with the ordinary Op."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("loglik", RedrawnLogLikelihood(variance, seed)(x))
    return model


def sample(model, steps, draws, tune, seed, chains=2):
    """Draws of x, (chains, draws)."""
    with model:
        idata = pm.sample(
            step=steps,
            tune=tune,
            draws=draws,
            chains=chains,
            cores=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return np.asarray(idata.posterior["x"])


def cell(x):
    """Mean and sd, and the larger of their errors in Monte Carlo standard errors."""
    scores = []
    deviations = (x - POSTERIOR_MEAN) ** 2
    for values, exact in ((x, POSTERIOR_MEAN), (deviations, POSTERIOR_SD**2)):
        effective = float(az.ess(values, method="mean"))
        scores.append(abs(values.mean() - exact) / (values.std() / np.sqrt(effective)))
    score = max(scores)
    mark = "**" if score > SUSPICIOUS else ""
    return f"{mark}{x.mean():.3f}, {x.std():.3f}{mark} ({score:.1f})"


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Mean and sd of a known posterior under noise in the likelihood.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--steps", default="AdaptiveMetropolis,KMCLite,KMCFinite", help="comma-separated, ours"
    )
    parser.add_argument(
        "--pymc-steps", default="Metropolis,DEMetropolisZ,Slice", help="comma-separated, PyMC's"
    )
    parser.add_argument("--companions", default="Metropolis,Slice,NUTS", help="comma-separated")
    parser.add_argument("--variances", default="0,1,2,3", help="of the log estimate")
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=20_000, help="of each of two chains")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tune 500, draws 2000")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tune, options.draws = 500, 2000
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    variances = [float(value) for value in options.variances.split(",")]

    def names(text):
        return [name for name in text.split(",") if name]

    print(f"Two chains, tune {options.tune}, draws {options.draws} (beside NUTS {NUTS_SHARE:.0%}).")
    print(f"Errors above {SUSPICIOUS:g} standard errors are in bold.\n")
    exact = f"*{POSTERIOR_MEAN:.3f}, {POSTERIOR_SD:.3f}*"
    header = ["noise variance", *(f"{variance:g}" for variance in variances)]
    print(markdown(header, [["exact", *[exact] * len(variances)]]), flush=True)

    def show(name, run):
        cells = [cell(run(variance)) for variance in variances]
        print("| " + " | ".join([name, *cells]) + " |", flush=True)

    for name in names(options.steps):
        step_class = getattr(kmc, name)

        def alone(variance, step_class=step_class):
            model = recycled_model(variance, companion=False)
            with model:
                step = step_class()
            return sample(model, step, options.draws, options.tune, options.seed)

        show(f"{name}, alone", alone)
        for companion in names(options.companions):
            draws = int(options.draws * (NUTS_SHARE if companion == "NUTS" else 1.0))

            def beside(variance, step_class=step_class, companion=companion, draws=draws):
                model = recycled_model(variance, companion=True)
                with model:
                    step = [step_class([model["x"]]), getattr(pm, companion)([model["z"]])]
                return sample(model, step, draws, options.tune, options.seed)

            show(f"{name}, beside pm.{companion}", beside)
    for name in names(options.pymc_steps):
        step_class = getattr(pm, name)

        def redrawn(variance, step_class=step_class):
            model = redrawn_model(variance, options.seed)
            with model:
                step = step_class()
            return sample(model, step, options.draws, options.tune, options.seed)

        show(f"pm.{name}, estimate drawn anew", redrawn)


if __name__ == "__main__":
    main()
