"""Searches for the posterior's mass from several starts, until some agree.

Outputs make a least-squares problem (:mod:`pymc_kmc.learning.search`). Log densities alone
("numbers") are first evaluated at dispersed starts and at draws of the prior. If these are no
deeper than posterior draws, no search is needed. Otherwise searches start from the best of them
(:mod:`pymc_kmc.learning.trust_region`). A search ends when its evaluations, or an ascent of the
emulated log density, lead to the end of an earlier search. Many nodes with few inputs each, such as
a box for each group, need no search: draws of the prior fill the space of each.

With more workers than a round has evaluations, searches by numbers run at the same time. Each step
is one batch of them all. A search that will not come as high as another is given up.

A search may end in a local maximum; two must agree on the best one. Where a log density depends on
many parameters, a search that uses others' evaluations is led to their ends. There each search
climbs by its own evaluations, and others' only show whether it approaches a known mode. If all of
these end alike, two more are repelled from what they found.

Under noise climbing alone takes more evaluations. Searches after the first then begin far from
known modes, and a repulsive potential around these (deflation; Farrell et al., 2015) is subtracted
from the log density at first. If all of them end alike, some more climb alone. The best maximum
must have stood for two more searches.

References
----------
Farrell, P. E., Birkisson, A. and Funke, S. W. (2015). Deflation techniques for finding distinct
solutions of nonlinear partial differential equations. *SIAM Journal on Scientific Computing* 37.
"""

from typing import NamedTuple

import numpy as np

from pymc_kmc.learning.composite import DISPERSED, N_DRAWS
from pymc_kmc.learning.convergence import begin
from pymc_kmc.learning.emulator import shrunk
from pymc_kmc.learning.modes import NEGLIGIBLE_MASS, Mode, explains, is_same, learned_mode
from pymc_kmc.learning.outputs import COMPRESSION_DEPTH
from pymc_kmc.learning.rounds import BATCH_SIZE, LARGEST_TEMPERATURE
from pymc_kmc.learning.search import search, side_by_side
from pymc_kmc.learning.trust_region import N_IN_A_ROW, SAME, Repulsion, TrustRegion
from pymc_kmc.numerics.samples import far_from, robust_spread, spread_out

# Number of the prior's draws, evenly spread, that are evaluated for log densities alone.
N_PRIOR = 16
# Largest distance of a start from the prior's median, in its scales: a search moves one scale a
# step.
FARTHEST_START = 5.0
# Fewest searches by outputs, fewest and most by numbers. Of Lotka-Volterra's one in eight ends in a
# local maximum with outputs, six in ten with numbers, and one in five of those that are repelled.
FEWEST_SEARCHES, FEWEST_CLIMBS, MOST_SEARCHES = 4, 6, 10
# Number of searches by numbers after which one that stalls is the last: others would stall too.
FEWEST_STALLED = 3
# Largest number of inputs of a node up to which searches aren't expected to miss its best mode.
FEW_INPUTS = 6
# Fewest searches by numbers beyond them under noise. Half of Lotka-Volterra's that climb alone end
# in its local mode: six all did on one seed of 18, eight that are repelled on one seed of ten.
FEWEST_IN_NOISE = 8
# Number of searches under noise if all end alike; those after the fewest climb alone. On 25 seeds
# of Lotka-Volterra with noise of one nat eight searches missed the right mode twice, twelve once.
MOST_IN_NOISE = 12
# Standard deviation of the noise, in nats, above which it hides slopes.
HIDING_NOISE = 0.3
# Number of later searches that the best maximum has to stand for: those that are repelled, if all
# that climb alone end alike. On the seed above the first one found the higher mode.
N_STOOD = 2
# Largest share of the evaluations for one search, and for all searches: rounds need the rest.
SEARCH_SHARE, SEARCHES_SHARE = 0.25, 0.75
# Evaluations a dimension that a search by numbers may take anyway: one of Lotka-Volterra's to the
# right basin takes some 190.
LEAST_A_SEARCH = 24
# Largest scale, in unconstrained units, of a search from one of PyMC's jittered points, which are a
# unit around a point that the user may have set. With the scales of far too wide priors a
# regression's seven parameters were a hundred nats below their maximum after 250 evaluations.
JITTERED_SCALE = 1.0
# Spread of the first places around a maximum, in standard deviations of the linear model's
# posterior.
FIRST_SPREAD = 1.5
# Places of the first design of small nodes, in coefficients of a quadratic of their inputs.
DESIGN = 2


class FoundMode(NamedTuple):
    mode: Mode
    n_searches: int


class MultiStart:
    """Searches from `n_starts` dispersed starts; learning takes `most` evaluations at most.

    `starts` (n_starts, d) are PyMC's jittered initial points and draws of the prior in turn.
    `found` is a list of a FoundMode for each mode, in the order of discovery.
    """

    def __init__(self, opaque, n_starts, most, rng):
        self.opaque, self.most, self.rng = opaque, most, rng
        self.is_noisy = opaque.is_noisy
        # Few workers are as one: a round has so many places anyway.
        self.n_parallel = opaque.n_parallel if opaque.n_parallel > BATCH_SIZE else 1
        least = LEAST_A_SEARCH * opaque.n_dimensions
        self._most_by_numbers = max(int(SEARCH_SHARE * most), least)
        self.prior = opaque.prior_points(N_DRAWS, rng)
        self.starts = opaque.jittered_points(n_starts, rng)
        self.scales = np.ones(opaque.n_dimensions)
        if self.prior is not None:
            spread = robust_spread(self.prior)
            self.scales = np.where(spread > 0, spread, 1.0)
            centre, away = np.median(self.prior, axis=0), FARTHEST_START * self.scales
            self.starts = np.clip(self.starts, centre - away, centre + away)
            self.starts[1::2] = spread_out(self.prior, n_starts // 2, rng)
        self.begin_again()
        # Standard deviation that the last search's emulators saw, in nats.
        self.noise = 0.0

    def begin_again(self):
        opaque = self.opaque
        self.evaluations = opaque.evaluations
        # Whether a node depends on so many numbers that searches may miss its modes, and whether
        # noise hides slopes besides.
        self.may_hide_modes = max(len(n.moves_with) for n in opaque.nodes) > FEW_INPUTS
        self._is_hidden = self.may_hide_modes and opaque.is_noisy
        self.found: list[FoundMode] = []
        self.n_searches = self.n_dispersed = 0

    def state(self, evaluations, say):
        """Return the LearningState before round one; earlier evaluations replace searches."""
        self.say = say
        if evaluations is not None:
            self.evaluations = evaluations
            hot = DISPERSED if self.opaque.returns_outputs else LARGEST_TEMPERATURE
            return self._at_best(hot)
        if self.opaque.has_small_nodes and self.prior is not None:
            # Each node's inputs are few.
            q = self.opaque.most_inputs
            self._evaluate(spread_out(self.prior, DESIGN * (q + 1) * (q + 2) // 2, self.rng))
            check_finite(self.evaluations)
            return self._at_best(1.0)
        if self.opaque.returns_outputs:
            self._by_outputs()
        else:
            self._disperse()
            if self.prior is None or not are_near(self.evaluations, self.opaque):
                self._by_numbers()
        return self._at_modes() if self.found else self._at_best(LARGEST_TEMPERATURE)

    # Outputs

    def _by_outputs(self):
        opaque, n_starts = self.opaque, len(self.starts)
        starts = self.starts
        if self.prior is not None:
            # Where the first ones disagree.
            starts = np.vstack([starts, spread_out(self.prior, n_starts, self.rng)])
        pairs = zip(starts, self.rng.spawn(len(starts)), strict=True)
        searches = [self._search_by_outputs(*pair) for pair in pairs]
        begin = opaque.begin if opaque.runs_ahead else None
        n = min(FEWEST_SEARCHES, n_starts)
        while searches and not self._have_agreed and self._may_search:
            side_by_side(searches[:n], self._evaluate, begin, self.n_parallel)
            searches, n = searches[n:], 1
        check_finite(self.evaluations)

    @property
    def _may_search(self):
        return len(self.evaluations) < int(SEARCHES_SHARE * self.most)

    @property
    def _have_agreed(self):
        if self.n_searches < FEWEST_SEARCHES or not self.found:
            return False
        return max(self.found, key=lambda found: found.mode.log_density).n_searches > 1

    def _search_by_outputs(self, start, rng):
        """Make one search, a generator like :func:`search`, and record its mode."""
        opaque = self.opaque
        most = max(int(SEARCH_SHARE * self.most), 2 * opaque.n_dimensions)
        limits = most, self._is_known
        X, outputs, fitted = yield from search(opaque, start, self.scales, rng, *limits)
        self.n_searches += 1
        if fitted is not None:
            values = opaque.values(X, outputs)
            i = int(np.argmax(values))
            self._note(Mode(X[i], values[i], fitted.covariance(X[i], self.scales)))

    def _is_known(self, x, value):
        copy = self.opaque.nearest_copy
        return any(explains(mode, x, value, copy) for mode, _ in self.found)

    def _evaluate(self, X):
        new = self.opaque.evaluate(X)
        self.evaluations = self.evaluations.joined(new[self.evaluations.rows(new.X) < 0])
        self.say(self.evaluations)
        return new.outputs

    # Numbers

    def _disperse(self):
        if self.prior is None:
            # Nothing to draw from: more starts.
            places = self.opaque.jittered_points(N_PRIOR, self.rng)
        else:
            places = spread_out(self.prior, N_PRIOR, self.rng)
        self._evaluate(np.vstack([self.starts, places]))
        check_finite(self.evaluations)

    def _by_numbers(self):
        dispersed, left = self.evaluations, np.isfinite(self.evaluations.log_densities)
        self.n_dispersed, ends = len(dispersed), []
        while left.any() and self._may_search:
            n = min(self._n_at_once(len(ends)), left.sum())
            found = self._search([self._start(dispersed, left, len(ends) + i) for i in range(n)])
            self.n_searches += n
            ends += [mode for mode, _ in found]
            if self._are_enough(ends):
                break
            if any(stalled for _, stalled in found) and len(ends) >= FEWEST_STALLED:
                break
        if self._is_hidden and self.found:
            self._climb_on()

    def _n_at_once(self, n_before):
        """Return how many searches run at once; under noise each is repelled from those before."""
        if self.n_parallel == 1 or self._is_hidden:
            return 1
        if n_before:
            return N_STOOD
        return FEWEST_SEARCHES if self.may_hide_modes else FEWEST_CLIMBS

    def _start(self, dispersed, left, n_before):
        """Return a search, the one after `n_before`, from one of the places `left`, a mask."""
        repulsion, heights = None, dispersed.log_densities
        alone = self._climbs_alone(n_before)
        if n_before and (self._is_hidden or (self.may_hide_modes and n_before >= FEWEST_CLIMBS)):
            # A search otherwise goes on from the best place nearby, a known mode. If all climbed
            # alone, as many seeds would end in the wrong basin, after more evaluations.
            modes, places = [mode for mode, _ in self.found], dispersed.X[len(self.starts) :]
            repulsion = Repulsion.of(modes, places, heights, self.scales)
            heights = heights - repulsion(dispersed.X)[0]
        among = left
        if n_before and not self.may_hide_modes:
            known = np.vstack([dispersed.X[~left], *[mode.x for mode, _ in self.found]])
            among = left & far_from(known, dispersed.X, left, self.scales)
        start = int(np.argmax(np.where(among, heights, -np.inf)))
        left[start] = False
        x, scales = dispersed.X[start], self.scales
        if (x == self.starts[::2]).all(axis=1).any():
            scales = np.minimum(scales, JITTERED_SCALE)
        place = Mode(x, dispersed.log_densities[start], np.diag(scales**2))
        n_checks = N_IN_A_ROW + self.may_hide_modes
        if alone and self._is_hidden:
            repulsion = None  # those only begin far from known modes
        n_shared = self.n_dispersed if alone else None
        return TrustRegion(self.opaque, place, self.rng, n_checks, repulsion, n_shared)

    def _climb_on(self):
        """Continue at the highest maximum until it passes a check a dimension: noise hides rises.

        With three in all, six of ten of Lotka-Volterra's with noise of one nat were on a ridge 5 to
        25 nats below their maximum.
        """
        d, n = self.opaque.n_dimensions, len(self.evaluations)
        i = int(np.argmax([mode.log_density for mode, _ in self.found]))
        mode, n_searches = self.found.pop(i)
        region = TrustRegion(self.opaque, mode, self.rng, d)
        last = min(n + self._most_by_numbers, self.most)
        while not region.has_ended and len(self.evaluations) < last:
            self._step([region])
        self._note(region.mode, n_searches)

    def _climbs_alone(self, n_before):
        """Say whether the search after `n_before` uses its own evaluations only.

        In few dimensions under noise the second one does: all evaluations draw searches to the
        first mode. On "two moons", two narrow modes, six of eight seeds missed one otherwise, and
        none with this. Without noise rounds find the other mode, and this takes a quarter more
        evaluations.
        """
        if not self.may_hide_modes:
            return n_before == 1 and self.n_parallel == 1 and self.opaque.is_noisy
        return not self.opaque.is_noisy or n_before >= FEWEST_IN_NOISE

    def _are_enough(self, ends):
        if self._is_hidden:
            return has_stood(ends, MOST_IN_NOISE if self.may_have_missed else FEWEST_IN_NOISE)
        if len(ends) >= MOST_SEARCHES:
            return True
        if not self.may_hide_modes:
            return have_agreed(ends)
        alike = FEWEST_CLIMBS + N_STOOD
        return has_stood(ends, alike if self._are_alike(ends) else FEWEST_SEARCHES)

    def _are_alike(self, modes):
        values = [mode.log_density for mode in modes]
        return bool(np.ptp(values) < COMPRESSION_DEPTH * self.opaque.n_dimensions)

    @property
    def is_blurred(self):
        """Whether noise hides slopes where searches may miss modes."""
        return self.may_hide_modes and self.noise > HIDING_NOISE

    @property
    def may_have_missed(self):
        """Whether searches under noise all found about the same height; a higher mode may exist."""
        if not (self.found and self.is_blurred):
            return False
        return self._are_alike([mode for mode, _ in self.found])

    def _search(self, regions):
        """Run searches, a batch each step; return each one's mode and whether it stalled."""
        ends: list = [None] * len(regions)
        while True:
            # One that will not come as high as another one is hopeless before that has ended.
            highest = max(region.log_density for region in regions)
            for i, region in enumerate(regions):
                ends[i] = ends[i] or self._end(region, highest)
            going = [r for r, end in zip(regions, ends, strict=True) if end is None]
            if not going:
                return ends
            self._step(going)
            self.noise = going[-1].noise

    def _end(self, region, highest):
        """Return an ended search's mode and whether it stalled, or None; `highest` is of others."""
        left = int(SEARCHES_SHARE * self.most) - len(self.evaluations)
        left = min(left, self._most_by_numbers - region.n_evaluations)
        known = self._known(region)
        if known is None and left > 0:
            # By then it is in the basin of another mode, if there is one.
            if region.has_ended or region.n_evaluations >= len(region.x):
                region.release()
            if not region.has_ended:
                highest = max([highest, *(mode.log_density for mode, _ in self.found)])
                # Where a hopeless one is now is no maximum.
                return (region.mode, False) if region.is_hopeless(highest, left) else None
        mode = region.mode if known is None else known
        self._note(mode)
        return mode, region.has_stalled

    def _step(self, regions):
        before = self.evaluations
        n = min(max(self.n_parallel // len(regions), 1), 1 + self.opaque.n_dimensions)
        steps = [region.next(before, n) for region in regions]
        new = self.opaque.evaluate(np.vstack([step.X for step in steps]))
        self.evaluations = before.joined(new)
        row = len(before)
        for region, step in zip(regions, steps, strict=True):
            end = row + len(step.X)
            region.learn(step, before, self.evaluations.log_densities[row:end], row)
            row = end
        self.say(self.evaluations)

    def _known(self, region):
        """Return the known mode that a search has reached or is climbing to, or None."""
        if not self.found:
            return None
        ends, copy = [(region.x, region.log_density)], self.opaque.nearest_copy
        if (ascended := region.ascent(self.evaluations)) is not None:
            ends.append(ascended)
        for mode, _ in self.found:
            if any(explains(mode, *end, copy) for end in ends):
                return mode
        return None

    def _note(self, mode, n_searches=1):
        for i, (known, n) in enumerate(self.found):
            if is_same(mode, known, self.opaque.nearest_copy):
                better = max(known, mode, key=lambda m: m.log_density)
                self.found[i] = FoundMode(better, n + n_searches)
                return
        self.found.append(FoundMode(mode, n_searches))

    # The state

    @property
    def have_mass(self):
        """Whether each mode has mass, compared with the largest."""
        masses = np.array([mode.log_mass for mode, _ in self.found])
        return [bool(mass >= masses.max() - NEGLIGIBLE_MASS) for mass in masses]

    @property
    def modes(self):
        pairs = zip(self.found, self.have_mass, strict=True)
        return [found.mode for found, has_mass in pairs if has_mass]

    @property
    def learned_modes(self):
        pairs = zip(self.found, self.have_mass, strict=True)
        return [learned_mode(m, self.opaque, n, not has_mass) for (m, n), has_mass in pairs]

    def _at_modes(self):
        """Return the state at the modes with mass; of outputs some around each are evaluated."""
        d, rng, modes = self.opaque.n_dimensions, self.rng, self.modes
        draws, best = [], max(modes, key=lambda mode: mode.log_mass)
        for mode in modes:
            factor = np.linalg.cholesky(mode.covariance)
            if self.opaque.returns_outputs:
                around = FIRST_SPREAD * rng.standard_normal((d + 2, d)) @ factor.T
                self._evaluate(mode.x + around)
            draws.append(mode.x + rng.standard_normal((N_DRAWS // len(modes), d)) @ factor.T)
        draws = np.vstack(draws)
        covariance = best.covariance if len(modes) == 1 else shrunk(draws)
        return begin(self.evaluations, draws, covariance, DISPERSED, modes)

    def _at_best(self, temperature):
        X, values = self.evaluations.X, self.evaluations.log_densities
        best = X[np.argsort(-values, kind="stable")[: max(4, len(X) // 2)]]
        return begin(self.evaluations, best, shrunk(best), temperature)


def check_finite(evaluations):
    if not np.isfinite(evaluations.log_densities).any():
        raise RuntimeError(
            f"The log density is not finite at any of {len(evaluations)} starting places "
            f"(PyMC's jittered initial points, and draws of the prior): "
            f"{evaluations.X[:3].tolist()} and so on, on the unconstrained scale. Give "
            "the variables initval=..., or mend the model there."
        )


def are_near(evaluations, opaque):
    """Say whether half of the dispersed places are no deeper than posterior draws."""
    values = evaluations.log_densities
    if opaque.is_sum:
        terms = opaque.emulated(evaluations.outputs).sum(axis=1)
        values = np.where(np.isfinite(values), terms, -np.inf)
    depths = values.max() - values
    return np.median(depths) <= COMPRESSION_DEPTH * opaque.n_dimensions


def have_agreed(modes):
    """Say whether enough searches by numbers have ended, two of them at the best maximum."""
    values = np.array([mode.log_density for mode in modes])
    return len(modes) >= FEWEST_CLIMBS and np.sum(values > values.max() - SAME) > 1


def has_stood(modes, fewest):
    """Say whether at least `fewest` have ended, and none of the last few above the best maximum."""
    values = np.array([mode.log_density for mode in modes])
    first = int(np.argmax(values > values.max() - SAME))
    return len(modes) >= fewest and len(modes) - 1 - first >= N_STOOD
