"""What was learned of a posterior before any chain: a value that steps start from."""

from dataclasses import dataclass, field

import arviz as az
import numpy as np
import xarray as xr

from pymc_kmc.adaptation.fit_to_values import FitToValues
from pymc_kmc.adaptation.fitted import FittedSurrogate
from pymc_kmc.adaptation.history import Record
from pymc_kmc.learning.rounds import Evaluations
from pymc_kmc.notebook import figures, paragraph, result
from pymc_kmc.numerics.checks import check_count

# Fewest evaluations at posterior draws from which log weights are measured.
FEWEST_FOR_WEIGHTS = 12


@dataclass(frozen=True)
class LearnedPosterior:
    """A posterior as :func:`learn` has learned it: approximate until a chain corrects it.

    Pass it to a step, ``pm.sample(step=kmc.KMC(learned))``: the chains begin at its draws, move on
    its surrogate and are exact.

    Attributes
    ----------
    names : tuple of str
        Names of the value variables, in the order of the unconstrained vector.
    opaque : tuple of str
        What was emulated, and how many outputs it has.
    evaluations : Evaluations
        `X` (n, d), unconstrained; `inputs` and `outputs` of the opaque nodes; `log_densities` (n,).
        Another call of :func:`learn` can start from them.
    n_evaluations : int
        Number of evaluations of the model that were paid for in this call.
    error : float
        Standard deviation of the log density's error at draws that had not been evaluated, in nats.
    has_converged : bool
        Whether the error became small before `max_evaluations`.
    positions : ndarray, shape (n', d)
        Draws of the learned posterior on the unconstrained scale.
    fitted : FittedSurrogate
        The surrogate of the log density that chains move on.
    """

    names: tuple
    opaque: tuple
    evaluations: Evaluations
    n_evaluations: int
    error: float
    has_converged: bool
    positions: np.ndarray
    wide_positions: np.ndarray
    fitted: FittedSurrogate
    log_densities: np.ndarray
    variables: dict = field(repr=False)

    @property
    def n_dimensions(self):
        """Number of unconstrained values."""
        return self.positions.shape[1]

    def draws(self, n=1000, *, random_seed=None):
        """Return draws of what was learned; approximate.

        Parameters
        ----------
        n : int
            Number of draws. More than there are positions are drawn with replacement.
        random_seed : int, optional

        Returns
        -------
        xarray.Dataset
            The model's free variables on their natural scale, with dimensions chain and draw;
            functions of ArviZ take it.
        """
        check_count(n, "n")
        rng = np.random.default_rng(random_seed)
        n_positions = len(self.positions)
        chosen = rng.choice(n_positions, n, replace=n > n_positions)
        data = {}
        for name, values in self.variables.items():
            dims = [f"{name}_dim_{i}" for i in range(values.ndim - 1)]
            data[name] = (["chain", "draw", *dims], values[chosen][None])
        coords = {"chain": [0], "draw": np.arange(n)}
        return xr.Dataset(data, coords, {"approximate": "draws of a learned surrogate"})

    def summary(self, **kwargs):
        """Return `arviz.summary` of the learned posterior's moments and quantiles; approximate.

        Parameters
        ----------
        **kwargs
            Passed to `arviz.summary`.

        Returns
        -------
        pandas.DataFrame
        """
        draws = self.draws(len(self.positions), random_seed=0)
        return az.summary(draws, **{"kind": "stats"} | kwargs)

    @property
    def _sentences(self):
        what = ", ".join(self.opaque)
        quality = (
            f"The log density is known to {self.error:.2g} nats at new draws."
            if self.has_converged
            else f"The log density is known to {self.error:.2g} nats only at new draws: raise "
            "max_evaluations; a chain that starts from it goes on learning."
        )
        return [
            f"Emulated: {what}.",
            quality,
            f"Cost: {self.n_evaluations} evaluations of the model in all.",
            "Draws are approximate; pm.sample(step=kmc.KMC(learned)) makes exact ones.",
        ]

    def __repr__(self):
        title = f"LearnedPosterior of {self.n_dimensions} unconstrained values"
        return "\n".join([title, *(f"  {line}" for line in self._sentences)])

    def _repr_html_(self):
        shown = [
            (f"{self.n_evaluations}", "evaluations", True),
            (f"{self.error:.2g}", "nats of error at new draws", self.has_converged),
        ]
        lines = [paragraph(line) for line in self._sentences]
        title = f"Learned posterior of {self.n_dimensions} unconstrained values"
        return result(paragraph(title, is_title=True), figures(shown), *lines)


def distilled(draws, values, wide, wide_values, n_landmarks, rng) -> FittedSurrogate | None:
    """Return a surrogate for fast moves, fitted to a composite's values at its own draws.

    The composite costs no evaluation, but a hundred times the time of
    :class:`~pymc_kmc.surrogates.LogDensityGP` in compiled code.

    Parameters
    ----------
    draws, wide : ndarray, shape (n, d) and (n', d)
        At temperature 1 and above.
    values, wide_values : ndarray, shape (n,) and (n',)
        The composite's log densities there.
    n_landmarks : int
    rng : numpy.random.Generator

    Returns
    -------
    FittedSurrogate or None
    """
    record = Record(draws.shape[1])
    for place, value in zip(draws, values, strict=True):
        record.states.append(place)
        record.log_densities.append(value)
    points = np.vstack([wide, draws])
    for row in np.column_stack([points, np.concatenate([wide_values, values])]):
        if np.isfinite(row[-1]):
            record.evaluations.append(row)
    fits = FitToValues(n_landmarks)
    fitted = None
    # The second knows which coordinates and how many kernel functions the first would have liked.
    for _ in range(2):
        fitted = fits.fit(record, fitted, rng) or fitted
    return fitted


def weighed(fitted, evaluations, n_last):
    """Return a fitted surrogate with the log weights of the last evaluations, if these suffice."""
    X, _, _, values = evaluations
    X, values = X[-n_last:], values[-n_last:]
    finite = np.isfinite(values)
    if finite.sum() < FEWEST_FOR_WEIGHTS:
        return fitted
    return fitted.weighed(X[finite], values[finite])
