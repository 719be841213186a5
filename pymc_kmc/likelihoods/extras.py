r"""Extras: what a user's function returns beside its value, kept with the accepted evaluation.

The latent path that a particle filter draws with its estimate is, at the chain's states, an exact
draw of the path's posterior (Andrieu, Doucet and Holenstein, 2010): parameters, random numbers and
path are one state. A filter run again at the draws has other random numbers, of another law.

An average of N estimates has the extras of one of them, chosen with probability proportional to its
weight. With weights :math:`L_k = L(\theta, u_k)` the chain's density is proportional to
:math:`\pi(\theta) \prod_j q(u_j) \sum_k L_k / N`; that of the parameters and the chosen :math:`u_k`
is then :math:`\pi(\theta) q(u_k) L_k`, as if there were one replicate alone.

References
----------
Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods.
*Journal of the Royal Statistical Society B* 72, 269-342.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from pymc_kmc.likelihoods.checks import WrongResult, as_real_array, is_positive_integer

ExtrasLike = Mapping[str, int | str | Sequence[int | str]]
# Dimensions of everything that is kept with draws.
OF_DRAWS = ("chain", "draw")


class WithExtras(NamedTuple):
    """A result and its raveled extras: (k,) of one call, (n, k) of n replicates or points."""

    value: Any
    extras: np.ndarray


class Extras:
    """Names, shapes and dimensions of a function's extras, from the user's argument `wanted`.

    `shapes` and `dims` are dicts of tuples by name; a dimension without a name is None. `subject`
    is the function in messages. Raises a TypeError or ValueError if `wanted` is invalid.
    """

    def __init__(self, subject, wanted, model):
        if not isinstance(wanted, Mapping) or not wanted:
            raise TypeError(
                f"extras of the {subject} must be a dict of shapes, e.g. extras={{'path': (100,)}},"
                f" got {wanted!r}."
            )
        self.shapes, self.dims = {}, {}
        for key, shape in wanted.items():
            lengths = (shape,) if isinstance(shape, int | str | np.integer) else shape
            if not isinstance(key, str) or not isinstance(lengths, tuple | list):
                raise TypeError(
                    f"extras of the {subject} must map names to shapes, got {key!r}: {shape!r}."
                )
            if key in OF_DRAWS or key in model.dim_lengths:
                # xarray takes a variable named like a dimension for the dimension's coordinates.
                raise ValueError(
                    f"extras of the {subject} has the name {key!r}, which is a dimension of "
                    f"{'every result' if key in OF_DRAWS else 'the model'}: give the extra another "
                    "name."
                )
            for n in lengths:
                if not (n in model.dim_lengths if isinstance(n, str) else is_positive_integer(n)):
                    raise ValueError(
                        f"extras[{key!r}] of the {subject} has the shape {shape!r}: {n!r} must be a"
                        f" positive whole number or one of the model's dims {list(model.coords)}."
                    )
            self.dims[key] = tuple(n if isinstance(n, str) else None for n in lengths)
            self.shapes[key] = tuple(
                int(model.dim_lengths[n].eval() if isinstance(n, str) else n) for n in lengths
            )
        self._ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes.values())])
        digest = blake2b(repr(self.shapes).encode(), digest_size=8).digest()
        # By which a store's evaluations are told from those with other extras.
        self.mark = np.frombuffer(digest, np.uint8)

    @classmethod
    def of(cls, subject, wanted, model):
        return None if wanted is None else cls(subject, wanted, model)

    @property
    def missing(self):
        """Raveled extras (k,) of a failed evaluation, NaN."""
        return np.full(self._ends[-1], np.nan)

    def apart(self, found, *first):
        """Return a function's value and its extras, raveled (*first, k); raise a WrongResult."""
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise WrongResult(
                f"must return its value and a dict of {list(self.shapes)}, as extras= says; it "
                f"returned {found!r} of type {type(found).__name__}."
            )
        value, extras = found
        if extras.keys() != self.shapes.keys():
            raise WrongResult(
                f"must return the extras {list(self.shapes)}, as extras= says; it returned "
                f"{list(extras)}."
            )
        parts = []
        for key, shape in self.shapes.items():
            try:
                array = as_real_array(extras[key], (*first, *shape))
            except TypeError as error:
                raise WrongResult(
                    f"must return the extra {key!r} as real numbers of shape {(*first, *shape)}; "
                    f"it returned {error} (see extras=)."
                ) from None
            parts.append(array.reshape((*first, -1)))
        return value, np.concatenate(parts, axis=-1)

    def split(self, raveled):
        """Return a dict of arrays (..., *shape) from raveled extras (..., k)."""
        return {
            key: raveled[..., begin:end].reshape((*raveled.shape[:-1], *shape))
            for (key, shape), begin, end in zip(
                self.shapes.items(), self._ends[:-1], self._ends[1:], strict=True
            )
        }


def apart(extras, found, *first):
    """Return :meth:`Extras.apart`, or the result and None if `extras` is None."""
    return (found, None) if extras is None else extras.apart(found, *first)


def joined(value, extras):
    """Return a result with its extras, or alone if they are None."""
    return value if extras is None else WithExtras(value, extras)


def chosen(log_weights, noise):
    """Return the index of one of n replicates, with probability proportional to its weight.

    The seed is a digest of the noise: a state evaluated again has the same extras, and the choice
    is independent of the estimates.
    """
    log_weights = np.asarray(log_weights, dtype=float)
    largest = log_weights.max()
    if len(log_weights) == 1 or not np.isfinite(largest):  # zero or invalid: never a chain's state
        return 0
    cumulated = np.cumsum(np.exp(log_weights - largest))
    seed = int.from_bytes(blake2b(noise.tobytes(), digest_size=16).digest(), "little")
    uniform = np.random.default_rng(seed).random()
    return int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
