r"""The random numbers behind an estimate: drawn for a chain's start, renewed with every proposal.

An estimate averages replicates, and what each of them has of chance is a row of an array: a seed,
or standard normal numbers. The array is part of a chain's state (Andrieu and Roberts, 2009). A
proposal's array u' is drawn from a kernel that is reversible with respect to the law of u, so that
its density cancels from the acceptance ratio. Independent of u, or, so that the estimates at both
ends of a proposal are off by nearly as much,

- for normal numbers :math:`u' = \rho u + \sqrt{1 - \rho^2}\, \xi` with :math:`\xi \sim N(0, I)`
  (Deligiannidis, Doucet and Pitt, 2018, equation 7);
- for seeds, all but a share :math:`1 - \rho` of them, chosen at random, are those of u: blocks of
  random numbers take turns (Tran, Kohn, Quiroz and Villani, 2016, section 2.3).

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.

Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudomarginal method. *Journal
of the Royal Statistical Society B* 80, 839-870.

Tran, M.-N., Kohn, R., Quiroz, M. and Villani, M. (2016). The block pseudo-marginal sampler.
arXiv:1603.02485.
"""

import numpy as np

__all__ = ["JointSeeds", "Normals", "Seeds", "noise_generator"]

MAX_SEED = 2**63  # seeds are non-negative 64-bit integers


def noise_generator(seed):
    """Return the generator that belongs to a noise seed.

    Parameters
    ----------
    seed : int
        Non-negative integer below 2**63.

    Returns
    -------
    numpy.random.Generator
    """
    return np.random.Generator(np.random.PCG64(int(seed)))


class Seeds:
    """A seed for each replicate, whose generator the estimator gets as ``rng``.

    Parameters
    ----------
    correlation : float
        Share of the seeds that a proposal keeps, in [0, 1). At least one is renewed.

    Attributes
    ----------
    is_joint : bool
        Whether all replicates are made in one call.
    """

    is_joint = False

    def __init__(self, correlation=0.0):
        self.correlation = correlation

    def draw(self, n, rng):
        """Return seeds for `n` replicates, shape (n,)."""
        return rng.integers(MAX_SEED, size=n)

    def renew(self, noise, rng):
        """Return a proposal's seeds, from the chain's."""
        n = len(noise)
        n_new = max(1, n - round(self.correlation * n))
        if n_new == n:
            return self.draw(n, rng)
        renewed = noise.copy()
        renewed[rng.choice(n, n_new, replace=False)] = self.draw(n_new, rng)
        return renewed

    @staticmethod
    def inputs(row):
        """Return what of the estimator's arguments is random, for one replicate."""
        return {"rng": noise_generator(row)}

    @staticmethod
    def describe(row):
        """Return source code of :meth:`inputs`."""
        return f"rng=numpy.random.Generator(numpy.random.PCG64({int(row)}))"


class JointSeeds(Seeds):
    """Seeds for an estimator that makes all replicates in one call.

    It gets one generator as ``rng``, which depends on all seeds, and their number as ``size``.
    """

    is_joint = True

    @staticmethod
    def inputs(row):
        """Return the estimator's ``rng`` and ``size`` for a seed or an array of seeds."""
        return {"rng": noise_generator(joint_seed(row)), "size": np.size(row)}

    @staticmethod
    def describe(row):
        """Return source code of :meth:`inputs`."""
        return f"{Seeds.describe(joint_seed(row))}, size={np.size(row)}"


def joint_seed(seeds):
    """The bits' sums: as uniform as each of the seeds, and new when one of them is."""
    return np.bitwise_xor.reduce(np.atleast_1d(seeds))


class Normals:
    """Standard normal numbers for each replicate, which the estimator gets as ``u``.

    Parameters
    ----------
    size : int
        How many a replicate.
    correlation : float
        Of a proposal's numbers with the chain's, in [0, 1).
    """

    is_joint = False

    # So many are shown in messages.
    SHOWN = 20

    def __init__(self, size, correlation=0.0):
        self.size = size
        self.correlation = correlation

    def draw(self, n, rng):
        """Return numbers for `n` replicates, shape (n, size)."""
        return rng.standard_normal((n, self.size))

    def renew(self, noise, rng):
        """Return a proposal's numbers, from the chain's."""
        rho = self.correlation
        return rho * noise + np.sqrt(1.0 - rho**2) * self.draw(len(noise), rng)

    @staticmethod
    def inputs(row):
        """Return what of the estimator's arguments is random, for one replicate."""
        return {"u": row.copy()}

    @classmethod
    def describe(cls, row):
        """Return source code of :meth:`inputs`, or say where the numbers are."""
        if len(row) > cls.SHOWN:
            return f"u=error.noise, the {len(row)} numbers that this exception has as `noise`"
        return f"u=numpy.array({row.tolist()})"
