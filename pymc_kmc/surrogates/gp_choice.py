"""Choice of a Gaussian-process log density's kernel part by the marginal likelihood.

Maps of the coordinates, kernels, length scales and ridges compete on a subset of the points. The
best choice without and the best with functions of single coordinates are then fitted to all points.

References
----------
Radhakrishnan, A., Beaglehole, D., Pandit, P. and Belkin, M. (2024). Mechanism for feature
learning in neural networks and backpropagation-free machine learning models. *Science* 383,
1461-1467.
"""

import itertools

import numpy as np

from pymc_kmc.numerics.linear_algebra import symmetric_power
from pymc_kmc.surrogates.bayesian_regression import MORE_RIDGES, BayesianRegression
from pymc_kmc.surrogates.gp_evaluation import values_and_gradients
from pymc_kmc.surrogates.gp_parts import AdditivePart, KernelChoice
from pymc_kmc.surrogates.kernels import KERNELS, squared_distances
from pymc_kmc.surrogates.landmarks import select_landmarks

#: Points that are compared on, and kernel functions.
N_POINTS, N_LANDMARKS = 500, 100

# Maps and length scales of the kernel part

#: Length scales compared, in median distances between points.
LENGTH_SCALES = (1.0, 3.0, 9.0, 27.0)
#: Length scales compared around the last fit's, in units of it.
LENGTH_SCALES_AROUND = (0.5, 1.0, 2.0)
#: Points that averages and medians over many are taken at: they need not be exact.
N_AVERAGED = 400
#: Share of the mean square that directions without a gradient keep in the kernel's map.
FAINT = 1e-4
#: Entries by which a covariance differs from the identity where a map of its own is tried.
NOT_WHITE = 0.1

# Functions of single coordinates

#: Fewest coordinates that have them: with fewer the kernel part has neighbours everywhere.
FEWEST_COORDINATES = 3
#: Kernel functions a coordinate.
GRID = 8
#: Fewest values a kernel function, so that the values can determine them.
VALUES_PER_GRID_POINT = 4
#: Quantiles of the points between which the grid lies, for outliers' sake.
GRID_ENDS = (0.005, 0.995)
#: Grid points outside of these quantiles, on either side.
MARGIN = 1
#: Weight above which a point counts for the grid's ends, and belongs inside of a wall.
HALF = 0.5
#: Variances compared, in units of the kernel part's.
ADDITIVE_VARIANCES = (1.0, 30.0, 1000.0)
#: Length scales compared, in grid points: the longer one goes on beyond the grid's end. So many
#: times its own is the kernel part's beside them: it has less to say.
ADDITIVE_LENGTHS = (1.0, 3.0)
#: Fits between two trials of what lost twice running.
RETRIED = 4


def choose_kernels(options, data, features, residuals, ridges, last, rng):
    """Return the :class:`KernelChoice` objects that are worth a fit to all points, a list.

    They are the choices of the largest evidence on a subset, one without and one with an additive
    part: only all points can decide between these two. The list is empty where the trend alone has
    the largest evidence. `options` are the LogDensityGP's arguments, `features` (n, k) the trend's,
    `residuals` (n,) the values less the prior's quadratic, `ridges` the trend's to try, and `last`
    is an earlier fit or None.
    """
    n, d = data.Z.shape
    subset = np.arange(n)
    if n > N_POINTS:
        subset = np.sort(rng.choice(n, N_POINTS, replace=False))
    Z, weights = data.Z[subset], data.weights[subset]
    regression = BayesianRegression(features[subset], residuals[subset], weights, ridges)

    def kernels(with_additive):
        return [
            (KERNELS[name], matrix / length)
            for matrix, lengths in _maps(data, Z, last, with_additive)
            for name in options.kernels
            for length in lengths
        ]

    def best(candidates, parts):
        """Return the choice of the largest evidence, and that evidence."""
        largest, choice = -np.inf, None
        for additive in parts:
            along_coordinates = additive(Z)
            for kernel, matrix in candidates:
                _, candidate = select_landmarks(Z @ matrix.T, weights, N_LANDMARKS, kernel)
                candidate = np.hstack([along_coordinates, candidate])
                fit = regression.fit(candidate, MORE_RIDGES[1::2], ridges[::2])
                if fit.log_evidence > largest:
                    largest = fit.log_evidence
                    choice = KernelChoice(kernel, matrix, [fit.ridge], additive)
        return choice, largest

    choice, evidence = best(kernels(False), [AdditivePart.none(d)])
    choices = [choice] if evidence > regression.fit(np.zeros((len(Z), 0))).log_evidence else []
    additive = _additive_part(data, last)
    if additive is not None and choice is not None:
        if last is not None and last.choice.additive.variance > 0:
            parts = [additive.scaled(last.choice.additive.variance, last.choice.additive.length)]
            choice = best(kernels(True), parts)[0] or choice
        around = [(choice.kernel, choice.map / length) for length in ADDITIVE_LENGTHS]
        scales = itertools.product(ADDITIVE_VARIANCES, ADDITIVE_LENGTHS)
        choice, _ = best(around, [additive.scaled(*scale) for scale in scales])
        if choice is not None:
            choices.append(choice)
    return choices


def _additive_part(data, last):
    """Return an additive part of variance one, or None if points are too few or it lost lately."""
    n, d = data.Z.shape
    n_losses = last.n_additive_losses if last is not None else 0
    if n_losses > 1 and n_losses % RETRIED:
        return None
    if d < FEWEST_COORDINATES or n < VALUES_PER_GRID_POINT * GRID * d:
        return None
    inverse = np.linalg.inv(data.whitening)
    X = (data.Z @ inverse.T)[data.weights > HALF]
    if not len(X):
        return None
    low, high = np.quantile(X, GRID_ENDS, axis=0)
    spacing = (high - low) / (GRID - 1 - 2 * MARGIN)
    low = low - MARGIN * spacing
    if not np.all(spacing > 0):
        return None
    return AdditivePart(inverse / spacing[:, None], low / spacing, GRID)


def _maps(data, Z, last, with_additive):
    """Yield candidates for the kernel's map of the coordinates, each with length scales to try.

    They are the given coordinates, those that whiten the reference points, the last fit's, and
    powers of the average outer product of the last kernel part's gradient (Radhakrishnan et al.,
    2024), which finds the directions in which the log density isn't quadratic. An additive part's
    share of the gradient is left out of it if the new fit has one too.
    """
    d = Z.shape[1]
    inverse = np.linalg.inv(data.whitening)
    maps = [inverse / np.sqrt(np.trace(inverse @ inverse.T) / d), np.eye(d)]
    if not np.allclose(data.covariance, np.eye(d), atol=NOT_WHITE):
        maps.append(symmetric_power(data.covariance, -0.5))
    candidates = [(matrix, LENGTH_SCALES) for matrix in maps]
    if last is not None and len(last.parameters.coefficients):
        p = last.parameters
        change = p.whitening @ inverse
        gradients = _gradients(p, data.reference, with_additive) @ inverse
        product = gradients.T @ gradients
        if np.trace(product) > 0:
            product *= d / np.trace(product)
            product += FAINT * np.eye(d)
            candidates.append((symmetric_power(product, 0.5), LENGTH_SCALES))
            candidates.append((symmetric_power(product, 0.25), LENGTH_SCALES))
        candidates.append((p.projection @ change, None))
    sample = Z[:: max(1, len(Z) // N_AVERAGED)]
    for matrix, lengths in candidates:
        if lengths is None:
            yield matrix, LENGTH_SCALES_AROUND
        else:
            U = sample @ matrix.T
            scale = np.sqrt(np.median(squared_distances(U, U)))
            if scale > 0:
                yield matrix, scale * np.array(lengths)


def _gradients(p, reference, with_additive):
    """Return gradients (n, d) of the last fit's kernel part at some reference points.

    If the new fit has no additive part, the gradient of the last one's is added.
    """
    X = reference[:: max(1, len(reference) // N_AVERAGED)]
    p = p._replace(linear=0.0 * p.linear, precision=0.0 * p.precision, stiffness=0.0)
    p = p._replace(radial_coefficients=0.0 * p.radial_coefficients)
    if with_additive:
        p = p._replace(additive_coefficients=p.additive_coefficients[:, :0].copy())
    return values_and_gradients(p, np.ascontiguousarray(X))[1]
