"""Possible starts of learning: PyMC's jittered initial points, and draws of the prior."""

import numpy as np
from pymc.initial_point import make_initial_point_fn
from scipy.stats import rankdata
from scipy.stats.qmc import LatinHypercube


def prior_points(opaque, n, rng):
    """Return n unconstrained draws of the prior (n, d); None where it can't be drawn from."""
    try:
        function = make_initial_point_fn(
            model=opaque.model,
            overrides=dict.fromkeys(opaque.random_variables, "prior"),
            return_transformed=True,
        )
        rows = _rows(opaque, function, n, rng)
    except (NotImplementedError, ValueError, TypeError):
        return None
    return rows if np.isfinite(rows).all() else None


def jittered_points(opaque, n, rng):
    """Return n of PyMC's jittered initial points on the unconstrained scale, (n, d).

    Every second one is its predecessor reflected at the initial point, which has the same
    distribution: modes on both sides of it, mirror images for instance, are both near to a start.
    """
    model = opaque.model
    function = make_initial_point_fn(
        model=model, jitter_rvs=set(opaque.random_variables), return_transformed=True
    )
    points = np.repeat(_rows(opaque, function, (n + 1) // 2, rng), 2, axis=0)[:n]
    points[1::2] = 2.0 * _vector(opaque, opaque.initial_point) - points[1::2]
    return points


def _rows(opaque, function, n, rng):
    return np.array([_vector(opaque, function(int(rng.integers(2**30)))) for _ in range(n)])


def _vector(opaque, point):
    return np.concatenate([np.ravel(point[v.name]).astype(float) for v in opaque.variables])


def far_from(known, X, among, scales):
    """Return the mask of places X (n, d) that are far from known ones (k, d), in scales (d,).

    Half of those `among`, a mask, are: a mode that is low from afar gets a search in turn.
    """
    away = np.min(np.linalg.norm((X[:, None] - known) / scales, axis=2), axis=1)
    return away >= np.median(away[among])


def spread_out(pool, n, rng):
    """Return n of the draws (N, d) that fill their distribution evenly, (n, d).

    Their ranks are nearest to a Latin hypercube: each coordinate's lowest and highest n-th are
    among them.
    """
    ranks = rankdata(pool, axis=0) / len(pool)
    is_left = np.ones(len(pool), dtype=bool)
    chosen = []
    for wanted in LatinHypercube(pool.shape[1], seed=rng).random(n):
        away = np.where(is_left, ((ranks - wanted) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(away)))
        is_left[chosen[-1]] = False
    return pool[chosen]
