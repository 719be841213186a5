r"""A surrogate fitted to a chain's history again and again, in coordinates learned with it.

Steps of one fit
----------------
1. *States*: the recent part of the history, distinct states weighted by how long the chain stayed.
   *Values*: the log densities evaluated at proposals, rejected ones too, weighted by
   :math:`1 / (1 + (\text{depth} / c)^2)`, depth below the chain's bulk.
2. *Base density*: a Gaussian, by quadratic regression on the values, shrunk towards the states'
   moments.
3. *Coordinates*: kernels are isotropic, so the scale on which the log density's gradient changes
   must be about the same in all directions. Candidates: the given coordinates, those that whiten
   the states, those of the base, the inverse Fisher information :math:`E[\nabla f \nabla
   f^\top]^{-1}` of the last surrogate, its geometric mean with the covariance, and the last
   choice. They and the bandwidth compete by the generalised cross-validation score of a
   regression of the values on a subset's kernel functions.
4. *Score matching* on the states (Proposition 1 or 2 of the KMC paper), its regularisation by
   blocked cross-validation.
5. *Correction* of its coefficients by ridge regression on the values' residuals
   (:mod:`pymc_kmc.surrogates.regression`).
6. *Momentum metric*: the geometric mean of the states' covariance and the inverse Fisher
   information. Step size and number of steps: :mod:`pymc_kmc.adaptation.trajectory`.

With ``values=False`` step 2 takes the states' moments, step 3 the cross-validated score-matching
loss in one common metric, and step 5 falls away: these are the paper's estimators, from states
alone.

References
----------
Strathmann, H., Sejdinovic, D., Livingstone, S., Szabo, Z. and Gretton, A. (2015). Gradient-free
Hamiltonian Monte Carlo with efficient kernel exponential families. *NeurIPS* 28.
"""

import warnings
from copy import deepcopy
from dataclasses import replace

import numpy as np

from pymc_kmc.adaptation.fitting import Fit, RepeatedFit, fisher_information
from pymc_kmc.adaptation.history import systematic_sample
from pymc_kmc.dynamics import Metric, SurrogateHamiltonian
from pymc_kmc.numerics.coordinates import Coordinates
from pymc_kmc.numerics.linear_algebra import geometric_mean, symmetric, symmetric_power
from pymc_kmc.numerics.samples import shrunk_covariance, whitening
from pymc_kmc.numerics.threads import single_threaded_blas
from pymc_kmc.surrogates import KernelExpFinite, KernelExpLite, select, unique_states
from pymc_kmc.surrogates.base_density import GaussianBase
from pymc_kmc.surrogates.features import features, scale_basis, standard_basis
from pymc_kmc.surrogates.kernels import gaussian_kernel, squared_distances
from pymc_kmc.surrogates.regression import (
    correct,
    gaussian_from_values,
    ridge_regression,
    whitened,
)


class LiteFamily:
    """KMC lite: kernel functions at the states themselves, at most `n_points` of them in a fit.

    `options` are `penalty`, `rank` and `tolerance` of :class:`~pymc_kmc.surrogates.KernelExpLite`.
    """

    def __init__(self, n_points, **options):
        self.n_points = n_points
        self.options = options

    def unfitted(self, sigma, regularisation, base, rng):
        return KernelExpLite(sigma, regularisation, base=base, **self.options)

    def for_comparison(self):
        """Return the family whose loss compares coordinates."""
        return self

    def candidate_features(self, X, centres, sigma):
        """Return features of X (n, d) to compare bandwidths and coordinates by."""
        return whitened(
            gaussian_kernel(X, centres, sigma), gaussian_kernel(centres, centres, sigma)
        )[0]

    def updated(self, surrogate, states, weights, new_states):
        """Return a surrogate with the same hyper-parameters, fitted to all of the states."""
        fresh = self.unfitted(surrogate.sigma, surrogate.regularisation, surrogate.base, None)
        return fresh.fit(states, weights)


class FiniteFamily:
    """KMC finite: `n_features` random Fourier features of a kernel of that name.

    `n_points` is the largest number of states that a fit uses.
    """

    # Features to compare bandwidths and coordinates with; always the same, so that these alone
    # differ.
    N_CANDIDATE_FEATURES = 200

    def __init__(self, n_features, n_points, kernel):
        self.n_features = n_features
        self.n_points = n_points
        self.kernel = kernel

    def unfitted(self, sigma, regularisation, base, rng):
        seed = int(rng.integers(2**31))
        return KernelExpFinite(
            self.n_features, sigma, regularisation, kernel=self.kernel, base=base, rng=seed
        )

    def for_comparison(self):
        """Return the family whose loss compares coordinates: one with fewer features."""
        n_features = min(self.n_features, self.N_CANDIDATE_FEATURES)
        return FiniteFamily(n_features, self.n_points, self.kernel)

    def candidate_features(self, X, centres, sigma):
        """Return features of X (n, d) to compare bandwidths and coordinates by."""
        omega, phase = standard_basis(
            self.N_CANDIDATE_FEATURES, X.shape[1], self.kernel, np.random.default_rng(0)
        )
        return features(X, scale_basis(omega, sigma), phase)

    def updated(self, surrogate, states, weights, new_states):
        """Return the surrogate after an online update with `new_states`."""
        return deepcopy(surrogate).update(new_states)  # it writes into its sums and its factor


class FitToScores(RepeatedFit):
    """Fits kernel exponential families to a chain by score matching, corrected by values.

    `family`, a :class:`LiteFamily` or :class:`FiniteFamily`, makes the surrogates on a `base`
    density ("gaussian" or None). `values` says whether log-density values are used beside states.
    `sigma` and `regularisation` are given, or None to be chosen at every fit. A given `sigma` is in
    squared units of the step's own coordinates, which are then kept.
    """

    # Share of the history that is used: the rest is burn-in. Shares from .5 to .8 did equally well.
    RECENT_SHARE = 0.6
    # Number of folds of cross-validation: an early history has about as many different parts.
    N_FOLDS = 4
    # Depth below the chain's bulk at which a value counts half, in nats.
    DEPTH = 3.0
    # Additional depth a dimension: log densities spread more in many.
    DEPTH_PER_DIMENSION = 0.1
    # Depth, in units of that, beyond which a value is dropped: it only makes numerical trouble.
    DROP = 30.0
    # Bandwidths compared, in median squared distances.
    BANDWIDTHS = 3.0 ** np.arange(5)
    # Bandwidths compared in the last fit's coordinates, in its choice.
    BANDWIDTHS_AROUND = 2.0 ** np.arange(-1, 2)
    # Number of values in a comparison: its cost is to be small beside a fit's.
    N_CANDIDATE_VALUES = 800
    # Number of states in a comparison of losses, which makes some hundred fits. With 400 a banana's
    # coordinates were missed.
    N_CANDIDATE_STATES = 800
    # Number of kernel functions in a comparison.
    N_CANDIDATE_CENTRES = 150

    def __init__(self, family, base, values, sigma, regularisation, learn_moves):
        super().__init__(learn_moves)
        self.family = family
        self.base = base
        self.values = values
        self.sigma = sigma
        self.regularisation = regularisation
        self.n_seen = 0
        self.last_bandwidth = 1.0

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
        base = self.base
        if base is not None and self.values:
            base = gaussian_from_values(points, values, value_weights, mean, covariance)
        spread, matrices = self._metrics(states, weights, covariance, base, last)
        if self.sigma is not None:
            coordinates, bandwidth = Coordinates.identity(len(mean)), self.sigma
        elif self.values:
            coordinates, bandwidth = self._choose_by_values(
                mean, matrices, states, points, values, value_weights, base, rng
            )
        else:
            coordinates, bandwidth = self._choose_by_loss(
                mean, matrices, states, weights, spread, base, rng
            )
        base = in_coordinates(base, coordinates)
        U = coordinates.forward(states)
        regularisation = self.regularisation
        if regularisation is None:
            choice = self._select(self.family, U, weights, base, rng, sigmas=[bandwidth])
            regularisation = choice.regularisation
        surrogate = self.family.unfitted(bandwidth, regularisation, base, rng).fit(U, weights)
        if self.values:
            surrogate, _ = correct(surrogate, coordinates.forward(points), values, value_weights)
        metric = Metric(coordinates.matrix @ spread @ coordinates.matrix.T)
        return Fit(surrogate, SurrogateHamiltonian(surrogate.parameters_, coordinates, metric))

    def update(self, history, last, rng):
        """Return the surrogate in use after learning from the states since the last fit or update.

        Hyper-parameters, the moves' lengths and the log weights stay those of the last fit. A
        failed update returns `last` and writes its reason to `failure`.
        """
        forward = last.hamiltonian.coordinates.forward
        states, weights = self._states(history.states, rng)
        new_states = history.states.last(len(history) - self.n_seen)
        try:
            with single_threaded_blas():
                surrogate = self.family.updated(
                    last.surrogate, forward(states), weights, forward(new_states)
                )
        except (ValueError, np.linalg.LinAlgError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            return last
        self.n_seen = len(history)
        return replace(last, surrogate=surrogate, transitions=last.transitions.following(surrogate))

    def _states(self, states, rng):
        """Return distinct recent states in order, as many as a fit takes, and their weights."""
        states, weights = unique_states(states.recent(self.RECENT_SHARE))
        if len(states) > self.family.n_points:
            kept, weights = systematic_sample(weights, self.family.n_points, rng)
            states = states[kept]
        return states, weights.astype(np.float64)

    def _values(self, evaluations):
        """Return the recent places evaluated, their log densities and the weights of these."""
        recent = evaluations.recent(self.RECENT_SHARE)
        points, values = recent[:, :-1], recent[:, -1]
        scale = self.DEPTH + self.DEPTH_PER_DIMENSION * points.shape[1]
        depth = np.maximum(np.quantile(values, 0.9) - values, 0.0) / scale
        kept = depth < self.DROP
        return points[kept], values[kept], 1.0 / (1.0 + depth[kept] ** 2)

    def _metrics(self, states, weights, covariance, base, last):
        """Return the momentum's inverse metric, and candidate coordinates of the kernel by name."""
        matrices = {
            "given": np.eye(len(covariance)),
            "spread": whitening(covariance),
        }
        if last is not None:
            information = fisher_information(gradients_of(last, states), covariance, weights)
            matrices["fisher"] = whitening(np.linalg.inv(information))
            matrices["last"] = last.hamiltonian.coordinates.matrix
        elif isinstance(base, GaussianBase):
            information = base.precision
            matrices["base"] = whitening(np.linalg.inv(information))
        else:
            return covariance, matrices
        spread = geometric_mean(covariance, np.linalg.inv(information))
        matrices["mean"] = whitening(spread)
        return spread, matrices

    def _choose_by_values(self, mean, matrices, states, points, values, weights, base, rng):
        """Return the coordinates and bandwidth whose kernel functions predict values best."""
        residuals = values
        if isinstance(base, GaussianBase):
            residuals = values - base.log_density(points)
        if len(points) > self.N_CANDIDATE_VALUES:
            kept = np.sort(rng.choice(len(points), self.N_CANDIDATE_VALUES, replace=False))
            points, residuals, weights = points[kept], residuals[kept], weights[kept]
        places = np.linspace(0, len(states) - 1, min(len(states), self.N_CANDIDATE_CENTRES))
        centres = states[np.unique(places.round().astype(int))]
        best = None
        for name, matrix in matrices.items():
            coordinates = Coordinates(mean, matrix)
            U, C = coordinates.forward(points), coordinates.forward(centres)
            unit = float(np.median(squared_distances(C, C)))
            bandwidths = self.BANDWIDTHS
            if name == "last":
                bandwidths = self.last_bandwidth * self.BANDWIDTHS_AROUND
            for bandwidth in bandwidths:
                features = self.family.candidate_features(U, C, bandwidth * unit)
                score = ridge_regression(features, residuals, weights).score
                if best is None or score < best[0]:
                    best = score, coordinates, bandwidth, unit
        _, coordinates, self.last_bandwidth, unit = best
        return coordinates, self.last_bandwidth * unit

    def _choose_by_loss(self, mean, matrices, states, weights, spread, base, rng):
        """Return the coordinates and bandwidth of least held-out loss, in one metric, `spread`."""
        root = symmetric_power(spread, 0.5)
        family = self.family.for_comparison()
        if len(states) > self.N_CANDIDATE_STATES:
            kept, weights = systematic_sample(weights, self.N_CANDIDATE_STATES, rng)
            states = states[kept]
        best = None
        for matrix in matrices.values():
            coordinates = Coordinates(mean, matrix)
            U = coordinates.forward(states)
            choice = self._select(family, U, weights, base, rng)
            directions = (coordinates.matrix @ root).T
            loss = self._held_out_loss(choice, U, weights, directions)
            if best is None or loss < best[0]:
                best = loss, coordinates, choice.sigma
        return best[1:]

    def _select(self, family, U, weights, base, rng, sigmas=None):
        return select(
            U,
            family.unfitted(1.0, 1.0, base, rng),
            weights,
            sigmas=sigmas,
            n_folds=self.N_FOLDS,
            random_seed=rng,
        )

    def _held_out_loss(self, choice, U, weights, directions):
        """Return the score-matching loss over contiguous folds, summed over directions (k, d)."""
        places = np.arange(len(U))
        total = 0.0
        for fold in np.array_split(places, self.N_FOLDS):
            rest = np.setdiff1d(places, fold)
            surrogate = choice.estimator.fit(U[rest], weights[rest])
            slopes = surrogate.gradient(U[fold]) @ directions.T
            loss = 0.5 * (slopes**2).sum(axis=1)
            for direction in directions:
                # A central difference: the third derivative is nothing at a thousandth of a
                # bandwidth.
                step = 1e-3 * np.sqrt(choice.sigma) / np.linalg.norm(direction)
                ahead = surrogate.gradient(U[fold] + step * direction)
                behind = surrogate.gradient(U[fold] - step * direction)
                loss += (ahead - behind) @ direction / (2 * step)
            total += weights[fold] @ loss
        return total / weights.sum()


def gradients_of(fitted, X):
    """Return a fitted surrogate's gradients at X (n, d), in the step's coordinates."""
    coordinates = fitted.hamiltonian.coordinates
    return coordinates.backward_gradient(fitted.surrogate.gradient(coordinates.forward(X)))


def in_coordinates(base, coordinates):
    """Return a Gaussian base density in other coordinates; None and "gaussian" as they are."""
    if not isinstance(base, GaussianBase):
        return base
    inverse = coordinates.inverse
    precision = np.ascontiguousarray(inverse.T @ base.precision @ inverse)
    return GaussianBase(coordinates.forward(base.mean), symmetric(precision))
