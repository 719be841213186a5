"""Compilation with numba, whose results are kept on disk wherever there is a folder for them."""

import numba


def njit(function=None, **options):
    """Compile as ``numba.njit(cache=True, **options)`` does, with the cache left out if need be.

    numba keeps compiled code beside the source file or in the user's cache folder, and refuses to
    compile where it can write to neither, as in a read-only container. The function is then
    compiled in every process.

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
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return numba.njit(**options)(function)
