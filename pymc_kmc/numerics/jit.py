"""Compilation with numba, whose results are kept on disk wherever there is a folder for them."""

import numba

from pymc_kmc.numerics.code_cache import CodeCache


def njit(function=None, **options):
    """Compile as ``numba.njit(cache=True, **options)`` does, with a cache that is never in the way.

    numba keeps compiled code beside the source file or in the user's cache folder, and refuses to
    compile where it can write to neither, as in a read-only container. The function is then
    compiled in every process. What is kept belongs to the package's sources of this moment, and
    damaged files are compiled anew (:mod:`pymc_kmc.numerics.code_cache`).

    Parameters
    ----------
    function : callable, optional
        The function to compile; without it, a decorator is returned.
    **options
        Those of ``numba.njit``, ``cache`` excepted.

    Returns
    -------
    numba dispatcher or callable
    """
    if function is None:
        return lambda function: njit(function, **options)
    compiled = numba.njit(**options)(function)
    try:
        # As its enable_caching does. Where numba doesn't compile at all, nothing is kept.
        if hasattr(compiled, "_cache"):
            compiled._cache = CodeCache(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    return compiled
