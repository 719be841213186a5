"""A learned posterior: a value that steps start from."""

from dataclasses import dataclass, field

import numpy as np
import xarray as xr
from scipy.special import softmax

from pymc_kmc.learning import averages, storage
from pymc_kmc.learning.averages import Averages, Emulated, LogEvidence
from pymc_kmc.learning.composite import DISPERSED, N_EACH
from pymc_kmc.learning.convergence import lowest_of_mass
from pymc_kmc.learning.emulator import ProcessState
from pymc_kmc.learning.modes import sentences
from pymc_kmc.learning.noise_variance import NoiseVariance
from pymc_kmc.model.evaluations import Evaluations
from pymc_kmc.model.opaque import Structure
from pymc_kmc.notebook import figures, paragraph, result
from pymc_kmc.numerics.checks import check_count, check_rng
from pymc_kmc.numerics.coordinates import ModeMaps


@dataclass(frozen=True)
class LearnedPosterior:
    """A posterior as :func:`learn` has learned it: approximate until a chain corrects it.

    Pass it to a step, ``pm.sample(step=kmc.KMC(learned))``: the chains begin at its draws, move on
    its emulators and are exact.

    Attributes
    ----------
    opaque : tuple of str
        Names of the emulated nodes, with their numbers of outputs.
    evaluations : Evaluations
        All evaluations: places, outputs of the opaque nodes, log densities, seconds. Another call
        of :func:`learn` can start from them.
    n_evaluations : int
        Number of evaluations of the model by this call, trials left out.
    error : float
        Standard deviation of the log density's error at draws that had not been evaluated, in nats.
    has_converged : bool
        Whether the error became small before `max_evaluations`.
    is_close : bool
        Whether the error is small enough for chains, at most twice that at convergence; otherwise
        they go on learning.
    rounds : tuple of Round
        The record of each round.
    modes : tuple of LearnedMode
        Maxima that searches, or draws of the emulators, have found. Empty if no search was needed.
    positions : ndarray, shape (n', d)
        Draws of the learned posterior on the unconstrained scale.
    wide_positions : ndarray, shape (n'', d)
        Draws at a temperature of 2, at which chains begin.
    log_densities, variances : ndarray, shape (n',)
        Emulated log density at `positions`, and its variance.
    gradients : ndarray, shape (n', d)
        Of the emulated log density at `positions`.
    jumps : bool
        Whether the emulated log density jumps between these: there are no control variates then.
    periods : ndarray, shape (d,)
        Period of each unconstrained value, infinite unless it is an angle.
    variables : dict of str to ndarray
        The model's free variables at `positions`, on their natural scale.
    emulated : Emulated
        The emulators' predictions at draws and, leave-one-out, at evaluations.
    emulated_log_evidence : LogEvidence
        Log evidence of the emulated density, without the emulators' error.
    emulators : tuple of EmulatorState
    region : ProcessState or None
        Where the log density is finite; None if it was at all evaluations.
    structure : Structure
        Which opaque nodes are terms of a sum, and which values their inputs depend on.
    step_size : float
        Of the transitions that made the draws, in units in which these have unit covariance.
    r_hat : float
        Potential scale reduction of the chains that made the draws; above 1.03 they haven't mixed.
    noise : float
        Standard deviation of the values' noise, in nats.
    noise_variance : NoiseVariance or None
        The noise's variance as a function of the place; None without noise.
    given : dict of str to ndarray
        Values of variables that were not learned, by the names of their value variables. Draws and
        averages are given these, the emulators are not.
    n_coarse_evaluations : int
        Number of evaluations of the black boxes' coarse version.
    """

    opaque: tuple
    evaluations: Evaluations
    n_evaluations: int
    error: float
    has_converged: bool
    is_close: bool
    rounds: tuple = field(repr=False)
    modes: tuple = field(repr=False)
    positions: np.ndarray
    wide_positions: np.ndarray
    log_densities: np.ndarray
    variances: np.ndarray
    gradients: np.ndarray = field(repr=False)
    jumps: bool
    periods: np.ndarray = field(repr=False)
    variables: dict = field(repr=False)
    emulated: Emulated = field(repr=False)
    emulated_log_evidence: LogEvidence
    emulators: tuple = field(repr=False)
    region: ProcessState | None = field(repr=False)
    structure: Structure = field(repr=False)
    step_size: float = field(repr=False)
    r_hat: float
    noise: float
    noise_variance: NoiseVariance | None = field(repr=False)
    given: dict
    n_coarse_evaluations: int = 0

    @property
    def names(self) -> tuple:
        """Names of the value variables, in the order of the unconstrained vector."""
        return self.evaluations.names

    @property
    def seconds(self) -> np.ndarray:
        """Seconds that each evaluation took, (n,)."""
        return self.evaluations.seconds

    @property
    def n_dimensions(self):
        """Number of unconstrained values."""
        return self.positions.shape[1]

    @property
    def weights(self):
        """Weights (n',) of `positions` under noise, with sum one; None without noise."""
        return None if self.noise_variance is None else softmax(self._lowered[0])

    @property
    def mode_maps(self):
        """ModeMaps between the modes that were learned, or None if there is only one."""
        modes = [mode for mode in self.modes if not mode.was_left_out]
        return ModeMaps.between(modes, self.positions)

    def draws(self, n=1000, *, random_seed=None):
        """Return approximate draws, those of the learned posterior.

        Parameters
        ----------
        n : int
            Number of draws. They are drawn with replacement under noise, or if they are more than
            there are positions.
        random_seed : None, int or numpy.random.Generator

        Returns
        -------
        xarray.Dataset
            The model's free variables on their natural scale, with dimensions chain and draw, as
            ArviZ takes them.
        """
        check_count(n, "n")
        rng = check_rng(random_seed, "random_seed")
        n_positions = len(self.positions)
        if self.weights is None:
            chosen = rng.choice(n_positions, n, replace=n > n_positions)
        else:
            chosen = rng.choice(n_positions, n, p=self.weights)
        data = {}
        for name, values in self.variables.items():
            dims = [f"{name}_dim_{i}" for i in range(values.ndim - 1)]
            data[name] = (["chain", "draw", *dims], values[chosen][None])
        coords = {"chain": [0], "draw": np.arange(n)}
        return xr.Dataset(data, coords, {"approximate": "draws of a learned surrogate"})

    def summary(self, quantiles=(0.05, 0.5, 0.95)):
        """Return means, standard deviations and quantiles, each with a standard error.

        The standard errors have a part from the emulators' uncertainty and a part from the number
        of draws. They are wide if learning has not converged.

        Parameters
        ----------
        quantiles : sequence of float
            Probabilities between 0 and 1.

        Returns
        -------
        pandas.DataFrame
            One row for each element of the model's free variables, on their natural scale. Columns
            `mean`, `sd`, `5%`, ..., and `se_mean`, `se_sd`, `se_5%`, ...

        References
        ----------
        O'Hagan, A. (1991). Bayes-Hermite quadrature. *Journal of Statistical Planning and
        Inference* 29, 245-260.
        """
        quantiles = averages.check_quantiles(quantiles)
        values, labels = averages.flattened(self.variables)
        return self._averages.table(values, labels, quantiles)

    @property
    def log_evidence(self):
        """The log marginal likelihood and its standard error, a `LogEvidence`; approximate.

        Natural logarithm, with all constants of the model's log density. Of a noisy likelihood it
        is that of the likelihood without noise, if the logarithm's noise is Gaussian.
        """
        value, error = self.emulated_log_evidence
        return LogEvidence(value, float(np.hypot(error, self._averages.constant_error)))

    @property
    def _averages(self):
        emulated, values = self.emulated, self.evaluations.log_densities
        errors = values - emulated.held_out
        # Places where nobody had looked may be a thousand nats deep.
        near = np.fmax(values, emulated.held_out) >= lowest_of_mass(self.log_densities)
        late = np.zeros(len(errors), dtype=bool)
        for found in self.rounds:
            if found.temperature <= DISPERSED:
                late[found.n_evaluations - len(found.predicted) : found.n_evaluations] = True
        if self.rounds:  # else earlier evaluations were enough
            near &= late
        ratio = averages.calibration(errors[near], emulated.held_out_sd[near])
        lowered, slopes = self._lowered
        controls = averages.control_variates(self.positions, self.gradients + slopes, self.periods)
        if self.jumps:
            controls = controls[:, :0]
        unknown = 0.0 if self.has_converged else self.error
        worth = averages.inefficiency(self.r_hat, N_EACH)
        known = controls, emulated.covariance, ratio, unknown, worth
        return Averages(self.variances, *known, lowered=lowered)

    @property
    def _lowered(self):
        """What noise took off the log density at `positions` (n',), and its gradient (n', d)."""
        if self.noise_variance is None:
            return np.zeros(len(self.positions)), np.zeros_like(self.positions)
        return self.noise_variance.half(self.positions)

    # Stored

    def to_netcdf(self, path):
        """Write everything to a netCDF file.

        Parameters
        ----------
        path : str or Path
        """
        storage.write(self, path)

    @classmethod
    def from_netcdf(cls, path):
        """Read a file that :meth:`to_netcdf` wrote.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        LearnedPosterior

        Raises
        ------
        ValueError
            If the file is another, or was written by a version that stored something else.
        """
        return storage.read(cls, path)

    # Shown

    @property
    def _n_in_all(self):
        return max(self.n_evaluations, len(self.evaluations))

    @property
    def _sentences(self):
        what = ", ".join(self.opaque)
        means = self.summary(quantiles=())
        worst = (means["se_mean"] / means["sd"].where(means["sd"] > 0)).max()
        quality = f"The log density is known to {self.error:.2g} nats at new draws"
        quality += f", means to {worst:.2g} standard deviations"
        if self.has_converged:
            quality += "."
        elif self.is_close:
            quality += ", which is enough for chains; raise max_evaluations for better averages."
        else:
            quality += " only: raise max_evaluations; a chain that starts from it goes on learning."
        n, seconds = self._n_in_all, np.nansum(self.seconds)
        before = n - self.n_evaluations
        earlier = f", {before} of them before this call" if before else ""
        coarse = ""
        if self.n_coarse_evaluations:
            coarse = f", and {self.n_coarse_evaluations} of the coarse version"
        names = ", ".join(self.given)
        given = [f"Draws and averages are given the first values of {names}."] if names else []
        return [
            f"Emulated: {what}.",
            quality,
            *sentences(self.modes),
            *given,
            f"Cost: {n} evaluations of the model in all{earlier}, {_duration(seconds)}{coarse}.",
            "Draws are approximate; pm.sample(step=kmc.KMC(learned)) makes exact ones.",
        ]

    def __repr__(self):
        title = f"LearnedPosterior of {self.n_dimensions} unconstrained values"
        return "\n".join([title, *(f"  {line}" for line in self._sentences)])

    def _repr_html_(self):
        shown = [
            (f"{self._n_in_all}", "evaluations", True),
            (f"{self.error:.2g}", "nats of error at new draws", self.has_converged),
        ]
        lines = [paragraph(line) for line in self._sentences]
        title = f"Learned posterior of {self.n_dimensions} unconstrained values"
        return result(paragraph(title, is_title=True), figures(shown), *lines)


def _duration(seconds):
    if seconds < 1.0:
        return f"{1e3 * seconds:.2g} ms"
    return f"{seconds:.3g} s" if seconds < 600.0 else f"{seconds / 60.0:.0f} min"
