"""Matrices for tests of linear algebra."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

DETERMINED = settings(deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)
dimensions = st.integers(1, 6)


def positive_definite(seed, d, spread=2.0):
    """With eigenvalues from 10^-spread to 10^spread."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (Q * 10 ** rng.uniform(-spread, spread, d)) @ Q.T


def assert_close(A, B, rtol=1e-8):
    np.testing.assert_allclose(A, B, rtol=0, atol=rtol * max(np.abs(A).max(), np.abs(B).max()))
