"""Moves by themselves, without a step."""

import numpy as np

from pymc_kmc.moves.base import Evaluation, Move, MoveKind, Outcome, Proposal


def evaluation(position, log_density=0.0, gradient=None):
    """Return a target's evaluation without noise."""
    return Evaluation(float(log_density), 0.0, position, (), gradient=gradient)


def outcome_of(proposal, start, density=None, acceptance_rate=0.0, is_accepted=False):
    """Return what became of a proposal from an evaluation, on a log density."""
    end = None if density is None else evaluation(proposal.position, density(proposal.position))
    return Outcome(proposal, end, acceptance_rate, start, end if is_accepted else start)


class Stays(Move):
    """Proposes the chain's state."""

    kind = MoveKind.RANDOM_WALK

    def propose(self, current, fitted, rng):
        return Proposal(current.position, self)


class HasNothing(Stays):
    """Has never anything to propose."""

    def propose(self, current, fitted, rng):
        return None


def iterate(propose, density, starts, rng):
    """Return where one Metropolis-Hastings iteration takes each state, shape (n, d).

    Parameters
    ----------
    propose : callable
        Of an :class:`Evaluation`, returns a proposal.
    density : object
        With `log_density` and `gradient`.
    starts : ndarray, shape (n, d)
    rng : numpy.random.Generator
    """
    ends = starts.copy()
    states = zip(starts, density.log_density(starts), density.gradient(starts), strict=True)
    for i, state in enumerate(states):
        current = evaluation(*state)
        proposal = propose(current)
        if proposal.log_ratio == -np.inf:
            continue
        end = proposal.evaluation
        if end is None:
            end = evaluation(proposal.position, density.log_density(proposal.position))
        log_ratio = end.log_density - current.log_density + proposal.log_ratio
        log_ratio += proposal.log_choice_ratio(end)
        if rng.uniform() < np.exp(min(0.0, log_ratio)):
            ends[i] = end.position
    return ends
