r"""Steps that move on a surrogate, learned or given.

Beside moves on a surrogate f there are random walks, with a probability r(x) that depends on the
state x. Where :math:`w(x) = \log\hat\pi(x) - f(x)` is much larger than usual a chain would stay for
hundreds of iterations: r grows on a ramp there (:mod:`pymc_kmc.adaptation.fitted`). The acceptance
ratio of a random walk from x to x' has the factor r(x') / r(x), that of the other moves
(1 - r(x')) / (1 - r(x)) (:mod:`pymc_kmc.moves.base`). With an estimated density the target is the
extended one of Andrieu and Roberts (2009), and w and r are functions of its states.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.
"""

from abc import abstractmethod

import numpy as np

from pymc_kmc.adaptation.history import History
from pymc_kmc.moves.base import MoveMixture, OneOf
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.steps.base import AdaptiveStep
from pymc_kmc.surrogates.protocol import (
    NotFittedError,
    WarpedPredictor,
    WarpedSurrogate,
    check_surrogate,
)


class SurrogateAdaptation:
    """The adaptation of a step that moves on a surrogate; attributes are changed in place.

    `fits` makes surrogates of the `history` on a `schedule`; `fitted` is the one in use, None
    before the first. `transitions` chooses among the `moves` on it with learned probabilities.
    """

    def __init__(self, n_dimensions, fits, schedule, random_walk, moves):
        self.history = History(n_dimensions)
        self.fits, self.schedule, self.random_walk = fits, schedule, random_walk
        self.fitted = None
        self.transitions = OneOf(moves)

    def use(self, fitted):
        self.fitted = fitted
        jumps = [fitted.transitions.jump(move.size) for move in self.transitions.moves]
        self.transitions = self.transitions.renewed(jumps)


class SurrogateStep(AdaptiveStep):
    """Base of the steps that move on a surrogate; a given `surrogate` is used as it is."""

    stats_dtypes_shapes = AdaptiveStep.stats_dtypes_shapes | {
        "step_size": (np.float64, []),
        "n_steps": (np.int64, []),
        "kmc_n_fits": (np.int64, []),
        "kmc_prediction_error": (np.float64, []),
    }
    # Share of random walks where the target isn't unusually far above its surrogate.
    random_walk_probability: float

    def __init__(self, vars=None, *, surrogate=None, tune=True, **kwargs):
        if surrogate is None and not tune:
            raise ValueError(
                f"{type(self).__name__}(tune=False) has nothing to propose with: pass a fitted "
                "surrogate=, or let it tune."
            )
        self.given_surrogate = surrogate
        super().__init__(vars, tune=tune, **kwargs)

    def _make_target(self, model, initial_point, compile_kwargs):
        target = super()._make_target(model, initial_point, compile_kwargs)
        if self.given_surrogate is not None:
            check_surrogate(self.given_surrogate, target.n_dimensions)
        return target

    _wants_shape = True

    @property
    def _instead_of_tuning(self):
        if self.given_surrogate is not None:
            return None
        return f", or pass what was learned: kmc.{type(self).__name__}(surrogate=step.surrogate_)"

    @property
    def surrogate_(self):
        """Surrogate that the last chain of this process has learned, or that was given.

        It is a function of the unconstrained raveled values of `vars`; another step can use it,
        ``kmc.KMC(surrogate=step.surrogate_)``. Chains of other processes (``pm.sample(cores=2)``)
        leave nothing behind: sample with ``cores=1``.

        Raises
        ------
        NotFittedError
            If nothing has been learned yet.
        """
        if self.given_surrogate is not None:
            return self.given_surrogate
        fitted = self.adapted.fitted
        if fitted is None:
            raise NotFittedError(
                f"this {type(self).__name__} has no surrogate yet, or learned it in another "
                "process: pass it to pm.sample(step=step, cores=1) first, with enough tuning."
            )
        surrogate, coordinates = fitted.surrogate, self._coordinates(fitted)
        if coordinates is IDENTITY:
            return surrogate
        knows_std = hasattr(surrogate, "predict")
        return (WarpedPredictor if knows_std else WarpedSurrogate)(surrogate, coordinates)

    def _coordinates(self, fitted):
        return fitted.warp

    @property
    def history_(self):
        """Points (n, d) and finite log densities (n,) that this process's last chain learned from.

        The points are in the coordinates of :attr:`surrogate_`.
        """
        evaluations = self.adapted.history.evaluations
        rows = evaluations.last(len(evaluations)).copy()
        return rows[:, :-1], rows[:, -1]

    def _propose(self, current):
        adapted = self.adapted
        if adapted.fitted is None and self.given_surrogate is not None:
            adapted.use(adapted.fits.begin(current.position, current.log_density, self.rng))
        if adapted.fitted is None:
            return adapted.random_walk.propose(current, None, self.rng)
        return MoveMixture(*self._moves()).propose(current, adapted.fitted, self.rng)

    @abstractmethod
    def _moves(self):
        """Return the moves with a surrogate, in the order in which they are tried: Rows."""

    def _random_walk_probability(self, state):
        return self.adapted.fitted.random_walk_share(self.random_walk_probability, state)

    def _observe(self, evaluation):
        self.adapted.history.append_evaluation(evaluation)

    def _complaint(self):
        return self.adapted.fits.failure and self.adapted.fits.complaint

    def _statistics(self, proposal, current):
        return {
            "step_size": proposal.step_size,
            "n_steps": proposal.n_steps,
            "kmc_n_fits": self.adapted.fits.n_fits,
        }

    def _assessment(self, evaluation):
        fitted = self.adapted.fitted
        if fitted is None or evaluation is None or not np.isfinite(evaluation.log_density):
            return {"kmc_prediction_error": np.nan}
        place, value = fitted.in_coordinates(evaluation.position, evaluation.log_density)
        return {"kmc_prediction_error": float(fitted.log_weights(place, value))}
