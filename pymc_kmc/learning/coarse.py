"""A coarse version of a model's black boxes: learned first, because it may be evaluated freely.

Its posterior is learned as any other is (:mod:`pymc_kmc.learning.learn`), from searches over the
whole prior. The fine version is then evaluated where that posterior is, and only the difference is
left to be learned: an emulator's base is that of the coarse version
(:mod:`pymc_kmc.learning.emulator`). The emulated coarse version, not the coarse version itself, is
what evaluations are compared with: what it has wrong is a part of the difference. Where the fine
posterior turns out to be elsewhere, the coarse version is evaluated there too.
"""

import logging
from dataclasses import replace

import numpy as np

from pymc_kmc.learning.composite import N_BURNED, draw, joined
from pymc_kmc.learning.convergence import begin
from pymc_kmc.learning.placing import uncertain
from pymc_kmc.numerics.samples import shrunk, spread_out

# PyMC's logger has a handler, and its level.
log = logging.getLogger("pymc.pymc_kmc")

# Temperature of the coarse version's posterior at which the fine one is evaluated first.
FIRST_SPREAD = 2.0
# Draws that rounds begin with.
N_DRAWS = 256
# Number of rounds after which a coarse version is given up if the error at draws is larger than one
# at uncertain places may be: with a useful one it is a tenth of that by then, with one of another
# posterior it grows.
PATIENCE = 3
# Coarse evaluations added at once and in all: with more of them a process takes its own seconds.
N_MORE, MOST = 32, 400


class Unusable(Exception):
    """The coarse version is of no use; the message says why."""


class Coarse:
    """What is learned of the coarse version, by the `run` of its OpaqueModel."""

    def __init__(self, run):
        self.run, self.opaque = run, run.opaque

    def learn(self, display):
        """Learn the coarse version's posterior; Unusable where that doesn't succeed."""
        state = self.run.learn(display)
        if not state.has_converged:
            n = len(state.evaluations)
            raise Unusable(f"its own error is {state.error:.2g} nats after {n} evaluations")
        found = self.run.multistart.found
        if found and not self.opaque.returns_outputs:
            if max(found, key=lambda each: each.mode.log_density).n_searches < 2:
                raise Unusable("searches disagree about its best maximum")
        self.evaluations = state.evaluations
        self.composite, self.drawn = self.run.drawn(state)

    def begin(self, opaque, rounds, rng, evaluations=None):
        """Return the LearningState after first fine evaluations; Unusable if it explains nothing.

        They are the earlier `evaluations` if there are any. From now on `rounds` learn the
        difference.
        """
        found, last = self.drawn, self.drawn.parts[-1]
        settings = found.factor, last.step_size, N_BURNED, rng, FIRST_SPREAD, found.maps
        if evaluations is None:
            wide = draw(self.composite, last.X, *settings).X
            evaluations = opaque.evaluate(spread_out(wide, opaque.n_dimensions + 2, rng))
        draws = joined(found.parts).X
        draws = draws[rng.choice(len(draws), N_DRAWS, replace=False)]
        rounds.coarse = self
        composite = rounds.fit(evaluations, draws)
        if not all(emulator.is_corrected for emulator in composite.emulators):
            raise Unusable("it says little of the first fine values")
        modes = found.modes if len(found.modes) > 1 else ()
        return begin(evaluations, draws, shrunk(draws), 1.0, modes)

    def misleads(self, rounds):
        """Say whether the first rounds haven't come to be right."""
        is_last, largest = len(rounds.history) == PATIENCE, rounds.limits.uncertain_error
        return rounds.is_hopeless or (is_last and rounds.history[-1].error > largest)

    def follow(self, draws, composite):
        """Evaluate the coarse version at draws (n, d) of the fine `composite` where it's unsure."""
        while len(self.evaluations) < MOST:
            doubt = self.composite(draws).doubt
            if np.sqrt(np.mean(doubt)) <= self.run.rounds.limits.own:
                return
            emulators = self.composite.emulators
            X = uncertain(emulators, self.opaque.inputs, draws, doubt, draws[:0], N_MORE)
            self.evaluations = self.evaluations.joined(self.opaque.evaluate(X))
            # What is deep for the fine posterior matters less, not what is for the coarse one.
            heights = composite(self.evaluations.X).mean
            heights = np.where(np.isfinite(self.evaluations.log_densities), heights, -np.inf)
            known = replace(self.evaluations, log_densities=heights)
            self.composite = self.run.rounds.fit(known, draws)
