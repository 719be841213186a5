"""A coarse version of a model's black boxes, learned first because its evaluations are free.

Its posterior is learned as any other (:mod:`pymc_kmc.learning.learning_run`). The fine version is
then evaluated at draws of that posterior, and an emulator of the coarse version is the base of its
emulator, which learns the difference only (:mod:`pymc_kmc.learning.emulator`). The difference
includes the errors of the emulated coarse version. If the fine posterior turns out to be elsewhere,
the coarse version is evaluated there too.
"""

from dataclasses import replace

import numpy as np

from pymc_kmc.learning.composite import DISPERSED, N_BURNED, N_DRAWS, draw, joined
from pymc_kmc.learning.convergence import begin
from pymc_kmc.learning.emulator import MOST_COMPARED
from pymc_kmc.learning.placing import uncertain
from pymc_kmc.learning.rounds import LARGEST_BATCH
from pymc_kmc.numerics.samples import shrunk, spread_out

# Number of rounds after which a coarse version is dropped if the error at draws is larger than the
# limit at uncertain places. That of a useful one is a tenth of the limit by then.
FEW_ROUNDS = 3


class Unusable(Exception):
    """The coarse version can't be used; the message says why."""


class Coarse:
    """The emulated coarse version, learned by `run`, the LearningRun of its OpaqueModel."""

    def __init__(self, run):
        self.run, self.opaque = run, run.opaque

    def learn(self, display):
        """Learn the coarse version's posterior, in place; raise Unusable if learning fails."""
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
        """Return the LearningState after fine evaluations, new ones by default; may be Unusable."""
        found, last = self.drawn, self.drawn.parts[-1]
        settings = found.factor, last.step_size, N_BURNED, rng, DISPERSED, found.maps
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
        """Say whether errors of the first rounds have stayed too large."""
        is_last, largest = len(rounds.history) == FEW_ROUNDS, rounds.limits.uncertain_error
        return rounds.is_hopeless or (is_last and rounds.history[-1].error > largest)

    def follow(self, draws, composite):
        """Evaluate the coarse version at uncertain draws (n, d) of the fine `composite`."""
        while len(self.evaluations) < MOST_COMPARED:  # fitting more takes seconds
            doubt = self.composite(draws).doubt
            if np.sqrt(np.mean(doubt)) <= self.run.rounds.limits.own:
                return
            emulators = self.composite.emulators
            X = uncertain(emulators, self.opaque.inputs, draws, doubt, draws[:0], LARGEST_BATCH)
            self.evaluations = self.evaluations.joined(self.opaque.evaluate(X))
            # What is deep for the fine posterior matters less, not what is for the coarse one.
            heights = composite(self.evaluations.X).mean
            heights = np.where(np.isfinite(self.evaluations.log_densities), heights, -np.inf)
            known = replace(self.evaluations, log_densities=heights)
            self.composite = self.run.rounds.fit(known, draws)
