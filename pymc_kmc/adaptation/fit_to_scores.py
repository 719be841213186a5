r"""A surrogate fitted by score matching, again and again along a chain, in learned coordinates.

1. *States*: the recent part of the history; a state's weight is the length of the chain's stay.
   *Values*: the log densities of proposals, rejected ones too, weighted by
   :math:`1 / (1 + (\text{depth} / c)^2)` with the depth below the chain's bulk.
2. *Base density*: a Gaussian, by quadratic regression on the values, shrunk towards the states'
   moments.
3. *Coordinates*: kernels are isotropic, so gradients should change on the same scale in all
   directions. Candidates are the given coordinates and those that whiten the states' covariance,
   the inverse Fisher information :math:`E[\nabla f \nabla f^\top]^{-1}` of the last surrogate or
   the base, and the geometric mean of both. They and the bandwidth compete by the generalised
   cross-validation score of a regression of the values on a subset's kernel functions.
4. *Score matching* on the states (Proposition 1 or 2 of the KMC paper), with the regularisation of
   :func:`pymc_kmc.surrogates.select`.
5. *Correction* of the coefficients by ridge regression on the values' residuals
   (:mod:`pymc_kmc.surrogates.exponential_family`).
6. *Momentum metric*: the geometric mean of step 3.

With ``values=False`` the base has the states' moments, and there is no correction: apart from
coordinates and bandwidth these are the paper's estimators.

References
----------
Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import warnings
from copy import copy, deepcopy
from dataclasses import replace

import numpy as np

from pymc_kmc.adaptation.fitted import Fit, RepeatedFit, fisher_information
from pymc_kmc.adaptation.history import systematic_sample
from pymc_kmc.dynamics import Metric, SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.linear_algebra import geometric_mean, single_threaded_blas, symmetric
from pymc_kmc.numerics.samples import shrunk_covariance, whitening
from pymc_kmc.surrogates import KernelExpFinite, select, unique_states
from pymc_kmc.surrogates.exponential_family import GaussianBase, gaussian_from_values, whitened
from pymc_kmc.surrogates.finite import features, random_basis
from pymc_kmc.surrogates.kernels import gaussian_kernel, squared_distances
from pymc_kmc.surrogates.regression import BULK, Depth, ridge_regression


class FitToScores(RepeatedFit):
    """Fits kernel exponential families to a chain by score matching, corrected by values.

    `template` is the unfitted surrogate to copy, for at most `n_points` states. Its `sigma` and
    `regularisation` may be None, to be chosen at every fit; a given `sigma` is in squared units of
    the step's own coordinates, which are then kept. `values` says whether log-density values
    correct the coefficients.
    """

    # Folds of cross-validation: an early history has about as many different parts.
    N_FOLDS = 4
    # Depth below the chain's bulk at which a value has weight 1/2, in nats.
    DEPTH = 3.0
    # Nats added to that depth for each dimension: log densities spread more in many.
    DEPTH_PER_DIMENSION = 0.1
    # Depth, in units of that, beyond which a value is dropped for numerical stability.
    DROP = 30.0
    # Bandwidths compared, in median squared distances.
    BANDWIDTHS = 3.0 ** np.arange(5)
    # Most values in a comparison, for a cost well below a fit's.
    N_CANDIDATE_VALUES = 800
    # Kernel functions or random features in a comparison.
    N_CANDIDATES = 150

    def __init__(self, template, n_points, values, learn_moves):
        super().__init__(learn_moves)
        self.template = template
        self.n_points = n_points
        self.values = values
        self.n_seen = 0

    def _fit(self, history, last, rng):
        states, weights = self._states(history.states, rng)
        if len(states) < max(2 * self.N_FOLDS, states.shape[1] + 2):
            return None  # the chain has hardly moved
        with warnings.catch_warnings():
            # A bandwidth at the edge of its range is a fact of Gaussian targets: wider is as good.
            warnings.filterwarnings("ignore", message="the best", category=UserWarning)
            fit = self._fit_to(states, weights, history.evaluations, last, rng)
        self.n_seen = len(history)
        return fit

    def _fit_to(self, states, weights, evaluations, last, rng):
        mean = np.average(states, axis=0, weights=weights)
        covariance = shrunk_covariance(states, weights)
        points, values, value_weights = self._values(evaluations)
        base = self.template.base
        if base is not None and self.values:
            base = gaussian_from_values(points, values, value_weights, mean, covariance)
        information = self._information(states, weights, covariance, base, last)
        narrow = covariance if information is None else np.linalg.inv(information)
        spread = geometric_mean(covariance, narrow)
        sigma = self.template.sigma
        if sigma is not None:
            coordinates = Coordinates.identity(len(mean))
        else:
            matrices = [np.eye(len(mean)), *map(whitening, (covariance, narrow, spread))]
            candidates = [Coordinates(mean, matrix) for matrix in matrices]
            coordinates, sigma = self._choose_by_values(
                candidates, states, points, values, value_weights, base, rng
            )
        base = in_coordinates(base, coordinates)
        U = coordinates.forward(states)
        surrogate = self._chosen(sigma, U, weights, base, rng).fit(U, weights)
        if self.values:
            surrogate = surrogate.corrected(coordinates.forward(points), values, value_weights)
        metric = Metric(coordinates.matrix @ spread @ coordinates.matrix.T)
        return Fit(surrogate, SurrogateHamiltonian(surrogate.parameters_, coordinates, metric))

    def update(self, history, last, rng):
        """Return the fit in use, updated with the states since the last fit or update.

        Hyper-parameters and moves are kept. A failed update returns `last` and sets `failure`.
        """
        forward = last.hamiltonian.coordinates.forward
        states, weights = self._states(history.states, rng)
        new_states = history.states.last(len(history) - self.n_seen)
        try:
            with single_threaded_blas():
                surrogate = deepcopy(last.surrogate)
                if isinstance(surrogate, KernelExpFinite):
                    surrogate.update(forward(new_states))
                else:
                    surrogate.fit(forward(states), weights)
        except (ValueError, np.linalg.LinAlgError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            return last
        self.n_seen = len(history)
        return replace(last, surrogate=surrogate, transitions=last.transitions.following(surrogate))

    def _states(self, states, rng):
        """Return distinct recent states in order, at most `n_points`, and their weights."""
        states, weights = unique_states(states.recent(self.RECENT_SHARE))
        if len(states) > self.n_points:
            kept, weights = systematic_sample(weights, self.n_points, rng)
            states = states[kept]
        return states, weights.astype(np.float64)

    def _values(self, evaluations):
        recent = evaluations.recent(self.RECENT_SHARE)
        points, values = recent[:, :-1], recent[:, -1]
        scale = self.DEPTH + self.DEPTH_PER_DIMENSION * points.shape[1]
        depth = Depth(np.quantile(values, BULK), scale)
        kept = depth(values) < self.DROP
        return points[kept], values[kept], depth.weight(values[kept])

    def _information(self, states, weights, covariance, base, last):
        """Return the Fisher information of the last surrogate or the base; None without either."""
        if last is not None:
            return fisher_information(gradients_of(last, states), covariance, weights)
        return base.precision if isinstance(base, GaussianBase) else None

    def _choose_by_values(self, systems, states, points, values, weights, base, rng):
        """Return the coordinates and bandwidth whose kernel functions predict values best."""
        residuals = values
        if isinstance(base, GaussianBase):
            residuals = values - base.log_density(points)
        if len(points) > self.N_CANDIDATE_VALUES:
            kept = np.sort(rng.choice(len(points), self.N_CANDIDATE_VALUES, replace=False))
            points, residuals, weights = points[kept], residuals[kept], weights[kept]
        places = np.linspace(0, len(states) - 1, min(len(states), self.N_CANDIDATES))
        centres = states[np.unique(places.round().astype(int))]
        best = np.inf, None, None
        for coordinates in systems:
            U, C = coordinates.forward(points), coordinates.forward(centres)
            for sigma in np.median(squared_distances(C, C)) * self.BANDWIDTHS:
                candidates = self._candidate_features(U, C, sigma)
                score = ridge_regression(candidates, residuals, weights).score
                best = min(best, (score, coordinates, sigma), key=lambda found: found[0])
        return best[1:]

    def _candidate_features(self, U, centres, sigma):
        """Return features (n, k) of points U (n, d) to compare bandwidths and coordinates by."""
        if self.values and isinstance(self.template, KernelExpFinite):
            # Those of a correction, always the same: bandwidths and coordinates alone differ.
            basis = random_basis(self.N_CANDIDATES, U.shape[1], sigma, self.template.kernel, 0)
            return features(U, *basis)
        gram = gaussian_kernel(centres, centres, sigma)
        return whitened(gaussian_kernel(U, centres, sigma), gram)[0]

    def _chosen(self, sigma, U, weights, base, rng):
        surrogate = copy(self.template)
        surrogate.sigma, surrogate.base = float(sigma), base
        if isinstance(surrogate, KernelExpFinite):
            surrogate.rng = int(rng.integers(2**31))
        if surrogate.regularisation is None:
            options = {"sigmas": sigma, "n_folds": self.N_FOLDS, "random_seed": rng}
            surrogate = select(U, surrogate, weights, **options).estimator
        return surrogate


def gradients_of(fitted, X):
    coordinates = fitted.hamiltonian.coordinates
    return coordinates.backward_gradient(fitted.surrogate.gradient(coordinates.forward(X)))


def in_coordinates(base, coordinates):
    """Return a Gaussian base density in other coordinates; None and "gaussian" stay as they are."""
    if not isinstance(base, GaussianBase):
        return base
    inverse = coordinates.inverse
    precision = np.ascontiguousarray(inverse.T @ base.precision @ inverse)
    return GaussianBase(coordinates.forward(base.mean), symmetric(precision))
