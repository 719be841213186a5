"""A trust-region search for a maximum of a log density whose evaluations are one number each.

Around the best point the opaque terms are emulated from the nearest evaluations, by Gaussian
processes with a quadratic trend (:mod:`pymc_kmc.surrogates.exact_gp`); prior and other terms are
exact. The next evaluation is where the log density plus its standard deviation is largest, in a box
around the best point. The box's axes are those of the emulated curvature, its size follows from how
well the last rise was predicted (a trust region; Nocedal and Wright, 2006, section 4.1; with
Gaussian processes, Eriksson et al., 2019).

If no rise is predicted, or the last evaluations were predicted and brought none, a place in the
direction of largest uncertainty is evaluated, as a check. The search ends after two consecutive
checks that were predicted. Without checks it would stop early: a Gaussian process of few values has
the curvature of its initial coordinates in unknown directions, and takes a rising ridge for a
maximum. Under noise the best point is the one with the largest predicted mean.

References
----------
Eriksson, D., Pearce, M., Gardner, J., Turner, R. D. and Poloczek, M. (2019). Scalable global
optimization via local Bayesian optimization. *NeurIPS* 32.

Nocedal, J. and Wright, S. J. (2006). *Numerical Optimization*. Springer.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import N_DRAWS, Composite
from pymc_kmc.learning.emulator import NodeEmulator, noise_of
from pymc_kmc.learning.modes import SMALL_ERROR, Mode, climb
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH, FEW_DIMENSIONS
from pymc_kmc.learning.placing import uncertain
from pymc_kmc.numerics.linear_algebra import cholesky_factor, symmetric

# Number of nearest evaluations that are emulated: at least, and a dimension. With 30 at least later
# searches saw less of what earlier ones had found, and took twice as many.
FEWEST_NEAR, NEAR_A_DIMENSION = 110, 6
# Half width of the box at first, in the variables' scales, and at which a search may end, in those
# of the curvature: two standard deviations of a Gaussian posterior.
FIRST_RADIUS, LAST_RADIUS = 0.5, 2.0
# Half width at which a search gives up.
SMALLEST_RADIUS = 1e-4
# Shares of the predicted rise above which the box grows, and below which it shrinks; the factors.
GOOD_RISE, BAD_RISE, GROWTH, SHRINKAGE = 0.5, 0.1, 1.7, 0.6
# Half widths of the boxes of a step of several places, in units of the search's.
RADII = (1.0, 4.0, 0.25)
# Share of the optimistic rise that counts as predicted.
OPTIMISM_SHARE = 0.3
# Evaluations between updates of the curvature.
RENEWAL = 6
# Evaluations a dimension that show a search's course: those before the first curvature, those that
# give its last direction, and those that gain little if it stalls.
COURSE = 2
# Bounds of curvatures, in squared inverse units of the last ones.
CURVATURES = (1e-2, 1e4)
# Step of the differences for curvatures, in units of the last ones.
BOX_CURVATURE_STEP = 0.05
# Smallest optimistic rise, in nats, that counts as one.
SMALLEST_RISE = 0.5
# Largest error of a passed check, as a share of the depth.
CHECK_SHARE = 0.1
# Consecutive evaluations that settle something: passed checks the end of a search, predicted ones
# that an ascent on the emulator is trusted, and those without a rise that checks begin. Optimistic
# rises persist if the kernel's variance is that of deep values.
N_IN_A_ROW = 2
# Distance of a check, in standard deviations: at one, a wrong curvature causes half a nat, within a
# check's error. Number of random directions, of which the least known is taken.
CHECK_DISTANCE, N_DIRECTIONS = 2.5, 128
# Gain of its course, in nats a dimension, below which a search in many dimensions ends.
STALLED = 0.1
# Evaluations that give a search's rate, at least and a dimension. It is given up if it is too slow
# and below a known maximum by more than the depth of compression.
LATE, LATE_A_DIMENSION = 24, 3
# Most iterations of a maximisation.
ASCENT_ITERATIONS = 40
# Share of the box in which the second start of a maximisation is random.
INSIDE = 0.7
# Largest difference of log densities, in nats, of two searches that have found the same maximum.
SAME = 2.0


class Repulsion(NamedTuple):
    """A repulsive potential around known modes: Gaussians that are subtracted from the log density.

    They have `centres` (k, d), a `height` in nats, and a `width` in the variables' `scales` (d,).
    """

    centres: np.ndarray
    scales: np.ndarray
    height: float
    width: float

    @classmethod
    def of(cls, modes, places, log_densities, scales):
        """Return the potential around modes, as wide as they are far from dispersed places (n, d).

        It is as high as the best one is above the median of finite `log_densities` (k,).
        """
        centres = np.array([mode.x for mode in modes])
        best = max(mode.log_density for mode in modes)
        height = best - np.median(log_densities[np.isfinite(log_densities)])
        away = (places[:, None] - centres) / scales
        width = float(np.sqrt(np.median((away**2).sum(axis=2))))
        return cls(centres, scales, max(height, SAME), width)

    def __call__(self, X):
        """Return the potential (n,) at points (n, d), and its gradient (n, d)."""
        away = (X[:, None] - self.centres) / self.scales
        parts = self.height * np.exp(-0.5 * (away**2).sum(axis=2) / self.width**2)
        gradient = -(parts[:, :, None] * away).sum(axis=1) / (self.scales * self.width**2)
        return parts.sum(axis=1), gradient


class Repelled:
    def __init__(self, composite, repulsion):
        self.composite, self.repulsion = composite, repulsion

    def __call__(self, X, penalty=0.0):
        """Return :class:`~pymc_kmc.learning.composite.Values` at points (n, d)."""
        return self._lowered(X, self.composite(X, penalty=penalty))

    def optimistic(self, X):
        return self._lowered(X, self.composite.optimistic(X))

    def _lowered(self, X, values):
        off, gradient = self.repulsion(X)
        return values._replace(
            penalised=values.penalised - off,
            gradient=values.gradient - gradient,
            mean=values.mean - off,
        )


def agrees(predicted, value, highest, noise=0.0):
    """Say which log densities were predicted within an error, noise and a share of their depth."""
    error = SMALL_ERROR + noise
    return abs(value - predicted) < error + CHECK_SHARE * np.maximum(highest - value, 0.0)


class Rise(NamedTuple):
    """The best place x (d,) in a box of half width `radius`, and rises to it, in nats."""

    x: np.ndarray
    mean: float
    optimistic: float
    radius: float


class Step(NamedTuple):
    """Places X (n, d) to evaluate, those of `rises`, then checks, and `predicted` (n,) values."""

    X: np.ndarray
    predicted: np.ndarray
    rises: list
    is_flat: bool


class TrustRegion:
    """A search from one `start`, a Mode: an evaluated point with the first box's covariance.

    It ends after `n_checks` consecutive passed checks. A `repulsion` from known modes is subtracted
    until its release. The search uses the first `n_shared` evaluations, by default all, and its
    own; others only show whether it approaches a known mode.
    """

    def __init__(self, model, start, rng, n_checks=N_IN_A_ROW, repulsion=None, n_shared=None):
        self.model, self.rng, self.n_checks, self.repulsion = model, rng, n_checks, repulsion
        self.x, self.log_density, self.covariance = start
        self.radius, self.check_distance = FIRST_RADIUS, CHECK_DISTANCE
        # Half width of a box without rises that failed.
        self.reach = np.inf
        self.n_shared = n_shared
        self.emulators, self.emulators_of_all = (
            [NodeEmulator(node) for node in model.nodes] for _ in range(2)
        )
        self.is_noisy = model.is_noisy
        self.heights, self.path = [start.log_density], [self.x]
        self.has_own_places = repulsion is not None or n_shared is not None
        # Which of all evaluations are its own: its start first.
        self.own: list[int] = []
        self.n_evaluations = self.n_renewed = self.n_passed = self.n_predicted = self.n_flat = 0

    @property
    def mode(self):
        return Mode(self.x, self.log_density, self.covariance)

    @property
    def noise(self):
        return noise_of(self.emulators)

    @property
    def has_ended(self):
        return self.n_passed >= self.n_checks or self.radius < SMALLEST_RADIUS or self.has_stalled

    @property
    def has_stalled(self):
        """Whether so little is gained that rounds do better."""
        d, n = len(self.x), self.n_evaluations
        if self.is_noisy or d <= FEW_DIMENSIONS or n < COURSE * d:
            return False
        return self.heights[-1] - self.heights[-1 - COURSE * d] < STALLED * d

    def is_hopeless(self, height, n_left):
        """Say whether `n_left` evaluations would not reach a height, at the recent rate of rise."""
        d, short = len(self.x), height - self.log_density
        n = max(LATE, LATE_A_DIMENSION * d)
        if self.n_evaluations < n + d:
            return False
        rise = self.heights[-1] - self.heights[-1 - n]
        return short > max(COMPRESSION_DEPTH * d, rise / n * n_left)

    def next(self, evaluations, n=1):
        """Return the next :class:`Step`, of n places."""
        if not self.own:
            self.own.append(int(np.argmin(((evaluations.X - self.x) ** 2).sum(axis=1))))
        composite = self._seen(evaluations)
        if self.n_evaluations >= max(self.n_renewed + RENEWAL, COURSE * len(self.x)):
            self._renew(composite)
            composite = self._seen(evaluations)
        self.radius = min(self.radius, self.reach)
        while True:
            first = self._maximum(composite, self.radius)
            if first.optimistic > SMALLEST_RISE or self.radius > LAST_RADIUS:
                break
            if self.radius >= self.reach:
                break
            self.radius = min(2.0 * self.radius, self.reach)
        is_flat = first.optimistic <= SMALLEST_RISE or self.n_flat >= N_IN_A_ROW
        n_rises = min(max(n - self.n_checks, 0) if is_flat else n, len(RADII))
        if is_flat and not self.n_renewed:
            # The scales that a search begins with are no curvature.
            self._renew(composite)
        more = [self._maximum(composite, self.radius * size) for size in RADII[1:n_rises]]
        rises = [first, *more][:n_rises]
        X = np.array([each.x for each in rises]).reshape(-1, len(self.x))
        if n > n_rises and self.n_checks > N_IN_A_ROW and not self.n_passed:
            X = np.vstack([X, *self._ahead()])
        if n > len(X):
            X = np.vstack([X, self._least_known(composite, X, n - len(X))])
        return Step(X, composite(X).mean, rises, is_flat)

    def learn(self, step, evaluations, log_densities, row):
        """Learn, in place, from a step's log densities (n,), rows `row` on of all evaluations."""
        n, n_rises, predicted = len(log_densities), len(step.rises), step.predicted
        self.n_evaluations += n
        self.own += range(row, row + n)
        values, here = log_densities - self._off(step.X), self.log_density - self._off(self.x[None])
        was_predicted = agrees(predicted, values, np.maximum(here, values), self.noise)
        was_known = was_predicted
        if not self._climbs_by_all(evaluations):
            by_all = self._fit_to_all(evaluations)(step.X).mean
            was_known = agrees(by_all, values, np.maximum(here, values), self.noise)
        # That other places than rises aren't known is why they were chosen.
        told = slice(None) if step.is_flat else slice(n_rises)
        for each in was_known[told]:
            self.n_predicted = self.n_predicted + 1 if each else 0
        best = int(np.argmax(values))
        rises = values[best] - here[0] > SMALLEST_RISE
        self.n_flat = self.n_flat + n if was_predicted[told].all() and not rises else 0
        if n_rises:
            self._resize(step.rises, values[:n_rises] - here, values[:n_rises])
        if n_rises and rises:
            # Checks that were passed before were passed elsewhere.
            self.n_passed = 0
        elif step.is_flat:
            self._check(values[n_rises:], predicted[n_rises:], here)
        # Under noise the next fit says where the best point is.
        if values[best] > here[0] and not self.is_noisy:
            self.x, self.log_density = step.X[best], log_densities[best]
            self.check_distance, self.reach = CHECK_DISTANCE, np.inf
        self.heights += n * [self.log_density]
        self.path += n * [self.x]

    def _ahead(self):
        """Return a list of the place ahead at a check's distance, empty without a direction.

        A narrow ridge that bends looks like a maximum. Of five seeds of Lotka-Volterra's number
        three ended 18 to 32 nats below the maximum without this check, and none with it.
        """
        way = self.x - self.path[max(len(self.path) - COURSE * len(self.x), 0)]
        length = np.linalg.norm(np.linalg.solve(cholesky_factor(self.covariance), way))
        return [self.x + CHECK_DISTANCE / length * way] if length > 0.0 else []

    def _least_known(self, composite, picked, n):
        """Return the n most uncertain places at a check's distance, given those `picked` (k, d)."""
        directions = self.rng.standard_normal((N_DIRECTIONS, len(self.x)))
        directions /= np.linalg.norm(directions, axis=1)[:, None]
        places = self.x + self.check_distance * directions @ cholesky_factor(self.covariance).T
        variance = composite(places).variance
        return uncertain(self.emulators, self.model.inputs, places, variance, picked, n)

    def ascent(self, evaluations):
        """Return the end of an ascent of the emulated log density and its value, or None.

        None if the last evaluations were not predicted. A repelled search climbs the repelled
        density first; without another mode the ascent leads back to a known one.
        """
        if self.n_predicted < N_IN_A_ROW:
            return None
        composite, factor = self._fit_to_all(evaluations), cholesky_factor(self.covariance)
        place = np.zeros(len(self.x))
        climbed = [] if self.repulsion is None else [Repelled(composite, self.repulsion)]
        for density in [*climbed, composite]:
            density = partial(density, penalty=0.0)
            found = climb(density, self.x, factor, place, ASCENT_ITERATIONS)
            place = found.x
        return self.x + factor @ place, -found.fun

    def release(self):
        if self.repulsion is None:
            return
        self.repulsion = None
        self.radius, self.n_passed, self.n_flat = FIRST_RADIUS, 0, 0

    def _off(self, X):
        return np.zeros(len(X)) if self.repulsion is None else self.repulsion(X)[0]

    def _seen(self, evaluations):
        composite = self._fit(evaluations)
        return composite if self.repulsion is None else Repelled(composite, self.repulsion)

    def _climbs_by_all(self, evaluations):
        if self.n_shared is None:
            return True
        n = len(evaluations)
        return n <= self.n_shared + sum(self.n_shared <= i < n for i in self.own)

    def _fit_to_all(self, evaluations):
        if self._climbs_by_all(evaluations):
            return self._fit(evaluations)
        return self._nearest(evaluations, np.arange(len(evaluations)), self.emulators_of_all)[0]

    def _nearest(self, evaluations, among, emulators):
        """Return the composite of the nearest of some evaluations, and their rows."""
        factor = cholesky_factor(self.covariance)
        away = (np.linalg.solve(factor, (evaluations.X[among] - self.x).T) ** 2).sum(axis=0)
        n = FEWEST_NEAR + NEAR_A_DIMENSION * len(self.x)
        nearest = np.sort(np.argsort(away, kind="stable")[:n])
        draws = np.random.default_rng(0).standard_normal((N_DRAWS, len(self.x))) @ factor.T + self.x
        inputs = self.model.inputs(draws)
        near = among[nearest]
        for emulator in emulators:
            emulator.fit(evaluations[near], draws, inputs, top=int(np.argmin(away[nearest])))
        return Composite(self.model, emulators), near

    def _fit(self, evaluations):
        """Return the composite to climb, of the nearest own or shared evaluations."""
        among = np.arange(len(evaluations))
        if not self._climbs_by_all(evaluations):
            among = np.union1d(among[: self.n_shared], self.own)
        composite, near = self._nearest(evaluations, among, self.emulators)
        if self.is_noisy:
            # The largest of noisy values is the luckiest: the best one is where the mean is. A
            # search that is to come elsewhere than others goes on from its own places.
            among = np.intersect1d(near, self.own) if self.has_own_places else near
            X = evaluations.X[among]
            # A failed estimate's place is no place to go on from, whatever is predicted there.
            values = evaluations.log_densities[among]
            values = np.where(np.isfinite(values), values, -np.inf)
            # Nor is a mean above the luckiest value believed: among values of -1e15 it was 1e19.
            means = np.where(np.isfinite(values), composite(X).mean, -np.inf)
            means = np.minimum(means, values.max())
            best = int(np.lexsort((values, means - self._off(X)))[-1])
            self.x, self.log_density = X[best], means[best]
        return composite

    def _renew(self, composite):
        """Update the covariance from the curvature, if finite; the box keeps its volume."""
        self.n_renewed = self.n_evaluations
        factor = cholesky_factor(self.covariance)
        steps = BOX_CURVATURE_STEP * factor.T
        with np.errstate(all="ignore"):
            ahead, behind = (
                composite(self.x + sign * steps, penalty=0.0).gradient @ factor for sign in (1, -1)
            )
        H = -(ahead - behind) / (2.0 * BOX_CURVATURE_STEP)
        if not np.isfinite(H).all():
            return
        values, vectors = np.linalg.eigh(symmetric(H))
        values = np.clip(np.abs(values), *CURVATURES)
        axes = factor @ vectors
        covariance = (axes / values) @ axes.T
        if cholesky_factor(covariance) is None:
            return
        self.covariance = covariance
        scale = np.exp(0.5 * np.log(values).mean())
        self.radius, self.reach = scale * self.radius, scale * self.reach

    def _maximum(self, composite, radius):
        """Return the :class:`Rise` to the optimistic maximum in a box of half width `radius`."""
        d, factor = len(self.x), cholesky_factor(self.covariance)
        starts = (
            1e-3 * radius * self.rng.standard_normal(d),
            INSIDE * radius * self.rng.uniform(-1.0, 1.0, d),
        )
        density, limits = composite.optimistic, (ASCENT_ITERATIONS, d * [(-radius, radius)])
        found = [climb(density, self.x, factor, start, *limits) for start in starts]
        best = min(found, key=lambda end: end.fun)
        x = self.x + factor @ best.x
        end, here = composite(np.vstack([x, self.x])).mean
        return Rise(x, end - here, -best.fun - here, radius)

    def _check(self, values, predicted, here):
        passed = agrees(predicted, values, here, self.noise)
        if not self.is_noisy and not np.isfinite(values).all():
            # A place that fails tells nothing of the curvature. A nearer one is next, for the same
            # would be chosen again; where there is none, no place is higher.
            if self.check_distance > FIRST_RADIUS:
                self.check_distance *= SHRINKAGE
                return
            passed |= ~np.isfinite(values)
        if passed.all():
            self.n_passed += len(values)
        else:
            rises = not self.is_noisy and np.max(values - here) > SMALLEST_RISE
            self.n_passed, self.radius = 0, CHECK_DISTANCE if rises else FIRST_RADIUS

    def _resize(self, rises, reached, values):
        """Resize the box, given `values` (k,) and the rises that were `reached` of those predicted.

        A place that has failed is left out of it, or would be chosen again.
        """
        if not self.is_noisy and not np.isfinite(values).any():
            away = np.array([rise.x for rise in rises]) - self.x
            away = np.abs(np.linalg.solve(cholesky_factor(self.covariance), away.T)).max(axis=0)
            self.radius = self.reach = SHRINKAGE * min(self.radius, away.min())
            return
        k = int(np.argmax(reached))
        share = reached[k] / max(rises[k].mean, OPTIMISM_SHARE * rises[k].optimistic)
        if not share >= BAD_RISE:
            self.radius = SHRINKAGE * min(rise.radius for rise in rises)
        else:
            self.radius = rises[k].radius * (GROWTH if share > GOOD_RISE else 1.0)
