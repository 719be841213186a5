"""The structure of a model's graph: terms of a sum, and the variables that inputs depend on.

It is found by evaluating the graph at some points. :class:`~pymc_kmc.model.opaque.OpaqueModel`
checks it anew at every evaluated place.
"""

from typing import NamedTuple

import numpy as np

# Points at which the graph is tried out, and their distances from the initial one in each variable:
# near it, as far as PyMC's jitter, and as far as priors reach.
N_TRIED, SPREADS = 12, (0.1, 1.0, 3.0)
# Sizes of outputs with which is tried whether they are terms of a sum: bounds, kinks and saturation
# lie anywhere between. A number is emulated as it is in any case: that of a log density is tried.
SIZES, SIZES_OF_NUMBER = (1.0, 1e2, 1e4), (1.0,)
# Number of them where the log density must be finite for a derivative to be called constant: any
# single derivative is like itself.
FEWEST_FINITE = 3
# Relative error of a constant derivative, and of a log density that is computed in two ways.
ROUNDING, ROUNDING_OF_SUM = 1e-9, 1e-7


class StructureError(Exception):
    """The structure read off a model's graph doesn't hold at a place that was evaluated."""


class OpaqueNode(NamedTuple):
    """A part of the log density without usable gradient.

    Attributes
    ----------
    n_outputs : int
        Number of values that are emulated: 1 for a term of the log density.
    is_term : bool
        Whether it is a term of the log density: a weighted sum of its outputs is added to the rest,
        and is emulated.
    is_noisy : bool
        Whether its value is an estimate.
    inputs, outputs, returned : slice
        Its inputs among all opaque inputs, its emulated outputs among all emulated outputs, and its
        returned values, raveled, among all returned values.
    moves_with : ndarray of int
        Positions of the unconstrained values that its inputs depend on.
    shape : tuple of int
        Of its outputs: () for a term of the log density.
    weights : ndarray or None
        Of a term's returned values in the log density; None where it isn't a term.
    """

    name: str
    n_outputs: int
    is_term: bool
    is_noisy: bool
    inputs: slice
    outputs: slice
    moves_with: np.ndarray
    shape: tuple
    returned: slice = slice(0, 1)
    weights: np.ndarray | None = None

    def emulated(self, returned):
        """Return the emulated values (n, n_outputs), given all returned values (n, k)."""
        own = returned[:, self.returned]
        if not self.is_term:
            return own
        with np.errstate(invalid="ignore"):  # infinities of both signs
            return (own * self.weights).sum(axis=1, keepdims=True)


class Structure(NamedTuple):
    """The structure of a model's graph that no evaluation has refuted.

    `is_whole` says whether the density is opaque as a whole, `are_terms` which nodes are terms of a
    sum. `moves_with` has, for each node, the positions of the unconstrained values that its inputs
    depend on.
    """

    is_whole: bool
    are_terms: tuple
    moves_with: tuple


def tried_points(start):
    """Return points (n, d) at which a graph is tried out; the first one is `start` (d,)."""
    rng = np.random.default_rng(0)
    spreads = np.repeat(SPREADS, -(-N_TRIED // len(SPREADS)))[:N_TRIED, None]
    return np.vstack([start, start + spreads * rng.standard_normal((N_TRIED, len(start)))])


def term_weights(given, X, sizes):
    """Return the weights (k,) of each part's outputs in the log density; None where it is no term.

    ``given(X, outputs)`` returns log densities (n,), and derivatives by X and by all outputs. It is
    tried at X (n, d); `sizes` are the numbers of the parts' outputs.
    """
    rng = np.random.default_rng(1)
    found = []
    for scales in (SIZES, SIZES_OF_NUMBER):
        raw = np.resize(scales, len(X))[:, None] * rng.standard_normal((len(X), sum(sizes)))
        with np.errstate(all="ignore"):
            values, _, derivatives = given(X, raw)
        # Where the log density isn't finite a derivative says nothing.
        found.append(derivatives[np.isfinite(values)])
    weights, begin = [], 0
    for size in sizes:
        tried = found[int(size == 1)][:, begin : begin + size]
        begin += size
        if size == 1:
            tried = tried[tried != 0.0][:, None]
        first = tried[0] if len(tried) else np.zeros(size)
        same = len(tried) >= FEWEST_FINITE and np.allclose(tried, first, rtol=ROUNDING, atol=0.0)
        weights.append(first if same and first.any() else None)
    return weights


def dependence(inputs_at, X):
    """Return the mask (d, k) of opaque inputs that move with a variable, tried at X (n, d).

    `inputs_at` returns the opaque inputs (n, k) at points (n, d).
    """
    inputs = inputs_at(X)
    depends = np.empty((X.shape[1], inputs.shape[1]), dtype=bool)
    for j in range(len(depends)):
        moved = X.copy()
        moved[:, j] = np.roll(X[:, j], 1)
        depends[j] = _differ(inputs_at(moved), inputs).any(axis=0)
    return depends


def dependent_besides(inputs_at, X, inputs, start, node):
    """Return positions of variables that a node's inputs depend on besides its `moves_with`.

    `inputs` (n, k) are the opaque inputs at X (n, d), where it is checked. The other variables are
    held at `start` (d,).
    """
    held = np.setdiff1d(np.arange(len(start)), node.moves_with)
    own, last = X.copy(), inputs[:, node.inputs]
    own[:, held] = start[held]
    if not len(held) or not _differ(inputs_at(own)[:, node.inputs], last).any():
        return np.array([], dtype=int)
    # One after another: at least one of them changes something.
    own, found = X.copy(), []
    for j in held:
        own[:, j] = start[j]
        now = inputs_at(own)[:, node.inputs]
        if _differ(now, last).any():
            found.append(j)
        last = now
    return np.array(found)


def described_nodes(parts, input_sizes, holes, depends, weights):
    """Return an OpaqueNode for each of the parts.

    `input_sizes` has the sizes of all arrays that are inputs of the parts, `holes` the Columns of
    their outputs. The mask `depends` (d, k) says which opaque inputs move with which unconstrained
    value; `weights` are those of :func:`term_weights`.
    """
    nodes = []
    first_input = first_output = first_returned = n_arrays = 0
    for part, shape, size, own in zip(parts, holes.shapes, holes.sizes, weights, strict=True):
        n_inputs = sum(input_sizes[n_arrays : n_arrays + len(part.inputs)])
        is_term = own is not None
        taken = slice(first_input, first_input + n_inputs)
        moves_with = np.flatnonzero(depends[:, taken].any(axis=1))
        if not len(moves_with):
            moves_with = np.arange(len(depends))
        outputs = slice(first_output, first_output + (1 if is_term else size))
        returned = slice(first_returned, first_returned + size)
        places = taken, outputs, moves_with, () if is_term else tuple(map(int, shape))
        n_outputs = outputs.stop - outputs.start
        found = part.name, n_outputs, is_term, part.is_noisy, *places, returned, own
        nodes.append(OpaqueNode(*found))
        n_arrays += len(part.inputs)
        first_input, first_output = taken.stop, outputs.stop
        first_returned = returned.stop
    return nodes


def spread_out(weights):
    """Return a term's outputs (k,), in units of their weighted sum."""
    return weights / (weights @ weights)


def _differ(a, b):
    """Return the mask where two arrays differ; NaN is equal to NaN."""
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))
