"""Compilation with numba; compiled code is kept on disk wherever there is a folder for it."""

import logging
from contextlib import contextmanager

import numba
from numba.core import event

from pymc_kmc.numerics.code_cache import CodeCache

# Below PyMC's logger: shown where "Sampling 2 chains" is, and silenced by pm.sample(quiet=True).
_log = logging.getLogger("pymc.pymc_kmc")


def njit(function=None, **options):
    """Compile as ``numba.njit(cache=True, **options)`` does, with a cache that never fails.

    numba keeps compiled code beside the source file or in the user's cache folder, and refuses to
    compile where it can write to neither, as in a read-only container. The function is then
    compiled in every process. Cached code belongs to the package's present sources, and damaged
    files are compiled anew (:mod:`pymc_kmc.numerics.code_cache`). Without a function, a decorator
    is returned.
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
        _announcement.is_kept = False
    return compiled


def is_interrupt(error):
    """Say whether an exception is Ctrl-C, or the SystemError that compiled code makes of it."""
    if isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def interruptible():
    """Raise KeyboardInterrupt for Ctrl-C while compiled code runs."""
    try:
        yield
    except SystemError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


class _Announcement(event.Listener):
    """Logs, once in a process, that functions of the package are being compiled.

    `is_kept` says whether there is a folder for compiled code.
    """

    def __init__(self):
        self.is_kept, self.is_made = True, False

    def on_start(self, event):
        package = __name__.split(".")[0]
        name = event.data["dispatcher"].py_func.__module__ or ""
        if self.is_made or name.split(".")[0] != package:
            return
        self.is_made = True
        if self.is_kept:
            _log.info(f"{package}: compiling (once on this machine)")
        else:
            _log.info(
                f"{package}: compiling (in every process: numba can write to no folder; set "
                "NUMBA_CACHE_DIR)"
            )

    def on_end(self, event):
        """Do nothing."""


def is_announced():
    """Say whether compiling is shown to the user: not after PyMC's logger was silenced."""
    return _log.isEnabledFor(logging.INFO)


_announcement = _Announcement()
event.register("numba:compile", _announcement)
