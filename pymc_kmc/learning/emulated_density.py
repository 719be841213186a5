"""The emulated log density itself as the surrogate that a chain moves on.

What is distilled from it is a hundred times as fast, and will not do in two cases: where it
resembles the emulated log density too little, as with a hierarchical prior in many dimensions; and
where prior and likelihood around the emulators depend on variables that other steps move: these
change the density, and nothing that was learned.
"""

import numpy as np

from pymc_kmc.adaptation.fitted import FittedSurrogate, LogWeights
from pymc_kmc.adaptation.transitions import ENOUGH, SurrogateTransitions
from pymc_kmc.dynamics import MEAN_LENGTH, SurrogateHamiltonian
from pymc_kmc.learning.composite import Composite
from pymc_kmc.learning.emulator import NodeEmulator, shrunk
from pymc_kmc.model.opaque import OpaqueModel
from pymc_kmc.numerics.coordinates import IDENTITY, Coordinates
from pymc_kmc.numerics.evaluation import PythonParameters
from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.threads import single_threaded_blas

# Standard deviation, in nats, by which a distilled log density may be off: draws are then accepted
# at .5 and more.
LARGEST_DISTILLED_ERROR = 1.0
# Gradients of a proposal: about a millisecond each.
N_GRADIENTS = 60
# Length of a trajectory in coordinates in which the posterior has unit covariance, a quarter of a
# Gaussian's turn, and bounds of its number of steps.
LENGTH, N_STEPS = 1.5, (2, 12)
# -log of the correlation of a Gaussian transition's start and end, a rough one: it says what moves
# are tried first.
DECORRELATION = 0.4


class EmulatedDensity:
    """A log density with emulated outputs, given the values of other variables; a `Surrogate`.

    Parameters
    ----------
    model : pymc.Model
    names : tuple of str
        Of the value variables that were learned.
    states : tuple of EmulatorState
    variance : float
        Of the values' noise.

    Attributes
    ----------
    variance_ : float
    """

    constant_ = 0.0

    def __init__(self, model, names, states, variance):
        self.model, self.names, self.states = model, names, states
        self.variance_ = variance
        self._composite, self._point = None, None
        self._last = None, None
        self.n_features_in_ = self.composite.model.n_dimensions

    @property
    def composite(self):
        """The :class:`Composite`, compiled anew in each process."""
        if self._composite is None:
            by_name = {variable.name: variable for variable in self.model.value_vars}
            variables = [by_name[name] for name in self.names]
            # No noise is drawn, and nothing evaluated but an Op whose type doesn't say its shape.
            opaque = OpaqueModel(variables, self.model, np.random.default_rng(0))
            if self._point is not None:
                opaque.follow(self._point)
            pairs = zip(opaque.nodes, self.states, strict=True)
            self._composite = Composite(opaque, [NodeEmulator.restored(*pair) for pair in pairs])
        return self._composite

    def __getstate__(self):
        return vars(self) | {"_composite": None, "_last": (None, None)}

    def follow(self, point):
        """Take the values of the other variables from PyMC's `point`."""
        self._point = {name: np.array(point[name]) for name in self.composite.model.others}
        self.composite.model.follow(self._point)
        self._last = None, None

    def log_density(self, X):
        """Return the log density at X, (d,) or (n, d)."""
        values = self._values(X).mean
        return values if np.ndim(X) == 2 else float(values[0])

    def gradient(self, X):
        """Return its gradient at X, (d,) or (n, d)."""
        gradients = self._values(X).gradient
        return gradients if np.ndim(X) == 2 else gradients[0]

    def predict(self, X, return_std=False):
        """Return the log density at x (d,), and its standard deviation if wanted."""
        values = self._values(X)
        mean, sd = float(values.mean[0]), float(np.sqrt(values.variance[0]))
        return (mean, sd) if return_std else mean

    def weight(self, value):
        """Return 0: no value is learned from in the chain."""
        return 0.0

    def _values(self, X):
        X = np.atleast_2d(X)
        # A trajectory asks for value and gradient at one place after the other.
        key, values = self._last
        if key != (new := X.tobytes()):
            with np.errstate(all="ignore"), single_threaded_blas():
                values = self.composite(X, penalty=0.0)
            self._last = new, values
        return values


class InCoordinates:
    """A surrogate as a function of other coordinates.

    Parameters
    ----------
    surrogate : Surrogate
    coordinates : Coordinates
    """

    def __init__(self, surrogate, coordinates):
        self.surrogate, self.coordinates = surrogate, coordinates
        self.n_features_in_ = surrogate.n_features_in_

    def log_density(self, U):
        return self.surrogate.log_density(self.coordinates.backward(U))

    def gradient(self, U):
        return self.surrogate.gradient(self.coordinates.backward(U)) @ self.coordinates.inverse


def needs_emulators(posterior):
    """Say whether chains have to move on the emulated log density itself."""
    return bool(posterior.given) or posterior.distilled_error > LARGEST_DISTILLED_ERROR


def on_emulators(posterior, model) -> FittedSurrogate:
    """Return the emulated log density with moves on it, of the size that draws of it had.

    Parameters
    ----------
    posterior : LearnedPosterior
    model : pymc.Model
        That was learned.
    """
    density = EmulatedDensity(model, posterior.names, posterior.emulators, posterior.noise**2)
    X = posterior.positions
    whitening = np.linalg.inv(cholesky_factor(shrunk(X)))
    coordinates = Coordinates(X.mean(axis=0), whitening)
    parameters = PythonParameters(InCoordinates(density, coordinates))
    hamiltonian = SurrogateHamiltonian(parameters, coordinates)
    n_steps = int(np.clip(np.ceil(LENGTH / posterior.step_size), *N_STEPS))
    n_transitions = max(1, int(N_GRADIENTS / (1 + MEAN_LENGTH * n_steps)))
    decorrelation = min(DECORRELATION * n_transitions, ENOUGH)
    lengths = n_steps, n_transitions, decorrelation
    transitions = SurrogateTransitions(hamiltonian, posterior.step_size, *lengths)
    fitted = FittedSurrogate(density, IDENTITY, transitions, LogWeights(hamiltonian))
    n_last = posterior.distillation.n_last
    values = posterior.evaluations.log_densities[-n_last:]
    finite = np.isfinite(values)
    return fitted.weighed(posterior.evaluations.X[-n_last:][finite], values[finite])
