"""Every step samples what it was given: known moments, Geweke's joint test, detailed balance.

Each problem comes with a map that makes independent standard normal variables of exact draws
(Rosenblatt, 1952), so that one list of statistics with known means serves all: first and second
moments and tail probabilities. A chain's mean is compared with the exact one in units of its
Monte-Carlo error, which ArviZ estimates; in `test_detailed_balance` the draws are independent and
their error is plain.

At 4.5 standard errors the false-alarm rate is 7e-6 a statistic were the error Gaussian and known,
about 1e-4 as it is for chains; with about 10 statistics a chain and 24 tests it is 2 to 3 % for the
whole file. The seeds are fixed. The tests named `..._can_fail` break a step and find it out.

References
----------
Geweke, J. (2004). Getting it right: joint distribution tests of posterior simulators. *Journal of
the American Statistical Association* 99, 799-804.

Rosenblatt, M. (1952). Remarks on a multivariate transformation. *Annals of Mathematical
Statistics* 23, 470-472.
"""

import itertools
from functools import partial

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kmc as kmc
from pymc_kmc.adaptation.fit_to_values import FitToValues
from pymc_kmc.moves.local import LocalDistribution
from pymc_kmc.moves.partners import Partner
from pymc_kmc.numerics.coordinates import ScaleWarp
from tests.balance import balance_errors, functions_of_a_banana
from tests.bananas import Banana
from tests.chains import QUIET
from tests.estimates import TOLERANCE, z_score_of_draws
from tests.fitted import stretching_warp
from tests.models import constrained
from tests.steps import STEPS

# Where variables are transformed is the target's affair: one step of each way to look at it, which
# are densities, gradients, and surrogates in coordinates of their own.
ONE_OF_EACH_TARGET = ["AdaptiveMetropolis", "GadMALA", "KMC"]
# Steps on surrogates, and those of the paper.
KERNEL_STEPS = [name for name in STEPS if name.startswith("KMC")]
PAPERS_STEPS = ["KMCLite", "KMCFinite"]
# Surrogates that are small enough for the suite's time; exactness doesn't depend on their size.
SIZES = {
    "KMC": {"n_landmarks": 60},
    "KMCLite": {"n_points": 150},
    "KMCFinite": {"n_features": 100, "n_points": 400},
}
# Draws of each chain: two have effective sample sizes of 300 to 1200 on the banana by random walks,
# and of 1000 or more where draws on surrogates are nearly independent, and dear.
N_DRAWS = 6000
FEWER_DRAWS = {"KMC": 1200, "KMCLite": 2500, "KMCFinite": 2500}
# The tails of a small random-feature surrogate are so poor that a chain enters the banana's tails
# once in thousands of iterations, and ArviZ can't know of visits that didn't happen. Such a chain
# goes on from an exact, independent draw every 25 iterations: a step that leaves the posterior
# where it is keeps such draws exact, however long it needs from one tail to the other. Without the
# kinetic energy in the ratio, or with end points pushed outwards by 1.3, |z| is 7 or more.
FROM_EXACT_DRAWS = {"n_draws": 4000, "restart_every": 25}


def make(name, **kwargs):
    return STEPS[name](**SIZES.get(name, {}) | kwargs)


# Problems: a model, two starts, exact draws where they are needed, and the map to standard normals

RHO = 0.99
SPREAD = 2.0


class Gaussian:
    """Two dimensions, correlation .99."""

    covariance = np.array([[1.0, RHO], [RHO, 1.0]])
    starts = ({"x": np.array([2.0, 2.0])}, {"x": np.array([-1.0, -1.0])})

    def model(self):
        with pm.Model() as model:
            pm.MvNormal("x", np.zeros(2), self.covariance)
        return model

    def standardise(self, draws):
        return draws["x"] @ np.linalg.inv(np.linalg.cholesky(self.covariance)).T

    def exact(self, n, rng):
        """Independent draws, shape (n, 2)."""
        return rng.multivariate_normal(np.zeros(2), self.covariance, size=n)


class CurvedRidge:
    """A banana's."""

    banana = Banana(SPREAD, 0.25)
    starts = (
        {"x": np.array(3.0), "y": np.array(2.0)},
        {"x": np.array(-3.0), "y": np.array(0.0)},
    )

    def model(self):
        return self.banana.model()

    def standardise(self, draws):
        return self.banana.standardised(np.stack([draws["x"], draws["y"]], axis=-1))

    def exact(self, n, rng):
        """Independent draws, shape (n, 2)."""
        return self.banana.draws(n, rng)


class Funnel:
    """v ~ N(0, 4), x_i ~ N(v, exp(2 v)) for two of them."""

    starts = (
        {"v": np.array(1.0), "x": np.array([2.0, -1.0])},
        {"v": np.array(-1.0), "x": np.array([0.0, 1.0])},
    )

    def model(self):
        with pm.Model() as model:
            v = pm.Normal("v", 0.0, SPREAD)
            pm.Normal("x", v, pm.math.exp(v), shape=2)
        return model

    def standardise(self, draws):
        v = draws["v"][..., None]
        return np.concatenate([v / SPREAD, (draws["x"] - v) * np.exp(-v)], axis=-1)


def normal_scores(*probabilities):
    """Standard normals from uniform variables."""
    return stats.norm.ppf(np.clip(np.stack(probabilities, axis=-1), 1e-15, 1 - 1e-15))


def chain(step, point, n_tune, n_draws, rng, between=None):
    """Run a step by hand: PyMC's loop without its storage. `between` may change the point."""
    step.set_rng(rng)
    points = []
    for i in range(n_tune + n_draws):
        if i == n_tune:
            step.stop_tuning()
        point, _ = step.step(point)
        if between is not None:
            point = between(point)
        points.append(point)
    return {name: np.array([p[name] for p in points[n_tune:]]) for name in point}


def n_draws_of(name):
    return FEWER_DRAWS.get(name, N_DRAWS)


def lengths_of(name, problem):
    if name == "KMCFinite" and isinstance(problem, CurvedRidge):
        return FROM_EXACT_DRAWS
    return {"n_draws": n_draws_of(name)}


def chains(make_step, problem, *, seed, n_tune=800, n_draws=N_DRAWS, restart_every=None):
    """Two chains from different starts, as standard normals, shape (2, n_draws, k).

    With `restart_every`, a chain that is tuned goes on from an exact draw that often.
    """
    with problem.model():
        step = make_step()
    draws = []
    for i, start in enumerate(problem.starts):
        rng = np.random.default_rng([seed, i])
        between = None
        if restart_every is not None:
            between = restarts(problem, n_tune, n_draws, restart_every, rng)
        draws.append(problem.standardise(chain(step, start, n_tune, n_draws, rng, between)))
    return np.stack(draws)


def restarts(problem, n_tune, n_draws, every, rng):
    """A function of a tuned chain's point: an exact draw at each `every`-th iteration."""
    exact = iter(problem.exact(n_draws // every + 1, rng))
    iterations = itertools.count(1)

    def between(point):
        iteration = next(iterations)
        if iteration < n_tune or (iteration - n_tune) % every:
            return point
        return dict(zip(point, next(exact), strict=True))

    return between


# What is compared

TAIL = 1.5


def functions(z):
    """Functions of standard normals z (..., k) whose mean is 0, by name."""
    k = z.shape[-1]
    values = {}
    for i in range(k):
        values[f"z{i}"] = z[..., i]
        values[f"z{i}^2"] = z[..., i] ** 2 - 1
        values[f"tail of z{i}"] = (np.abs(z[..., i]) > TAIL) - 2 * stats.norm.sf(TAIL)
        for j in range(i):
            values[f"z{i} z{j}"] = z[..., i] * z[..., j]
    return values


def effective_sizes(z):
    return {
        name: float(az.ess(np.asarray(values, dtype=float), method="mean"))
        for name, values in functions(z).items()
    }


def z_scores(z):
    """Means of the functions in Monte-Carlo errors; z has shape (chains, draws, k)."""
    return {name: z_score_of_draws(values, 0.0) for name, values in functions(z).items()}


def assert_standard_normal(z):
    scores = z_scores(z)
    worst = max(scores, key=lambda name: abs(scores[name]))
    assert abs(scores[worst]) < TOLERANCE, f"{worst}: {scores[worst]:.1f} standard errors"


# Known moments


# Steps on surrogates meet the Gaussian in `test_a_wrong_surrogate_is_slower_and_not_biased`.
@pytest.mark.parametrize(
    ("name", "problem"),
    [pytest.param(name, CurvedRidge(), id=f"{name}-banana") for name in STEPS]
    + [
        pytest.param(name, Gaussian(), id=f"{name}-gaussian", marks=pytest.mark.one_line)
        for name in STEPS
        if name not in KERNEL_STEPS
    ],
)
def test_known_moments(name, problem):
    lengths = lengths_of(name, problem)
    assert_standard_normal(chains(lambda: make(name), problem, seed=1, **lengths))


@pytest.mark.one_line
def test_known_moments_of_a_funnel():
    """Only the default has coordinates for it."""
    z = chains(lambda: make("KMC"), Funnel(), seed=15, n_tune=1000, n_draws=n_draws_of("KMC"))
    assert_standard_normal(z)


@pytest.mark.parametrize("name", ONE_OF_EACH_TARGET)
def test_transforms(name):
    """HalfNormal, Dirichlet and Uniform: each is made uniform by its distribution function."""
    with constrained():
        idata = pm.sample(
            step=make(name),
            tune=600,
            draws=min(n_draws_of(name), 3000),
            chains=2,
            cores=1,
            random_seed=2,
            **QUIET,
        )
    posterior = {variable: idata.posterior[variable].values for variable in idata.posterior}
    first, second, _ = np.moveaxis(posterior["weights"], -1, 0)
    z = normal_scores(
        stats.halfnorm.cdf(posterior["scale"], scale=2.0),
        stats.beta.cdf(first, 2, 8),
        stats.beta.cdf(second / (1 - first), 3, 5),  # given the first weight
        stats.uniform.cdf(posterior["u"], -1.0, 4.0),
    )
    assert_standard_normal(z)


# KMCFinite adapts as KMCLite does; `test_the_papers_schedule` has it too. GadRWM learns its factor
# as GadMALA does.
@pytest.mark.one_line
@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("KMCFinite", "GadRWM")])
def test_adaptation_that_vanishes(name):
    """The kernel goes on changing while the draws are made."""
    make_step = partial(make, name, adaptation="vanishing")
    z = chains(make_step, CurvedRidge(), seed=3, n_draws=n_draws_of(name))
    assert_standard_normal(z)


def papers(name, adaptation):
    """Given hyper-parameters."""
    options = {"sigma": 8.0, "regularisation": 1e-3}
    return make(name, adaptation=adaptation, schedule="online", **options)


@pytest.mark.one_line
@pytest.mark.parametrize("name", PAPERS_STEPS)
def test_the_papers_schedule(name):
    """Updates with probability 1 / sqrt(t + 1), from states alone, for ever."""
    make_step, problem = partial(papers, name, "vanishing"), CurvedRidge()
    lengths = lengths_of(name, problem) | {"n_draws": 4000}
    assert_standard_normal(chains(make_step, problem, seed=4, n_tune=2000, **lengths))


@pytest.mark.one_line
def test_known_moments_can_fail():
    """A chain that leaves the tails out is found out: draws beyond 2.5 sd are redrawn."""
    rng = np.random.default_rng(5)
    z = rng.standard_normal((2, 40_000, 2))
    assert_standard_normal(z)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_standard_normal(np.where(np.abs(z) > 2.5, rng.standard_normal(z.shape), z))


# Geweke's joint test, with a noisy likelihood

N_OBSERVATIONS = 1
# Value of a lucky estimate, and the largest probability of one: the log's variance is up to 3.
LUCKY, OFTEN = 5.0, 0.19


def noise(mean, sd, rng):
    """Log of a variable with mean 1 whose variance depends on the parameters.

    It depends steeply on them, which shows in fewer draws that an estimate is drawn anew. And it is
    bounded. Log-normal noise of variance 3 has rare estimates at which a chain stays long:
    one chain of seven stayed for 1677 of its 12,000 iterations, and such a chain's errors can't be
    estimated from the others.
    """
    probability = OFTEN / (1.0 + np.exp(-6.0 * mean)) * np.exp(-0.1 * sd)
    is_lucky = rng.random() < probability
    return np.log(LUCKY if is_lucky else (1.0 - LUCKY * probability) / (1.0 - probability))


def joint_model():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        sd = pm.HalfNormal("sd")
        kmc.PseudoMarginalPotential("noise", noise, mean, sd)
        pm.Normal("data", mean, sd + 0.5, shape=N_OBSERVATIONS)
    return model


def geweke(step, rng, n_tune=600, n_draws=8000):
    """Alternate the step on parameters and noise given data with data given parameters.

    The noise has mean 1 given the parameters and the data don't depend on it, so that in the long
    run the parameters are distributed like their prior.
    """

    def new_data(point):
        spread = np.exp(point["sd_log__"]) + 0.5
        data = point["mean"] + spread * rng.standard_normal(N_OBSERVATIONS)
        return point | {"data": data}

    start = new_data({"mean": np.array(0.5), "sd_log__": np.array(-0.5)})
    draws = chain(step, start, n_tune, n_draws, rng, between=new_data)
    standardised = (draws["data"].mean(axis=1) - draws["mean"]) / (np.exp(draws["sd_log__"]) + 0.5)
    return np.stack(
        [
            draws["mean"],
            normal_scores(stats.halfnorm.cdf(np.exp(draws["sd_log__"])))[:, 0],
            standardised * np.sqrt(N_OBSERVATIONS),
        ],
        axis=-1,
    )


# Noise is kept where all steps keep it: one random walk, and one step on a surrogate. The others
# meet it in test_pseudo_marginal.py.
@pytest.mark.one_line
@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KMC"])
def test_geweke(name):
    z = []
    with joint_model() as model:
        step = make(name, vars=[model["mean"], model["sd"]])
    n_draws = 6000 if name == "KMC" else 8000
    for i in range(2):
        z.append(geweke(step, np.random.default_rng([6, i]), n_draws=n_draws))
    assert_standard_normal(np.stack(z))


@pytest.mark.one_line
def test_geweke_can_fail():
    """Drawing the kept estimate anew is found out."""
    with joint_model() as model:
        step = kmc.AdaptiveMetropolis(vars=[model["mean"], model["sd"]])
    target = step.target
    current = target.current

    def redrawn(point):
        target.accept(target.propose(current(point).position, step.rng))
        return current(point)

    target.current = redrawn
    z = np.stack([geweke(step, np.random.default_rng([6, i])) for i in range(2)])
    assert max(map(abs, z_scores(z).values())) > 1.5 * TOLERANCE


class JointPrior:
    """The prior of `joint_model`: the posterior over it is bounded, also in the tails."""

    n_features_in_ = 2

    def log_density(self, X):
        mean, log_sd = np.moveaxis(X, -1, 0)
        return -0.5 * mean**2 - 0.5 * np.exp(2.0 * log_sd) + log_sd

    def gradient(self, X):
        mean, log_sd = np.moveaxis(X, -1, 0)
        return np.stack([-mean, 1.0 - np.exp(2.0 * log_sd)], axis=-1)


def geweke_in_sweeps(seed, n_draws=4000):
    """Sweeps of four partners, whom the prior moves."""
    with joint_model() as model:
        step = kmc.KMC([model["mean"], model["sd"]], surrogate=JointPrior(), n_parallel=4)
    rngs = [np.random.default_rng([seed, i]) for i in range(2)]
    return np.stack([geweke(step, rng, n_tune=200, n_draws=n_draws) for rng in rngs])


@pytest.mark.one_line
def test_geweke_in_sweeps():
    """New data come between an evaluation of partners and the exchange with them."""
    assert_standard_normal(geweke_in_sweeps(6))


@pytest.mark.one_line
def test_geweke_in_sweeps_can_fail(monkeypatch):
    """An exchange without the surrogate's ratio is found out."""
    monkeypatch.setattr(Partner, "_log_density", lambda partner, position, fitted: 0.0)
    assert max(map(abs, z_scores(geweke_in_sweeps(6, 1000)).values())) > 1.5 * TOLERANCE


# A wrong surrogate: slower, not biased


def surrogate_for(name, X):
    if name == "KMCFinite":
        return kmc.surrogates.KernelExpFinite(60, 8.0, 1e-3, base="gaussian", rng=0).fit(X)
    return kmc.surrogates.KernelExpLite(8.0, 1e-2, penalty="rkhs", base="gaussian").fit(X)


def wrong(surrogate):
    """Replace a fitted surrogate's kernel part by noise of about unit size, and shift its base."""
    parameters = surrogate.parameters_
    coefficients = np.random.default_rng(8).standard_normal(parameters.coefficients.shape)
    surrogate.parameters_ = parameters._replace(
        coefficients=coefficients / np.sqrt(len(coefficients)),
        base_mean=parameters.base_mean + 1.0,
    )
    return surrogate


def given(name, *, is_wrong, problem=CurvedRidge, step_class=None, step_size=(0.2, 0.5)):
    """Return a step that uses a given surrogate, and fixed trajectories if it is the paper's."""
    X = problem().exact(150, np.random.default_rng(7))
    surrogate = surrogate_for(name, X)
    trajectories = {}
    if name in PAPERS_STEPS:
        trajectories = {
            "step_size": step_size,
            "n_leapfrog": (5, 15),
            "random_walk_probability": 0.05,
        }
    return (step_class or STEPS[name])(
        tune=False, surrogate=wrong(surrogate) if is_wrong else surrogate, **trajectories
    )


def exact(step):
    """Make the step's surrogate the Gaussian problem's own density: no kernel part."""
    surrogate = step.given_surrogate
    parameters = surrogate.parameters_
    surrogate.parameters_ = parameters._replace(
        coefficients=np.zeros_like(parameters.coefficients),
        base_mean=np.zeros(2),
        base_precision=np.linalg.inv(Gaussian.covariance),
    )
    return step


@pytest.mark.one_line
@pytest.mark.parametrize("name", KERNEL_STEPS)
def test_a_wrong_surrogate_is_slower_and_not_biased(name):
    def run(is_wrong, n_draws):
        def step():
            step = given(name, is_wrong=is_wrong, problem=Gaussian, step_size=(0.07, 0.15))
            return step if is_wrong else exact(step)

        return chains(step, Gaussian(), seed=9, n_tune=0, n_draws=n_draws)

    good, bad = run(False, 2500), run(True, 6000)
    assert_standard_normal(good)
    assert_standard_normal(bad)
    efficiency = [min(effective_sizes(z).values()) / z[..., 0].size for z in (good, bad)]
    assert efficiency[1] < 0.7 * efficiency[0]


# Detailed balance of frozen kernels

# Exact draws, of which each is moved once: the broken kernels below are found out with |z| above 9
# by as many, most by fewer.
N_PAIRS = 10_000


def frozen(make_step, n_tune=400):
    """Return a step whose adaptation is over."""
    with CurvedRidge().model():
        step = make_step()
    chain(step, CurvedRidge.starts[0], n_tune, 1, np.random.default_rng(10))
    return step


def worst_of_balance(step, n=N_PAIRS):
    """Return the largest error of one step's balance, from exact draws, in standard errors."""
    banana = CurvedRidge.banana
    X = banana.draws(n, np.random.default_rng(11))
    step.set_rng = None  # a new chain would reset what was learned
    ends = [step.step({"x": np.array(x), "y": np.array(y)})[0] for x, y in X]
    moved = np.array([[end["x"], end["y"]] for end in ends])
    before, after = (functions_of_a_banana(banana, places) for places in (X, moved))
    return np.max(np.abs(balance_errors(before, after)))


def as_learned(name):
    return lambda: make(name)


def as_learned_by_the_papers_schedule(name):
    return lambda: papers(name, "tuning")


def with_wrong_surrogate(name):
    return lambda: given(name, is_wrong=True)


@pytest.mark.one_line
@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, as_learned) for name in STEPS]
    + [(name, as_learned_by_the_papers_schedule) for name in PAPERS_STEPS]
    + [(name, with_wrong_surrogate) for name in KERNEL_STEPS],
)
def test_detailed_balance(name, kernel):
    assert worst_of_balance(frozen(kernel(name))) < TOLERANCE


def in_wrong_coordinates(monkeypatch, warp_class):
    """Let KMC learn in coordinates that suit the banana worse than its own."""
    warp = stretching_warp(warp_class)
    monkeypatch.setattr(FitToValues, "_warps", lambda self, states: [warp])
    step = frozen(lambda: make("KMC"))
    assert step.adapted.fitted.warp is warp
    return step


@pytest.mark.one_line
def test_detailed_balance_in_wrong_coordinates(monkeypatch):
    assert worst_of_balance(in_wrong_coordinates(monkeypatch, ScaleWarp), n=5000) < TOLERANCE


class WithoutVolume(ScaleWarp):
    """Forgets that it stretches."""

    def log_volume(self, X):
        return 0.0 * X[..., 0]


@pytest.mark.one_line
def test_detailed_balance_in_wrong_coordinates_can_fail(monkeypatch):
    """What is learned depends on the roundings of a processor: with 2000 draws 8.4 on one."""
    step = in_wrong_coordinates(monkeypatch, WithoutVolume)
    assert worst_of_balance(step, n=5000) > 2 * TOLERANCE


GAD_OPTIONS = {
    "GadRWM-additive": (kmc.GadRWM, {"update": "additive"}),
    "GadMALA-additive": (kmc.GadMALA, {"update": "additive"}),
    "GadMALA-multiplicative-exact": (
        kmc.GadMALA,
        {"update": "multiplicative", "variant": "exact"},
    ),
}


@pytest.mark.one_line
@pytest.mark.parametrize("problem", [Gaussian(), CurvedRidge()], ids=["gaussian", "banana"])
@pytest.mark.parametrize("name", GAD_OPTIONS)
def test_known_moments_of_other_updates(name, problem):
    step_class, options = GAD_OPTIONS[name]
    # The additive rule has a step size of 1e-4: more tuning than the others need.
    z = chains(lambda: step_class(**options), problem, seed=21, n_tune=3000, n_draws=6000)
    assert_standard_normal(z)


@pytest.mark.one_line
@pytest.mark.parametrize("name", GAD_OPTIONS)
def test_detailed_balance_of_other_updates(name):
    step_class, options = GAD_OPTIONS[name]
    step = frozen(lambda: step_class(**options), n_tune=2000)
    assert worst_of_balance(step) < TOLERANCE


class WithoutRatio:
    """Accepts by the ratio of densities alone."""

    def _propose(self, current):
        return super()._propose(current)._replace(log_ratio=0.0)


class WithoutHastingsRatio(WithoutRatio, kmc.GadMALA):
    pass


class StepFromTheState(kmc.GadMALA):
    """Makes larger steps on one side than on the other."""

    def _propose(self, current):
        self.adapted.preconditioner.step_size = 0.4 if current.position[0] > 0 else 1.2
        return super()._propose(current)


@pytest.mark.one_line
@pytest.mark.parametrize("broken", [WithoutHastingsRatio, StepFromTheState])
def test_detailed_balance_of_gad_can_fail(broken):
    assert worst_of_balance(frozen(broken), n=4000) > 2 * TOLERANCE


class WithoutKineticEnergy(WithoutRatio, kmc.KMCLite):
    pass


class LengthFromTheState(kmc.KMCLite):
    """Makes longer trajectories on one side than on the other."""

    def _propose(self, current):
        for move in self.adapted.transitions.moves:
            move.n_steps = (1, 2) if current.position[0] > 0 else (8, 12)
        return super()._propose(current)


class Outwards(kmc.KMCLite):
    """Pushes every end point outwards."""

    def _propose(self, current):
        proposal = super()._propose(current)
        return proposal._replace(position=proposal.position * 1.3)


@pytest.mark.one_line
@pytest.mark.parametrize(
    ("broken", "n"),
    [(WithoutKineticEnergy, 6000), (LengthFromTheState, 4000), (Outwards, 40_000)],
)
def test_detailed_balance_can_fail(broken, n):
    step = frozen(lambda: given("KMCLite", is_wrong=True, step_class=broken))
    assert worst_of_balance(step, n) > 2 * TOLERANCE


class TakenForSymmetric(WithoutRatio, kmc.KAMH):
    pass


def one_sided(step_class):
    """Return a frozen step whose sub-sample is of the right arm's end alone."""
    step = frozen(step_class)
    rng, local = np.random.default_rng(12), step.adapted.local
    states = CurvedRidge().exact(400, rng)
    local.distribution = LocalDistribution(states[states[:, 0] > 1.5], "gaussian", 0.1, rng)
    local.scale.scale = 1.0
    return step


@pytest.mark.one_line
def test_a_one_sided_subsample_is_slower_and_not_biased():
    assert worst_of_balance(one_sided(kmc.KAMH)) < TOLERANCE


@pytest.mark.one_line
def test_a_one_sided_subsample_can_fail():
    assert worst_of_balance(one_sided(TakenForSymmetric), n=8000) > 2 * TOLERANCE
