r"""The random numbers behind an estimate: drawn for a chain's start, renewed with every proposal.

The random numbers of each averaged replicate are a row of an array u: a seed, or standard normal
numbers. The array is part of the chain's state (Andrieu and Roberts, 2009). A :class:`Noise` has
the law q of u and the kernel that draws a proposal's u' given u, reversible with respect to q: the
density of the noise cancels from the acceptance ratio. Correlated noise makes the errors of the two
estimates nearly cancel:

- Normal numbers: :math:`u' = \rho u + \sqrt{1 - \rho^2}\, \xi` with :math:`\xi \sim N(0, I)`
  (Deligiannidis, Doucet and Pitt, 2018, equation 7).
- Seeds: a share :math:`1 - \rho` of them, chosen at random, is drawn anew. The others stay (Tran,
  Kohn, Quiroz and Villani, 2016, section 2.3).

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.

Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudomarginal method. *Journal
of the Royal Statistical Society B* 80, 839-870.

Tran, M.-N., Kohn, R., Quiroz, M. and Villani, M. (2016). The block pseudo-marginal sampler.
arXiv:1603.02485.
"""

import numbers
from abc import ABC, abstractmethod

import numpy as np

from pymc_kmc.likelihoods.checks import is_positive_integer

MAX_SEED = 2**63  # bound of seeds, which are non-negative 64-bit integers
# Default correlation of normal numbers. The noise must mix too: on random effects .9 gave KMC 85
# effective draws, .99 gave 23 (examples/benchmarks/README.md). Deligiannidis, Doucet and Pitt
# (2018) use .98 to .9995 for the larger variance of long series.
DEFAULT_CORRELATION = 0.95
LONGEST_DESCRIPTION = 20  # numbers of the longest row of noise that messages quote


class Noise(ABC):
    """The law of the random numbers behind an estimate, and their renewal.

    Noise is an array with a row for each replicate, which is deterministic given its row and the
    parameters. Chains are exact if

    - the estimate is unbiased where its rows come from :meth:`draw`: independent, of one law q;
    - :meth:`renew` is a Markov kernel K that is reversible with respect to the law of arrays from
      :meth:`draw`: :math:`q(u) K(u, u') = q(u') K(u', u)`;
    - everything random in these two comes from `rng`.

    A new scheme is one subclass and one line in :func:`choose_noise`.

    Attributes
    ----------
    correlation : float
        Correlation of a proposal's noise with the chain's, in [0, 1); 0 means independent.
    is_joint : bool
        Whether one call of the user's function makes all replicates. :meth:`inputs` and
        :meth:`describe` then get the whole array in place of a row.
    """

    correlation: float = 0.0
    is_joint: bool = False

    @abstractmethod
    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return new noise (n, ...) of n replicates."""

    @abstractmethod
    def renew(self, noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a proposal's noise, a new array, given the chain's."""

    @abstractmethod
    def inputs(self, row: np.ndarray) -> dict[str, object]:
        """Return the random arguments of the user's function, by keyword, for a row of noise.

        The user's function may write into them, not into `row`.
        """

    @abstractmethod
    def describe(self, row: np.ndarray) -> str:
        """Return source code of :meth:`inputs`, for messages."""


class Seeds(Noise):
    """A seed for each replicate; the user's function gets its generator as ``rng``.

    `correlation` is the share of the seeds that a proposal keeps; at least one is drawn anew.
    """

    def __init__(self, correlation=0.0):
        self.correlation = correlation

    def draw(self, n, rng):
        return rng.integers(MAX_SEED, size=n)

    def renew(self, noise, rng):
        n = len(noise)
        n_new = max(1, n - round(self.correlation * n))
        if n_new == n:
            return self.draw(n, rng)
        renewed = noise.copy()
        renewed[rng.choice(n, n_new, replace=False)] = self.draw(n_new, rng)
        return renewed

    def inputs(self, row):
        return {"rng": np.random.Generator(np.random.PCG64(int(row)))}

    def describe(self, row):
        return f"rng=numpy.random.Generator(numpy.random.PCG64({int(row)}))"


class JointSeeds(Seeds):
    """Seeds of a function that makes all replicates in one call.

    It gets one generator as ``rng``, which depends on all seeds, and their number as ``size``.
    """

    is_joint = True

    def inputs(self, row):
        return super().inputs(joint_seed(row)) | {"size": np.size(row)}

    def describe(self, row):
        return f"{super().describe(joint_seed(row))}, size={np.size(row)}"


def joint_seed(seeds):
    """Return the bitwise sum of seeds: uniform like each of them, and new if one of them is."""
    return np.bitwise_xor.reduce(np.atleast_1d(seeds))


class Normals(Noise):
    """`size` standard normal numbers for each replicate. The user's function gets them as ``u``."""

    def __init__(self, size, correlation=0.0):
        self.size = size
        self.correlation = correlation

    def draw(self, n, rng):
        return rng.standard_normal((n, self.size))

    def renew(self, noise, rng):
        """Do an autoregressive step that leaves the standard normal law invariant."""
        rho = self.correlation
        return rho * noise + np.sqrt(1.0 - rho**2) * self.draw(len(noise), rng)

    def inputs(self, row):
        return {"u": row.copy()}

    def describe(self, row):
        if len(row) > LONGEST_DESCRIPTION:
            return f"u=error.noise, the {len(row)} numbers that this exception has as `noise`"
        return f"u=numpy.array({row.tolist()})"


def choose_noise(
    name, n_replicates, number="n_replicates", *, is_joint=False, n_normals=None, correlation=None
):
    """Return the Noise of a potential, or raise a ValueError (`number` names `n_replicates`)."""
    if n_normals is not None and not is_positive_integer(n_normals):
        raise ValueError(
            f"n_normals of {name!r} must be a positive whole number, got {n_normals!r}."
        )
    if n_normals is None and correlation and n_replicates == 1:
        raise ValueError(
            f"correlation={correlation} of {name!r} needs several replicates, some of which keep "
            f"their seeds, or an estimator that takes u=. Give {number} or n_normals."
        )
    if correlation is None:
        correlation = 0.0 if n_normals is None else DEFAULT_CORRELATION
    if not (isinstance(correlation, numbers.Real) and 0 <= correlation < 1):
        raise ValueError(f"correlation of {name!r} must be in [0, 1), got {correlation!r}.")
    if is_joint:
        return JointSeeds()
    if n_normals is not None:
        return Normals(int(n_normals), correlation)
    return Seeds(correlation)
