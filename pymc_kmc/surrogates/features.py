r"""Random Fourier features (Rahimi and Recht, 2007).

.. math:: \phi_j(x) = \sqrt{2/m}\, \cos(\omega_j^\top x + u_j), \qquad u_j \sim U(0, 2\pi),

so that :math:`E\, \phi(x)^\top \phi(y) = k(x, y)` for

- ``"gaussian"``: :math:`k = \exp(-|x - y|^2/\sigma)`, :math:`\omega_j \sim N(0, 2/\sigma\, I)`;
- ``"rational_quadratic"``: :math:`k = (1 + |x - y|^2 / (a \sigma))^{-a}`, a mixture of Gaussian
  kernels over :math:`1/\sigma`: :math:`\omega_j \sim N(0, 2 g_j/\sigma\, I)` with :math:`g_j \sim
  \mathrm{Gamma}(a, 1/a)` of mean 1. As :math:`a \to \infty` it becomes the Gaussian kernel of the
  same :math:`\sigma`.
"""

import math

import numpy as np

from pymc_kmc.numerics.checks import check_rng

KERNELS = ("gaussian", "rational_quadratic")

#: a of the rational quadratic kernel: a = 1 is the Cauchy kernel, the mixture with the widest
#: spread of scales among those in common use.
RATIONAL_QUADRATIC_SHAPE = 1.0


def standard_basis(n_features, d, kernel, rng):
    """Draw omega (d, n_features) and phases (n_features,) of `kernel` with sigma = 1."""
    omega = rng.normal(scale=math.sqrt(2.0), size=(d, n_features))
    phase = rng.uniform(0.0, 2.0 * math.pi, size=n_features)
    if kernel == "rational_quadratic":
        shape = RATIONAL_QUADRATIC_SHAPE
        omega *= np.sqrt(rng.gamma(shape, 1.0 / shape, size=n_features))
    return omega, phase


def scale_basis(omega, sigma):
    """Return frequencies for bandwidth ``sigma`` from those for sigma = 1."""
    return omega / math.sqrt(sigma)


def random_basis(n_features, d, sigma, kernel="gaussian", rng=None):
    """Return frequencies (d, n_features) and phases (n_features,) of random Fourier features.

    >>> import numpy as np
    >>> omega, phase = random_basis(4000, 2, sigma=2.0, rng=np.random.default_rng(0))
    >>> x, y = np.zeros(2), np.array([1.0, 1.0])
    >>> bool(abs(features(x, omega, phase) @ features(y, omega, phase) - np.exp(-1.0)) < 0.05)
    True
    """
    omega, phase = standard_basis(n_features, d, kernel, check_rng(rng))
    return scale_basis(omega, sigma), phase


def features(X, omega, phase):
    """Return features of X, (d,) or (n, d), for omega (d, m) and phase (m,): (m,) or (n, m)."""
    return math.sqrt(2.0 / len(phase)) * np.cos(X @ omega + phase)
