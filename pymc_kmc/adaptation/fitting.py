"""A surrogate that is fitted again and again along a chain."""

from abc import ABC, abstractmethod

import numpy as np

from pymc_kmc.numerics.coordinates import IDENTITY

__all__ = ["RepeatedFit"]


class RepeatedFit(ABC):
    """Fits a surrogate to a chain's record, and keeps the last one that could be fitted.

    Attributes
    ----------
    surrogate : Surrogate or None
        None until the first fit.
    n_fits : int
    warp : ScaleWarp or Identity
        The surrogate's coordinates.
    failure : str or None
        Why the last fit was given up, if it was; the surrogate before it stays in use.
    """

    # Share of the chain's states that is learned from: the rest is burn-in.
    RECENT = 2 / 3

    def __init__(self):
        self.surrogate = None
        self.n_fits = 0
        self.failure = None
        self.warp = IDENTITY

    @abstractmethod
    def _fit(self, record, rng):
        """Return a new surrogate, or None where the record says too little for one."""

    def n_recent(self, record):
        """Return the number of states, the last ones, that are learned from."""
        return int(np.ceil(self.RECENT * len(record)))

    def fit(self, record, rng):
        """Fit anew.

        Parameters
        ----------
        record : Record
            Of the chain.
        rng : numpy.random.Generator

        Returns
        -------
        bool
            Whether there is a new surrogate.
        """
        self.failure = None
        try:
            surrogate = self._fit(record, rng)
        except (ValueError, np.linalg.LinAlgError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            return False
        if surrogate is None:
            return False
        self.surrogate = surrogate
        self.n_fits += 1
        return True
