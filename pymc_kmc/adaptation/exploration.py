r"""Where to evaluate a target next so that its surrogate learns where the mass is.

A chain on a surrogate goes where the surrogate leads, and the surrogate knows where the chain has
been: beyond the farthest evaluations it is off by tens of nats, mostly downwards. But its
predictive variance says so. Two things follow, while a chain tunes:

- A value that was uncertain or wrongly predicted is taken in at once
  (:meth:`~pymc_kmc.surrogates.LogDensityGP.update`), not at the next fit.
- Some evaluations are spent on learning alone. Among steps from places in the bulk, outwards and
  sidewards and of all lengths, the one is chosen whose evaluation promises most,

  .. math:: \min\left(s \left(1 - \frac{\sigma}{\sqrt{s^2 + \sigma^2}}\right), c\right)\,
            \Phi\left(\frac{f - t}{s}\right):

  what a value of noise :math:`\sigma` takes off the prediction's standard deviation s, up to c,
  times the probability that the place is above t. At the bulk's edge t is what the chain's
  predicted log densities hardly ever fall below; inside, it is that of a random state, so that
  places count by their mass. None is chosen where all promise little. This is Bayesian
  optimisation's expected improvement (Jones, Schonlau and Welch, 1998) with another aim: not the
  largest value, but all places with usual ones.

What was tried
--------------
`examples/benchmarks/README.md` has the figures. In a word: with updates and searches the surrogate
of the strongly curved banana is right along its whole arms after 2500 evaluations, where without
them it ends at the farthest state. The price is paid where the surrogate is right without them:
eight schools had 548 effective draws per 1000 without searches and 330 with a fifth of all
evaluations (4 and 8 seeds). So the step searches less where searches find what was predicted
(480, 4 seeds). Under noise that costs spread (rotated banana .39 in place of .18, 6 seeds), and
the share is fixed.
The probability of being between t and the states' highest log density, which spares evaluations
thousands of nats deep, was worse: spread of the banana .18 in place of .05, eight schools 241.
With t at a random state's log density always, a banana's arms end too soon (spread .10 (.18) in
place of .02 (.09), 2 seeds; the rotated one .15 in place of .11, 4 seeds), while eight schools had
486 (worst 459, 4 seeds) in place of 465 (104, 8 seeds) and a centred hierarchical model is covered
better; with t at the states' lower quartile the same. So where searches find what was predicted,
they go on inside. Candidates along single coordinates belong there: with them four seeds of eight
schools had 448 to 533 draws in place of 41 to 465, because the corners that chains used to stick
in are a long way off in one coordinate; at the edge they cost a banana's arms (rotated .17 (.27) in
place of .10, 4 seeds).

References
----------
Jones, D. R., Schonlau, M. and Welch, W. J. (1998). Efficient global optimization of expensive
black-box functions. *Journal of Global Optimization* 13, 455-492.
"""

import numpy as np
from scipy.special import ndtr

from pymc_kmc.numerics.samples import shrunk_covariance

__all__ = ["Frontier"]

# Longest steps, in standard deviations of the neighbourhood and in distances from its mean.
LONGEST = 3.0


class Frontier:
    """Keeps a surrogate up to date between its fits; see the module's docstring.

    Parameters
    ----------
    surrogate : LogDensityGP
        Is updated.
    states : ndarray, shape (n, d)
        Of the chain, its burn-in left out.
    evaluated : ndarray, shape (n', d)
        Where the target has been evaluated.

    Attributes
    ----------
    place : ndarray, shape (d,)
        What the last search found.
    error : float
        How far from its prediction the last value was.
    threshold : float
        The predicted log density that the chain's states hardly ever fall below.
    """

    # States that are looked at, and the share of them below the bulk.
    N_STATES = 500
    BELOW = 0.01
    # Origins of a search, half of them among the outermost, and candidates compared.
    N_ORIGINS = 20
    OUTERMOST = 0.1
    N_CANDIDATES = 160
    # Smallest gain that is worth an evaluation, and the largest that counts, in nats.
    WORTH, LARGEST_GAIN = 0.1, 3.0
    # After so many searches in vain there is nothing to learn until the next fit.
    PATIENCE = 30
    # A value is taken in where the standard deviation was above the first of these and half the
    # noise's, or where it is farther from the prediction than the second and three standard
    # deviations.
    UNCERTAIN, SURPRISING = 0.3, 0.5
    # Values that count less are left to the next fit.
    SMALLEST_WEIGHT = 0.2

    def __init__(self, surrogate, states, evaluated):
        self.surrogate = surrogate
        self.place = None
        self.error = 0.0
        self._n_in_vain = 0
        p = surrogate.parameters_
        self._centre, self._whitening = p.centre, p.whitening
        self._inverse = np.linalg.inv(p.whitening)
        # Predictions, not values: under noise those of a chain's states are lucky ones.
        self._typical = surrogate.predict(states[:: max(1, len(states) // self.N_STATES)])
        self.threshold = np.quantile(self._typical, self.BELOW)
        inside = surrogate.predict(evaluated) >= self.threshold
        self._points = (evaluated[inside] - p.centre) @ p.whitening.T

    def learn(self, position, value):
        """Update the surrogate with a value where it was uncertain or wrong.

        Parameters
        ----------
        position : ndarray, shape (d,)
        value : float
            The log density there, finite.

        Returns
        -------
        bool
            Whether it was updated.
        """
        surrogate = self.surrogate
        predicted, std = surrogate.predict(position, return_std=True)
        self.error = surprise = abs(value - predicted)
        if surrogate.weight(max(value, predicted)) < self.SMALLEST_WEIGHT:
            return False
        noise = surrogate.variance_
        is_uncertain = std > max(self.UNCERTAIN, 0.5 * np.sqrt(noise))
        if not is_uncertain and surprise < max(self.SURPRISING, 3.0 * np.sqrt(std**2 + noise)):
            return False
        surrogate.update(position, value)
        if surrogate.predict(position) >= self.threshold:
            point = self._whitening @ (position - self._centre)
            self._points = np.vstack([self._points, point])
        return True

    def search(self, rng, edge=1.0):
        """Look for a place that is worth an evaluation.

        Parameters
        ----------
        rng : numpy.random.Generator
        edge : float
            Probability that all of the bulk counts alike, rather than by its density.

        Returns
        -------
        bool
            Whether there is one; it is then in `place`.
        """
        points, d = self._points, self._points.shape[1]
        if len(points) < 2 * d + 2 or self._n_in_vain >= self.PATIENCE:
            return False
        at_the_edge = rng.uniform() < edge
        X = self._candidates(points, not at_the_edge, rng)
        predicted, std = self.surrogate.predict(X, return_std=True)
        noise = self.surrogate.variance_
        gains = np.minimum(std * (1.0 - np.sqrt(noise / (std**2 + noise))), self.LARGEST_GAIN)
        threshold = self.threshold if at_the_edge else rng.choice(self._typical)
        gains *= ndtr((predicted - threshold) / std)
        best = int(np.argmax(gains))
        if gains[best] < self.WORTH:
            self._n_in_vain += 1
            return False
        self.place, self._n_in_vain = X[best], 0
        return True

    def _candidates(self, points, along_coordinates, rng):
        """Steps outwards and sidewards from places in the bulk, shape (N_CANDIDATES, d).

        With `along_coordinates` half of them change one coordinate, and the others as these go
        with it in the neighbourhood.
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
        steps *= rng.uniform(0.0, LONGEST, size=(len(origins), n_each, 1))
        lengths = rng.uniform(0.0, LONGEST, size=(len(origins), n_each, 1))
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
                step[:n_alone] = rng.uniform(-LONGEST, LONGEST, (n_alone, 1)) * (rows @ factor.T)
            candidates.append(points[i] + step)
        return self._centre + np.vstack(candidates) @ self._inverse.T
