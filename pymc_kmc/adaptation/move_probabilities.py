"""The probabilities of several moves, learned from how far they take the chain.

A mixture of moves that leave the target invariant leaves it invariant whatever its fixed
probabilities are. While tuning, the probabilities follow a power of each move's expected squared
jump an evaluation: jump times acceptance probability (Pasarica and Gelman, 2010). A move twice as
good is chosen many times as often. Each move keeps a smallest probability, so that a move that
becomes good is noticed.

References
----------
Pasarica, C. and Gelman, A. (2010). Adaptively scaling the Metropolis algorithm using expected
squared jumped distance. *Statistica Sinica* 20, 343-364.
"""

import numpy as np

# Weight, after a refit, of what was seen before it: the moves have changed.
REFIT_MEMORY = 0.3


class ByAcceptance:
    """The `probabilities` (n_moves,) of moves: by acceptance on the target and surrogate's jumps.

    Squared jumps on the target are more informative, but vary so much under noise that the choice
    would be random. `recent` lists the acceptance probabilities since the last fit was begun.
    """

    # Power of the expected jump: moves differ by little where the surrogate is exact.
    POWER = 12.0
    # Smallest probability of a move.
    SMALLEST = 0.005
    # Beyond this squared jump more of it makes draws no more independent.
    INDEPENDENT_JUMP = 0.97
    # Squared jumps below this are all the same.
    LEAST = 1e-3

    def __init__(self, n_moves):
        self.counts = np.zeros(n_moves)
        self.acceptances = np.zeros(n_moves)
        self.jumps = np.ones(n_moves)
        self.recent = []
        self._update()

    def _update(self):
        rates = (self.acceptances + 0.5) / (self.counts + 1.0)
        shares = (rates * np.clip(self.jumps, self.LEAST, self.INDEPENDENT_JUMP)) ** self.POWER
        free = 1.0 - self.SMALLEST * len(shares)
        self.probabilities = self.SMALLEST + free * shares / shares.sum()

    def choose(self, rng):
        """Draw a move's index."""
        cumulative = np.cumsum(self.probabilities)
        drawn = np.searchsorted(cumulative[:-1], rng.uniform() * cumulative[-1], side="right")
        return int(drawn)

    def learn(self, move, acceptance_rate):
        """Learn, in place, from a proposal's acceptance probability."""
        self.counts[move] += 1.0
        self.acceptances[move] += acceptance_rate
        self.recent.append(acceptance_rate)
        self._update()

    def renewed(self, jumps):
        """Return the probabilities on a new surrogate, given its squared jumps.

        A jump is 1 under independence.
        """
        renewed = ByAcceptance(len(self.counts))
        renewed.jumps = np.asarray(jumps)
        renewed.counts = REFIT_MEMORY * self.counts
        renewed.acceptances = REFIT_MEMORY * self.acceptances
        renewed._update()
        return renewed
