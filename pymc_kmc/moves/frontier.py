r"""Active learning at a surrogate's frontier: evaluations where the surrogate learns most.

A chain on a surrogate goes where the surrogate leads, and the surrogate is accurate only where the
chain has been. Beyond, it is mostly tens of nats too low, which its predictive variance shows.
While a chain tunes, some evaluations are for learning alone. Candidates are steps of all lengths
from places in the bulk, outwards and sidewards. The acquisition function

.. math:: \min\left(s \left(1 - \frac{\sigma}{\sqrt{s^2 + \sigma^2}}\right), c\right)\,
          \Phi\left(\frac{f - t}{s}\right)

is the reduction of the prediction's standard deviation s by a value of noise :math:`\sigma`, at
most c, times the probability that the log density, predicted as f, is above t. At the bulk's edge t
is a low quantile of predictions at the chain's states; inside, t is the prediction at a random
state, so that places count by their mass. No place is chosen if all gains are small. This is like
expected improvement (Jones, Schonlau and Welch, 1998), but the aim is all places with usual values,
not the largest value.

References
----------
Jones, D. R., Schonlau, M. and Welch, W. J. (1998). Efficient global optimization of expensive
black-box functions. *Journal of Global Optimization* 13, 455-492.
"""

import numpy as np
from scipy.special import ndtr

from pymc_kmc.moves.base import Move, MoveKind, Proposal
from pymc_kmc.numerics.linear_algebra import single_threaded_blas
from pymc_kmc.numerics.samples import shrunk_covariance, thinned


class ActiveLearning(Move):
    """An evaluation where the surrogate learns most; never a draw.

    `frontier` is the Frontier of the surrogate in use, or None. `search_error` is the average
    error, 0 to 1, of the last predictions at places that were searched for. `share` is the share of
    iterations that are spent.
    """

    kind = MoveKind.ACTIVE_LEARNING
    is_draw = False
    # Share of the iterations, times the search error.
    SHARE = 0.2
    # Share of the iterations under noise, where a value teaches less.
    NOISY_SHARE = 0.4
    # Smallest search error that multiplies the share.
    SMALLEST_ERROR = 0.2
    # Number of searches over which the search error is averaged.
    N_SEARCHES = 20
    # Error, in residual standard deviations, that doesn't count.
    USUAL_ERROR = 2.0

    def __init__(self, is_noisy):
        self.is_noisy = is_noisy
        self.frontier = None
        self.search_error = 1.0

    @property
    def share(self):
        if self.frontier is None:
            return 0.0
        error = max(self.SMALLEST_ERROR, self.search_error)
        return self.NOISY_SHARE if self.is_noisy else self.SHARE * error

    def begin(self, fitted, states, evaluated):
        """Start to search with a new FittedSurrogate, in place.

        `states` (n, d) are the chain's without burn-in, `evaluated` (n', d) all evaluated places.
        """
        self.end()
        if fitted.surrogate.kernel_ is None:  # a quadratic has no bends to find
            return
        forward = fitted.warp.forward
        with single_threaded_blas():
            self.frontier = Frontier(fitted.surrogate, forward(states), forward(evaluated))

    def end(self):
        self.frontier = None

    def propose(self, current, fitted, rng):
        edge = 1.0 if self.is_noisy else self.search_error
        with single_threaded_blas():
            place = self.frontier.search(fitted.surrogate, rng, edge)
        return None if place is None else Proposal(fitted.warp.backward(place), self)

    def compare(self, comparison, surrogate):
        """Update the search error in place, by the `comparison` of a prediction by `surrogate`."""
        excess = comparison.error - self.USUAL_ERROR * np.sqrt(surrogate.variance_)
        error = min(1.0, max(0.0, excess))
        self.search_error += (error - self.search_error) / self.N_SEARCHES


class Frontier:
    """Places in a LogDensityGP's bulk, and a search around them.

    `states` (n, d) are the chain's without burn-in, `evaluated` (n', d) all evaluated places. The
    bulk has predictions above `threshold`, which those of states are hardly ever below.
    """

    # Most states whose predictions are used.
    N_STATES = 500
    # Share of the states below the bulk.
    BELOW = 0.01
    # Number of places that a search starts from, half of them outermost.
    N_ORIGINS = 20
    # Share of the places that are outermost.
    OUTERMOST = 0.1
    # Number of candidates of a search.
    N_CANDIDATES = 160
    # Longest steps, in standard deviations of the neighbourhood and in distances from its mean.
    LONGEST = 3.0
    # Smallest gain, in nats, that is worth an evaluation.
    WORTH = 0.1
    # Largest gain that counts, in nats.
    LARGEST_GAIN = 3.0
    # Number of searches in vain after which none is made until the next fit.
    PATIENCE = 30

    def __init__(self, surrogate, states, evaluated):
        self._n_in_vain = 0
        p = surrogate.parameters_
        self._centre, self._whitening = p.centre, p.whitening
        self._inverse = np.linalg.inv(p.whitening)
        # Predictions, not values: under noise those of a chain's states are lucky ones.
        self._typical = surrogate.predict(thinned(states, self.N_STATES))
        self.threshold = np.quantile(self._typical, self.BELOW)
        inside = surrogate.predict(evaluated) >= self.threshold
        self._points = (evaluated[inside] - p.centre) @ p.whitening.T

    def add(self, surrogate, place):
        """Add a place (d,) that `surrogate` has learned, in place, if it is in the bulk."""
        with single_threaded_blas():
            is_inside = surrogate.predict(place) >= self.threshold
        if is_inside:
            point = self._whitening @ (place - self._centre)
            self._points = np.vstack([self._points, point])

    def search(self, surrogate, rng, edge=1.0):
        """Return a place (d,) that is worth an evaluation, or None; searches in vain are counted.

        `edge` is the probability of a search at the bulk's edge. `surrogate` may have learned more.
        """
        points, d = self._points, self._points.shape[1]
        if len(points) < 2 * d + 2 or self._n_in_vain >= self.PATIENCE:
            return None
        at_the_edge = rng.uniform() < edge
        X = self._candidates(points, not at_the_edge, rng)
        predicted, std = surrogate.predict(X, return_std=True)
        noise = surrogate.variance_
        gains = np.minimum(std * (1.0 - np.sqrt(noise / (std**2 + noise))), self.LARGEST_GAIN)
        threshold = self.threshold if at_the_edge else rng.choice(self._typical)
        gains *= ndtr((predicted - threshold) / std)
        best = int(np.argmax(gains))
        if gains[best] < self.WORTH:
            self._n_in_vain += 1
            return None
        self._n_in_vain = 0
        return X[best]

    def _candidates(self, points, along_coordinates, rng):
        """Return steps outwards and sidewards from places in the bulk, shape (N_CANDIDATES, d).

        With `along_coordinates` half of them change one coordinate, and move the others by the
        neighbourhood's covariance: corners in which chains stick are far off in a single one.
        """
        n, d = points.shape
        squares = np.einsum("nd,nd->n", points, points)
        outermost = np.flatnonzero(squares >= np.quantile(squares, 1.0 - self.OUTERMOST))
        half = self.N_ORIGINS // 2
        origins = np.append(rng.choice(outermost, half), rng.integers(n, size=half))
        n_each = self.N_CANDIDATES // self.N_ORIGINS
        # Neighbourhoods of all sizes: how far to go is what the surrogate is to say.
        fewest = 2 * d + 1
        most = max(fewest, n // 4)
        sizes = (fewest * (most / fewest) ** rng.uniform(size=len(origins))).astype(int)
        steps = rng.standard_normal((len(origins), n_each, d)) / np.sqrt(d)
        steps *= rng.uniform(0.0, self.LONGEST, size=(len(origins), n_each, 1))
        lengths = rng.uniform(0.0, self.LONGEST, size=(len(origins), n_each, 1))
        candidates = []
        for i, size, step, length in zip(origins, sizes, steps, lengths, strict=True):
            distances = squares - 2.0 * points @ points[i]
            near = points[np.argpartition(distances, size - 1)[:size]]
            factor = np.linalg.cholesky(shrunk_covariance(near))
            outwards = points[i] - near.mean(axis=0)
            step = step @ factor.T + length * outwards
            if along_coordinates:
                n_alone = n_each // 2
                rows = self._inverse[rng.integers(d, size=n_alone)] @ factor
                rows /= np.linalg.norm(rows, axis=1)[:, None]
                size = rng.uniform(-self.LONGEST, self.LONGEST, (n_alone, 1))
                step[:n_alone] = size * (rows @ factor.T)
            candidates.append(points[i] + step)
        return self._centre + np.vstack(candidates) @ self._inverse.T
