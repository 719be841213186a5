r"""Where the target is above its surrogate, and a random walk worth more.

Proposals of a surrogate f are made as often as f says, and accepted by the log weight
:math:`w(x) = \log\pi(x) - f(x)`. Where f is far too low, :math:`w(x)` much larger than usual,
hardly any is accepted (an independence sampler's expected stay is :math:`e^{w}`): the chain comes
rarely, and sits for long. There random walks lead out, whose acceptance knows nothing of f.
"""

import numpy as np

__all__ = ["LogWeights"]


class LogWeights:
    """The log weights of a chain's states, as a scale to measure others on.

    Parameters
    ----------
    hamiltonian : SurrogateHamiltonian
    states : ndarray, shape (n, d)
        Of the chain.
    log_densities : ndarray, shape (n,)
        Of the target at the states.

    Attributes
    ----------
    median : float
    spread : float
        Standard deviation of those below the median: noise, or what the surrogate can't say. A
        chain that sits where the surrogate is too low has most of its states above.
    """

    # States that are looked at.
    MOST = 200
    # A log weight is large so much, and so many spreads, above the median; very large, so much
    # more.
    ONSET, SPREADS, RAMP = 1.0, 2.0, 3.0
    BELOW_ONE_SD = 0.1587

    def __init__(self, hamiltonian, states, log_densities):
        self._hamiltonian = hamiltonian
        thinned = slice(None, None, max(1, len(states) // self.MOST))
        pairs = zip(states[thinned], log_densities[thinned], strict=True)
        weights = np.array([value - hamiltonian.log_density(x) for x, value in pairs])
        weights = weights[np.isfinite(weights)]
        self.median = self.spread = 0.0
        if len(weights):
            low, self.median = np.quantile(weights, [self.BELOW_ONE_SD, 0.5])
            self.spread = self.median - low

    def __call__(self, position, log_density):
        """Return a state's log weight above the median.

        Parameters
        ----------
        position : ndarray, shape (d,)
        log_density : float
            Of the target there.

        Returns
        -------
        float
        """
        return log_density - self._hamiltonian.log_density(position) - self.median

    def excess(self, position, log_density):
        """Return where a state is between a usual log weight, 0, and a very large one, 1."""
        onset = self.ONSET + self.SPREADS * self.spread
        excess = (self(position, log_density) - onset) / self.RAMP
        # In the first steps from a bad start a log weight may be -inf or NaN.
        return min(1.0, max(0.0, excess)) if excess == excess else 0.0

    def shift(self, change):
        """Go on with a surrogate whose constant has changed by so much."""
        self.median -= change
