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


class NoiseOwner:
    """Whose the noise in a model is, as its steps tell each other; updated in place.

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
        """Return that of a shared variable, the same for all steps that read it."""
        if not hasattr(shared.tag, "kmc_noise_owner"):
            shared.tag.kmc_noise_owner = cls()
        return shared.tag.kmc_noise_owner


class NoiseClaim:
    """One step's claim to the noise in a model.

    Parameters
    ----------
    owner : NoiseOwner
    names : tuple of str
        Value variables of the step.
    has_all : bool
        Whether these are all of the model.
    """

    def __init__(self, owner, names, has_all):
        self.owner = owner
        self.names = names
        self.has_all = has_all
        self.token = uuid4().hex
        self.session = ""
        self.returned: dict[str, Any] = {}

    def begin(self):
        """Begin a chain: join the session of the steps that have just begun theirs."""
        owner = self.owner
        if owner.has_moved:
            owner.session, owner.has_moved = uuid4().hex, False
        self.session = owner.session
        self.returned = {}
        owner.last, owner.values = self.token, {}

    def was_taken(self, point):
        """Say whether a step of another chain has taken the noise since this step's last iteration.

        Parameters
        ----------
        point : dict of str to ndarray
            What this step is given.

        Returns
        -------
        bool
        """
        owner = self.owner
        if owner.last == self.token:
            return False
        if owner.session != self.session:
            return True
        if not self.has_all:
            return False
        if not self.returned:
            return True  # a chain begins with its own noise
        return same(self.returned, point) and not same(owner.values, point)

    def is_own(self):
        """Say whether this step was the last one."""
        return self.owner.last == self.token

    def take(self):
        """Claim the noise in the model for this step's chain."""
        owner = self.owner
        owner.session, owner.has_moved = self.session, True
        owner.last, owner.values = self.token, self.returned

    def hand_over(self, point):
        """Tell the others what this step returns."""
        self.returned = {name: point[name] for name in self.names}
        self.take()


def same(values, point):
    """Say whether a point has these values."""
    return all(
        value is point[name] or np.array_equal(value, point[name]) for name, value in values.items()
    )
