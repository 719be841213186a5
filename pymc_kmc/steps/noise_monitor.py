"""The noise of a chain's likelihood, learned while tuning.

- The noise at the chain's place, for statistics and warnings: now and then the chain's state is
  evaluated twice, in place of two iterations, under noise that is renewed each time.
- The numbers of replicates, where a likelihood asks for their choice
  (:mod:`pymc_kmc.likelihoods.n_replicates`): after 25, 100 and 400 iterations.
"""

import numpy as np

from pymc_kmc.adaptation.noise_variance import NoiseVariance
from pymc_kmc.likelihoods.n_replicates import (
    ENOUGH_ACCEPTANCE,
    MANY_ZEROS,
    MOST_REPLICATES,
    TARGET_VARIANCE,
    remedy_of_zeros,
)
from pymc_kmc.moves.base import Move, MoveKind, Proposal

# Number of iterations of tuning from one pair of probes to the next.
PROBE_EVERY = 100
# Variance of the log estimate above which a chain sticks.
TOO_NOISY = 3.0
# Number of fresh estimates, two a pair, that a warning asks for.
ENOUGH_ESTIMATES = 16
# Iterations of tuning after which numbers of replicates are chosen.
REPLICATES_CHOSEN_AFTER = (25, 100, 400)


class NoiseProbe(Move):
    """An evaluation of the chain's state under renewed noise; never a draw."""

    kind = MoveKind.NOISE_PROBE
    is_draw = False

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self)


class NoiseMonitor:
    """Probes a chain's noise, and chooses numbers of replicates; all is updated in place.

    `variance` is that of the log estimate; `first` the first probe of a pair until the second is
    made.
    """

    def __init__(self):
        self.variance = NoiseVariance()
        self.first = None
        self._last_probe = 0
        self._has_chosen = False

    def is_due(self, n_iterations):
        """Return whether a tuning iteration is to be a probe, after so many iterations."""
        return self.first is not None or n_iterations - self._last_probe >= PROBE_EVERY

    def learn(self, kept, evaluation, n_iterations):
        """Learn from a probe's evaluation at the chain's state, whose own evaluation is `kept`."""
        self.variance.count(evaluation)
        if self.first is None:
            self.variance.compare(kept, evaluation)
            self.first, self._last_probe = evaluation, n_iterations
        else:
            self.variance.learn(self.first, evaluation)
            self.first = None

    def is_time_to_choose(self, n_iterations, is_tuning):
        """Return whether an iteration begins with the choice of numbers of replicates."""
        if is_tuning:
            return n_iterations in REPLICATES_CHOSEN_AFTER
        return not self._has_chosen  # tuning was shorter

    def choose(self, target, point, rng):
        """Let the target's likelihoods choose their numbers of replicates, and renew its noise.

        Returns a warning's text where the largest number is not enough, else None.
        """
        self._has_chosen = True
        self.variance.forget()
        self.first = None
        for name, n, variance in target.choose_n_replicates(point, rng):
            if n >= MOST_REPLICATES and variance > TOO_NOISY:
                return (
                    f"{n} replicates of {name!r} still have a log estimate of variance "
                    f"{variance:.2g}. Make the estimator itself better: averages of estimates "
                    "that are mostly far too small hardly ever are."
                )
        return None

    @property
    def complaint(self):
        """A warning's text where the noise is too large for a chain, else None."""
        noise = self.variance
        if noise.n_estimates < ENOUGH_ESTIMATES:
            return None
        if noise.zero_share > MANY_ZEROS:
            return (
                f"{100 * noise.zero_share:.0f} % of the likelihood's estimates were zero where the "
                f"chain was while tuning, and the chain will stick. "
                + remedy_of_zeros(noise.zero_share)
            )
        if not noise.value > TOO_NOISY or noise.ideal_acceptance > ENOUGH_ACCEPTANCE:
            return None
        return (
            f"The log of the likelihood's estimate had variance {noise.value:.2g} where the "
            "chain was while tuning: even perfect proposals would be accepted in "
            f"{100 * noise.ideal_acceptance:.0f} % of cases, and the chain will stick. Use "
            f"{np.ceil(noise.value / TARGET_VARIANCE):.0f} times as many simulations or "
            "particles, n_replicates='auto' (n_simulations='auto' with a simulator), or "
            "correlated noise (n_normals=, correlation=)."
        )
