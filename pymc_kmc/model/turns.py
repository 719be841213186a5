"""Whose noise is in a model: one chain's at a time, and no other's unnoticed.

The noise of an estimated likelihood lives in a shared variable of the model, because the other
steps of a chain read it there. Two samplings of one model in one process, in turn or in threads,
would write into the same variable. A step therefore keeps the noise of its chain, and takes what
it finds in the model only from the steps of its own chain. How these are known:

- PyMC begins a chain with all of its steps, before the first iteration of any of them. Steps that
  begin so are of one session.
- The point that a step is given has the values that the step before it has returned. A step that
  has all variables of the model and is given its own last point while another has moved since is
  of another chain.
"""

from typing import Any
from uuid import uuid4

import numpy as np


class Turns:
    """What the steps on one model tell each other; updated in place.

    Attributes
    ----------
    session : str
        Of the step that has begun a chain, or made an iteration, last.
    has_moved : bool
        Whether a step of that session has made an iteration.
    last : str
        Token of the step that was last.
    values : dict of str to ndarray
        What it returned of its variables.
    """

    def __init__(self):
        self.session, self.has_moved = "", True
        self.last, self.values = "", {}

    @classmethod
    def of(cls, shared):
        """Return those of a shared variable, the same for all steps that read it."""
        if not hasattr(shared.tag, "kmc_turns"):
            shared.tag.kmc_turns = cls()
        return shared.tag.kmc_turns


class Turn:
    """One step's part in it.

    Parameters
    ----------
    turns : Turns
    names : tuple of str
        Value variables of the step.
    has_all : bool
        Whether these are all of the model.
    """

    def __init__(self, turns, names, has_all):
        self.turns = turns
        self.names = names
        self.has_all = has_all
        self.token = uuid4().hex
        self.session = ""
        self.returned: dict[str, Any] = {}

    def begin(self):
        """Begin a chain: join the session of the steps that have just begun theirs."""
        turns = self.turns
        if turns.has_moved:
            turns.session, turns.has_moved = uuid4().hex, False
        self.session = turns.session
        self.returned = {}
        turns.last, turns.values = self.token, {}

    def was_taken(self, point):
        """Say whether a step of another chain has had its turn since this step's last one.

        Parameters
        ----------
        point : dict of str to ndarray
            What this step is given.

        Returns
        -------
        bool
        """
        turns = self.turns
        if turns.last == self.token:
            return False
        if turns.session != self.session:
            return True
        if not self.has_all:
            return False
        if not self.returned:
            return True  # a chain begins with its own noise
        return same(self.returned, point) and not same(turns.values, point)

    def is_own(self):
        """Say whether this step was the last one."""
        return self.turns.last == self.token

    def take(self):
        """Take over: what is in the model from now on is of this step's chain."""
        turns = self.turns
        turns.session, turns.has_moved = self.session, True
        turns.last, turns.values = self.token, self.returned

    def hand_over(self, point):
        """Tell the others what this step returns."""
        self.returned = {name: point[name] for name in self.names}
        self.take()


def same(values, point):
    """Say whether a point has these values."""
    return all(
        value is point[name] or np.array_equal(value, point[name]) for name, value in values.items()
    )
