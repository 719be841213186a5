"""The number of threads for linear algebra."""

from functools import cache

from threadpoolctl import ThreadpoolController


def single_threaded_blas():
    """Return a context in which BLAS uses one thread.

    With several threads its rounding, and with it the draws, depends on their number; and the
    chains already share the cores.
    """
    return _thread_pools().limit(limits=1, user_api="blas")


@cache
def _thread_pools():
    """Return NumPy's and SciPy's pools: finding them takes a millisecond, limiting them 20 us."""
    return ThreadpoolController()
