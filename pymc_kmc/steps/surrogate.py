r"""What every step that moves on a surrogate does, whatever the surrogate and the moves.

Beside moves on a surrogate f there are always random walks, with a probability r that may depend
on the state x: where the target is far above the surrogate, :math:`w(x) = \log\hat\pi(x) - f(x)`
much larger than usual, it grows on a ramp (:mod:`pymc_kmc.adaptation.log_weights`), because a
chain that got there would sit for hundreds of iterations. A random walk from x to x' then has the
additional factor r(x') / r(x) in its acceptance ratio, and the other moves
(1 - r(x')) / (1 - r(x)): with it each kind of move satisfies detailed balance by itself (Green,
1995, section 4.1, moves attempted with probabilities that depend on the state). With an estimated
density the target is the extended one of Andrieu and Roberts (2009), whose states w and r are
functions of.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.

Green, P. J. (1995). Reversible jump Markov chain Monte Carlo computation and Bayesian model
determination. *Biometrika* 82, 711-732.
"""

from abc import abstractmethod

import numpy as np

from pymc_kmc.adaptation.history import Record
from pymc_kmc.adaptation.random_walk import RandomWalk
from pymc_kmc.numerics.threads import single_threaded_blas
from pymc_kmc.steps.base import AdaptiveStep
from pymc_kmc.surrogates.protocol import check_fitted

__all__ = ["RANDOM_WALK", "LearnedWithSurrogate", "SurrogateStep"]

# The random walk's number among the kinds of move.
RANDOM_WALK = 0
# Its probability where the log weight is very large.
MOST_RANDOM_WALKS = 0.7


class LearnedWithSurrogate:
    """What every such step learns from a chain.

    Attributes
    ----------
    record : Record
    random_walk : RandomWalk
    adaptation : RepeatedFit
    schedule : GeometricSchedule
        Of fits.
    log_weights : LogWeights or None
        None until there is a surrogate.
    """

    def __init__(self, n_dimensions, adaptation, schedule, is_noisy):
        self.record = Record(n_dimensions)
        self.random_walk = RandomWalk(n_dimensions, is_noisy=is_noisy)
        self.adaptation = adaptation
        self.schedule = schedule
        self.log_weights = None

    @property
    def warp(self):
        """The coordinates that everything learned is in."""
        return self.adaptation.warp


class SurrogateStep(AdaptiveStep):
    """Base of the steps that move on a surrogate; see the module's docstring.

    A subclass has two more hooks, `_renew_moves` and `_smallest_random_walk_probability`, and
    calls `_remember` from its `_learn`.

    Parameters
    ----------
    vars : list of TensorVariable, optional
    surrogate : Surrogate, optional
        A fitted one to use as it is; nothing is fitted then.
    tune : bool
    **kwargs
        See :class:`~pymc_kmc.steps.base.AdaptiveStep`.
    """

    def __init__(self, vars=None, *, surrogate=None, tune=True, **kwargs):
        if surrogate is not None:
            check_fitted(surrogate)
        elif not tune:
            raise ValueError(
                f"{type(self).__name__}(tune=False) has nothing to propose with: pass a fitted "
                "surrogate=, or let it tune."
            )
        self.given_surrogate = surrogate
        super().__init__(vars, tune=tune, **kwargs)
        if surrogate is not None and surrogate.n_features_in_ != self.n_dimensions:
            raise ValueError(
                f"surrogate was fitted to points with {surrogate.n_features_in_} coordinates; the "
                f"step's variables have {self.n_dimensions} unconstrained values."
            )

    @abstractmethod
    def _renew_moves(self, states, log_densities):
        """Learn what moves on the current surrogate should be like, its log weights included.

        Parameters
        ----------
        states : ndarray, shape (n, d)
            Of the chain, in the surrogate's coordinates.
        log_densities : ndarray, shape (n,)
            Of the target at the states, in these coordinates.
        """

    @property
    @abstractmethod
    def _smallest_random_walk_probability(self):
        """The random walk's probability where the log weight is usual; 0: there are none."""

    def _use_given_surrogate(self, position):
        """In the first iteration with a given surrogate, learn from its start."""
        if self.learned.log_weights is None and self.given_surrogate is not None:
            with single_threaded_blas():
                self._renew_moves(position[None, :], np.array([self.target.recycled.log_density]))

    def _in_learned_coordinates(self, positions, log_densities):
        """Positions, (d,) or (n, d), and log densities in the surrogate's coordinates."""
        warp = self.learned.warp
        return warp.forward(positions), log_densities + warp.log_volume(positions)

    def _random_walk_probability(self, position, log_density):
        """The random walk's probability at a state."""
        smallest = self._smallest_random_walk_probability
        if not 0 < smallest < MOST_RANDOM_WALKS:
            return smallest
        place = self._in_learned_coordinates(position, log_density)
        excess = self.learned.log_weights.excess(*place)
        return smallest + (MOST_RANDOM_WALKS - smallest) * excess

    def _log_correction(self, proposal, current, evaluation):
        if self.learned.log_weights is None or not proposal.is_draw:
            return 0.0
        start = self._random_walk_probability(current.position, current.log_density)
        end = self._random_walk_probability(evaluation.position, evaluation.log_density)
        if proposal.statistics["kmc_move"] == RANDOM_WALK:
            return float(np.log(end / start))
        return float(np.log((1.0 - end) / (1.0 - start)))

    def _remember(self, evaluation, position):
        """Add an iteration to the record."""
        learned = self.learned
        learned.record.append(position, self.target.recycled.log_density)
        if evaluation is not None:
            self._observe(evaluation)
        learned.random_walk.learn_covariance(learned.record.states, learned.warp)

    def _observe(self, evaluation):
        self.learned.record.append_evaluation(evaluation.position, evaluation.log_density)

    def _fit(self):
        """Fit the surrogate anew, and learn what moves on it should be like.

        Returns
        -------
        bool
            Whether there are new moves.
        """
        learned = self.learned
        with single_threaded_blas():
            if self.given_surrogate is None and not learned.adaptation.fit(
                learned.record, self.rng
            ):
                return False
            self._renew_moves(*self._recent_states())
        return True

    def _recent_states(self):
        """The chain's states that are learned from, and log densities, in learned coordinates."""
        record = self.learned.record
        n = self.learned.adaptation.n_recent(record)
        return self._in_learned_coordinates(
            record.states.last(n), record.log_densities.last(n)[:, 0]
        )

    def _warn_of_learning(self):
        failure = self.learned.adaptation.failure
        if failure is None:
            return None
        return self._warn_once(
            "fit",
            f"A surrogate could not be fitted and the one before it stays in use: {failure} "
            "Tune for longer, or start nearer the posterior's mass: initvals={...}.",
        )
