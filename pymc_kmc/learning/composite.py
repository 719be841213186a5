r"""The log density with emulated outputs, and draws from it.

With outputs :math:`\mu(x)` and their covariance :math:`v(x) S` from the emulators, the log
density's variance is :math:`V(x) = v(x)\, g^\top S g`, where g are its derivatives by the outputs.
Draws at temperature T are from

.. math:: \exp\left(\frac{L(x, \mu(x))}{T} - \frac{V(x)}{2 T^2}\right),

times the probability that the model doesn't fail at x (:mod:`pymc_kmc.learning.region`).

The penalty V/2 keeps draws where outputs are known, and the known region grows. Errors that are
small against T don't matter. If L is a sum of the exact prior and of opaque terms, only the terms
are divided by T: draws stay where the prior has mass.

The gradient treats g as constant in V. The chain is still exact: leapfrog steps with any field of
forces preserve volume and are reversible (Neal, 2011, section 5.5), and the accept step uses the
density.

References
----------
Neal, R. M. (2011). MCMC using Hamiltonian dynamics. In *Handbook of Markov Chain Monte Carlo*.
"""

from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from pymc_kmc.learning.modes import maxima
from pymc_kmc.numerics.coordinates import ModeMaps
from pymc_kmc.numerics.linear_algebra import ROUNDING, cholesky_factor
from pymc_kmc.numerics.samples import robust_spread, shrunk

# Most leapfrog steps of a transition; the number is uniform from 1.
MOST_STEPS = 10
# Target acceptance rate of the step size, gain of its logarithm, and bounds. Leapfrog steps on a
# unit Gaussian are unstable from 2 on, and 1 is hardly worse than shorter ones.
ACCEPTANCE, SIZE_GAIN, STEP_SIZES = 0.75, 0.15, (1e-3, 1.2)
# Factors of the step size, drawn for each chain, and their probabilities: the step size that is
# right in the middle of a banana is hardly accepted in its arms.
SIZE_FACTORS, SIZE_PROBABILITIES = (1.0, 0.35), (0.75, 0.25)
# Bounds of the uniform jitter of a transition's step size, in learned step sizes.
SIZE_JITTER = (0.7, 1.3)
# Weight of the variance V in the log density that is drawn from.
PENALTY = 0.5
# Most chains that make the final draws, and draws of each.
MOST_CHAINS, N_EACH = 256, 8
# Most nodes predicted at once, over all chains: 256 chains of thirty boxes took four minutes.
MOST_AT_ONCE = 4096
# Fewest chains, of a round or for the final draws.
FEWEST_CHAINS = 32
# Number of draws that stand for a density, where pairs of them are compared.
N_DRAWS = 256
# Temperature of draws wider than the posterior, hardly deeper than the values that are compressed.
DISPERSED = 2.0
# Stages until chains have mixed: transitions between draws and most leapfrog steps of each. Along a
# banana four times as long trajectories gave an R-hat of 1.04, four times as many 1.09. Keeping the
# draws of earlier stages gave errors of its log sds of .12 in place of .05.
BETWEEN = (8, MOST_STEPS), (8, 4 * MOST_STEPS), (16, 4 * MOST_STEPS), (32, 4 * MOST_STEPS)
# Potential scale reduction (R-hat) below which chains have mixed.
MIXED = 1.03
# Standard errors above which what should be zero isn't so by chance, as the drift of averages that
# don't depend on where chains began. Of a hundred, one is above it in 1 of 150 calls.
NOT_BY_CHANCE = 4.0
# Number of transitions of burn-in.
N_BURNED = 16
# Proposals from the prior between two draws. Without them a plateau with 3 % of the mass, 8 nats
# below a narrow mode, had .5 %. They take a seventh of the time.
N_FROM_PRIOR = 8
# Largest standard deviation of the log density, in nats, at both ends of a proposal from the prior.
# Mass that emulators suppose where they know nothing cost rounds that found none.
SURE = 0.1


class Values(NamedTuple):
    """The composite log density at n points.

    `penalised` (n,) is the log density at the temperature, less the penalty and plus the log
    probability of feasibility, and `gradient` (n, d) is its gradient. `mean` and `variance` (n,)
    are those of the log density at temperature 1. `log_feasible` (n,) is the log probability that
    it is finite, `of_region` (n,) the variance of the log density since that is uncertain.
    """

    penalised: np.ndarray
    gradient: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    log_feasible: np.ndarray
    of_region: np.ndarray

    @property
    def emulated(self):
        """Log density (n,) at temperature 1, less the penalty, where it is finite."""
        return self.mean - PENALTY * self.variance

    @property
    def own(self):
        """Log density (n,) at temperature 1, less the penalty."""
        return self.emulated + self.log_feasible

    @property
    def doubt(self):
        """Variance (n,) of the log density, including that of uncertain feasibility."""
        return self.variance + self.of_region

    def rows(self, rows):
        return Values(*[field[rows] for field in self])


class Composite:
    """The log density of an OpaqueModel with fitted emulators in place of its opaque nodes.

    `region` is the FeasibleRegion, None if all log densities are finite. Beyond `bounds`, a lowest
    and a highest place (d,), the density is zero.
    """

    def __init__(self, model, emulators, region=None, bounds=None):
        self.model, self.emulators, self.region, self.bounds = model, emulators, region, bounds
        # Successive nodes of one function, which share a process, are predicted together.
        groups = groupby(emulators, key=lambda emulator: id(emulator.process))
        self._together = [
            first.shared(first.node, *[other.node for other in others]) if others else first
            for first, *others in ([*group] for _, group in groups)
        ]

    @property
    def parts(self):
        """Emulators, one for successive nodes of a function, their bases, and the region."""
        bases = [emulator.base for emulator in self._together if emulator.is_corrected]
        return [*self._together, *bases, *([] if self.region is None else [self.region])]

    @property
    def on_all_turns(self):
        """The same without bounds of angles, whose ends are no edges: the density goes on there."""
        if self.bounds is None:
            return self
        ends = np.where(np.isfinite(self.model.periods), np.inf, 0.0)
        low, high = self.bounds
        return Composite(self.model, self.emulators, self.region, (low - ends, high + ends))

    def __call__(self, X, temperature=1.0, penalty=PENALTY) -> Values:
        """Return :class:`Values` at X (n, d); with no `penalty` the region is that for moves."""
        weight = -penalty / temperature**2

        def penalised(variance):
            return weight * variance, np.full(len(variance), weight)

        return self._values(X, temperature, penalised, is_for_moves=penalty == 0.0)

    def slopes(self, X, temperature):
        """Return the gradient (n, d) of the log density without the penalty."""
        none = np.zeros(len(X))
        return self._values(X, temperature, lambda _: (none, none), is_certain=True).gradient

    def optimistic(self, X, most=None) -> Values:
        """Return :class:`Values` plus a standard deviation, `most` nats at most."""

        def bonus(variance):  # with .3 standard deviations searches ended early
            sd = np.sqrt(np.maximum(variance, ROUNDING))
            if most is None:
                return sd, 0.5 / sd
            share = np.tanh(sd / most)
            return most * share, 0.5 * (1.0 - share**2) / sd

        return self._values(X, 1.0, bonus, 1.0)

    @np.errstate(all="ignore")
    def sampled(self, X, n, rng):
        """Return n draws of the log density at each of k points, (n, k), by draws of outputs."""
        inputs = self.model.inputs(X)
        predictions = [emulator.predict(X, inputs) for emulator in self._together]
        values = np.empty((n, len(X)))
        for row in values:
            drawn = [prediction.sampled(rng).reshape(len(X), -1) for prediction in predictions]
            outputs = np.hstack(drawn)
            row[:] = self.model.log_density(X, outputs)[0]
        if self.region is not None:
            log_feasible = self.region.at(X).log_probability
            values[np.log(rng.random(values.shape)) > log_feasible] = -np.inf
        return values

    @np.errstate(all="ignore")  # outputs far away, as of a first design
    def _values(self, X, temperature, of_variance, n_sds=0.0, is_for_moves=False, is_certain=False):
        model = self.model
        uses_inputs = any(emulator.uses_inputs for emulator in self._together)
        inputs = model.inputs(X) if uses_inputs else X[:, :0]
        predictions = [each.predict(X, inputs, not is_certain) for each in self._together]
        outputs = np.hstack([found.outputs.reshape(len(X), -1) for found in predictions])
        mean, by_x, by_outputs = model.log_density(X, outputs)
        tempered, gradient = mean / temperature, by_x / temperature
        if model.is_sum:
            rest = mean - outputs.sum(axis=1)
            tempered, gradient = rest + (mean - rest) / temperature, by_x.copy()
        known = [(found, *found.scale(by_outputs)) for found in predictions]
        of_each = [scale * found.variance for found, scale, _ in known]
        variance = sum(each.reshape(len(X), -1).sum(axis=1) for each in of_each)
        added, weights = of_variance(variance)
        by_inputs = np.zeros_like(inputs)
        for found, scale, slopes in known:
            emulator = found.emulator
            by_variance = np.repeat(weights, len(emulator.nodes))
            if not is_certain:
                by_variance = by_variance * scale
            pulled = found.prediction.pullback(slopes / temperature, by_variance)
            emulator.add_pull(gradient, by_inputs, pulled, inputs)
            if found.base is not None:
                base, own = emulator.base, by_outputs[:, emulator.outputs]
                own = own.reshape(found.outputs.shape)
                slopes, none = base.slopes(own, found.outputs), np.zeros(len(own))
                pulled = found.base.prediction.pullback(slopes / temperature, none)
                base.add_pull(gradient, by_inputs, pulled, inputs)
        if by_inputs.any():
            gradient += model.pull(X, by_inputs)
        log_feasible, of_region = np.zeros((2, len(X)))
        if self.region is not None:
            log_feasible, slopes, of_region = (
                self.region.for_moves(X) if is_for_moves else self.region.at(X, n_sds)
            )
            added, gradient = added + log_feasible / temperature, gradient + slopes / temperature
        if self.bounds is not None:
            low, high = self.bounds
            added = np.where(((X < low) | (X > high)).any(axis=1), -np.inf, added)
        return Values(tempered + added, gradient, mean, variance, log_feasible, of_region)


class Draws(NamedTuple):
    """Draws X (n, d) of a composite, their :class:`Values`, and the step size that made them."""

    X: np.ndarray
    values: Values
    step_size: float

    def rows(self, rows):
        return Draws(self.X[rows], self.values.rows(rows), self.step_size)


def joined(parts):
    X, values, step_sizes = zip(*parts, strict=True)
    all_values = Values(*map(np.concatenate, zip(*values, strict=True)))
    return Draws(np.vstack(X), all_values, step_sizes[-1])


@np.errstate(all="ignore")  # trajectories may leave the numbers: such ends are rejected
def draw(
    composite,
    starts,
    factor,
    step_size,
    n,
    rng,
    temperature=1.0,
    maps=None,
    n_steering=None,
    most_steps=MOST_STEPS,
) -> Draws:
    """Return the draws of Hamiltonian Monte Carlo chains after n transitions from `starts` (k, d).

    The metric is given by `factor` (d, d), a factor of the draws' covariance. With `maps` a jump
    between modes follows each transition. The acceptance of the first `n_steering` chains, by
    default of all, adapts the step size: chains that start in steep places would make it too small.
    If `most_steps`, the most leapfrog steps of a transition, is large, trajectories ignore the
    penalty.
    """
    X, values, slopes = starts.copy(), composite(starts, temperature), None
    if most_steps > MOST_STEPS:
        slopes = composite.slopes  # the variance's is most of the work; the accept step has it

    def with_slopes(X, values):
        return values if slopes is None else values._replace(gradient=slopes(X, temperature))

    values = with_slopes(X, values)
    for _ in range(n):
        momentum = rng.standard_normal(X.shape)
        factors = rng.choice(SIZE_FACTORS, size=len(X), p=SIZE_PROBABILITIES)
        size = (step_size * rng.uniform(*SIZE_JITTER) * factors)[:, None]
        new_X, new_momentum, new_values = X, momentum, values
        gradient = values.gradient
        for _ in range(rng.integers(1, most_steps + 1)):
            new_momentum = new_momentum + 0.5 * size * gradient @ factor
            new_X = new_X + size * new_momentum @ factor.T
            if slopes is None:
                new_values = composite(new_X, temperature)
                gradient = new_values.gradient
            else:
                gradient = slopes(new_X, temperature)
            new_momentum = new_momentum + 0.5 * size * gradient @ factor
        if slopes is not None:
            new_values = composite(new_X, temperature)._replace(gradient=gradient)
        change = new_values.penalised - values.penalised
        change -= 0.5 * (new_momentum**2 - momentum**2).sum(axis=1)
        X, values, probability = _accepted(X, values, new_X, new_values, change, rng)
        full = probability[:n_steering][factors[:n_steering] == 1.0]
        if len(full):
            step_size *= np.exp(SIZE_GAIN * (full.mean() - ACCEPTANCE))
        step_size = float(np.clip(step_size, *STEP_SIZES))
        if maps is not None:
            new_X, log_ratio = maps.jump(X, rng)
            new_values = with_slopes(new_X, composite(new_X, temperature))
            change = new_values.penalised - values.penalised + log_ratio
            X, values, _ = _accepted(X, values, new_X, new_values, change, rng)
    return Draws(X, values, step_size)


def _accepted(X, values, new_X, new_values, log_ratio, rng):
    """Accept or reject proposals; return places, Values and acceptance probabilities (n,)."""
    probability = np.exp(np.minimum(np.where(np.isfinite(log_ratio), log_ratio, -np.inf), 0.0))
    accepted = rng.random(len(X)) < probability
    pairs = zip((new_X, *new_values), (X, *values), strict=True)
    X, *kept = [np.where(accepted if a.ndim == 1 else accepted[:, None], a, b) for a, b in pairs]
    return X, Values(*kept), probability


def on_circles(X, periods):
    """Return draws (n, c, d) with each angle replaced by a point on the unit circle."""
    angles = np.isfinite(periods)
    turns = 2.0 * np.pi * X[..., angles] / periods[angles]
    return np.concatenate([X[..., ~angles], np.cos(turns), np.sin(turns)], axis=-1)


class FinalDraws(NamedTuple):
    """The final draws: a list `parts` of successive Draws of all chains.

    The metric is given by `factor` (d, d). Chains jumped between `modes` by `maps`. `r_hat` is
    their potential scale reduction.
    """

    parts: list
    factor: np.ndarray
    modes: tuple
    maps: ModeMaps | None
    r_hat: float


class FromPrior:
    """Independence proposals from a kernel density estimate of the prior, by Scott's bandwidth."""

    def __init__(self, draws):
        n, d = draws.shape
        spread = np.maximum(robust_spread(draws), ROUNDING)  # a variable's may all be equal
        self.centres, self.scales = draws, n ** (-1.0 / (d + 4)) * spread

    def log_density(self, X):
        squares = cdist(X / self.scales, self.centres / self.scales, "sqeuclidean")
        return logsumexp(-0.5 * squares, axis=1)

    def jump(self, X, rng):
        """Return proposals (k, d), and log q(x) - log q(x') (k,)."""
        centres = self.centres[rng.integers(len(self.centres), size=len(X))]
        new = centres + self.scales * rng.standard_normal(X.shape)
        return new, self.log_density(X) - self.log_density(new)


@np.errstate(all="ignore")
def jumped(composite, draws, jumps, n, rng) -> Draws:
    """Return Draws after n proposals of `jumps` between places where emulators are certain."""
    X, values, step_size = draws
    for _ in range(n):
        new_X, log_ratio = jumps.jump(X, rng)
        new_values = composite(new_X)
        change = new_values.penalised - values.penalised + log_ratio
        are_sure = np.fmax(values.variance, new_values.variance) < SURE**2
        change = np.where(are_sure, change, -np.inf)
        X, values, _ = _accepted(X, values, new_X, new_values, change, rng)
    return Draws(X, values, step_size)


def drawn(composite, state, rng, prior) -> FinalDraws:
    """Return the :class:`FinalDraws` of many chains on a composite.

    If learning has converged, chains that have not mixed, or whose averages drift, go on with
    longer and then more trajectories, and jump between several maxima. Between draws they are
    proposed draws of the `prior` (n, d), if there are any.
    """
    from_prior = FromPrior(prior) if len(prior) else None
    starts = _finite(composite, state)
    n_chains = max(MOST_AT_ONCE // len(composite.model.nodes), FEWEST_CHAINS)
    starts = starts[rng.choice(len(starts), min(n_chains, MOST_CHAINS))]
    factor, modes, maps = state.factor, tuple(state.modes), state.maps
    last = draw(composite, starts, factor, state.step_size, N_BURNED, rng, maps=maps)
    for stage, (n, most_steps) in enumerate(BETWEEN):
        parts = []
        for _ in range(N_EACH):
            settings = n, rng, 1.0, maps, None, most_steps
            last = draw(composite, last.X, factor, last.step_size, *settings)
            if from_prior is not None:
                last = jumped(composite, last, from_prior, N_FROM_PRIOR, rng)
            parts.append(last)
        X = np.stack([part.X for part in parts])
        turned = on_circles(X, composite.model.periods)
        r_hat = potential_scale_reduction(turned)
        have_mixed = r_hat < MIXED and drift(turned) < NOT_BY_CHANCE
        if have_mixed or not state.has_converged or stage == len(BETWEEN) - 1:
            break
        if stage == 0 and r_hat >= MIXED:
            found = tuple(maxima(composite, last.X))
            if len(found) > 1:
                modes, maps = found, ModeMaps.between(found, X.reshape(-1, X.shape[2]))
        factor = cholesky_factor(shrunk(X.reshape(-1, X.shape[2])))
    return FinalDraws(parts, factor, modes, maps, r_hat)


def _finite(composite, state):
    """Return the state's draws where the composite is finite, or else the best evaluation."""
    values = composite(state.draws)
    usable = np.isfinite(values.penalised) & np.isfinite(values.gradient).all(axis=1)
    if usable.any():
        return state.draws[usable]
    evaluations = state.evaluations
    return evaluations.X[[np.argmax(evaluations.log_densities)]]


def potential_scale_reduction(X):
    """Return the largest potential scale reduction of the coordinates of c chains' draws (n, c, d).

    References
    ----------
    Gelman, A. and Rubin, D. B. (1992). Inference from iterative simulation using multiple
    sequences. *Statistical Science* 7, 457-472.
    """
    within = X.var(axis=0, ddof=1).mean(axis=0)
    between = X.mean(axis=0).var(axis=0, ddof=1)
    n = len(X)
    return float(np.sqrt(np.max((n - 1) / n + between / np.maximum(within, 1e-300))))


def drift(X):
    """Return the largest change, in standard errors, of a mean or variance between two halves."""
    of_both = np.concatenate([X, (X - X.mean(axis=(0, 1))) ** 2], axis=-1)
    half = len(X) // 2
    moves = of_both[half:].mean(axis=0) - of_both[:half].mean(axis=0)
    errors = moves.std(axis=0, ddof=1) / np.sqrt(len(moves))
    return float(np.max(np.abs(moves.mean(axis=0)) / np.maximum(errors, 1e-300)))
