"""Compilation with numba, with a cache on disk that is never stale and never causes a failure.

numba checks the source of the outermost function alone, while inlined code and constants come from
other modules too. And it raises where a file is damaged or the disk is full. Here a cache file
belongs to all sources that compiled code of the package is made from. Where it can't be read or
written, its code is compiled anew, with a warning that names the file.
"""

import logging
import re
import warnings
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

import numba
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.errors import NumbaWarning

PACKAGE = Path(__file__).parents[1]
# Decorators of a module that compiles something by itself.
COMPILES = re.compile(r"^\s*@(?:numba\.)?(?:njit|evaluation|overload|intrinsic)\b", re.MULTILINE)
IMPORTED = re.compile(rf"^\s*from {PACKAGE.name}\.([\w.]+) import", re.MULTILINE)


@cache
def sources_digest(package=PACKAGE):
    """Return a digest of the sources that compiled code is made from; empty if they can't be read.

    These are ``__init__.py``, the modules that compile something by themselves, and the modules
    that those import from, whose constants become part of the code.
    """
    try:
        texts = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    except OSError:
        return ""
    wanted = {package / "__init__.py"}
    found = [path for path, text in texts.items() if COMPILES.search(text)]
    while found:
        path = found.pop()
        wanted.add(path)
        for name in IMPORTED.findall(texts[path]):
            imported = package.joinpath(*name.split(".")).with_suffix(".py")
            if imported in texts and imported not in wanted:
                wanted.add(imported)
                found.append(imported)
    digest = sha256()
    for path in sorted(wanted & set(texts)):
        digest.update(f"{path.relative_to(package)}\n{texts[path]}\n".encode())
    return digest.hexdigest()


class CodeCache(FunctionCache):
    """numba's cache of one function, tied to the package's sources."""

    def __init__(self, function):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), sources_digest()
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, stamp)

    def _load_overload(self, sig, target_context):
        try:
            return super()._load_overload(sig, target_context)
        except Exception as error:  # whatever the damaged bytes lead to
            self._cache_file.complain(self._cache_file.last_read, error)
            return None

    def _save_overload(self, sig, data):
        try:
            with warnings.catch_warnings():
                if warn_of_no_room.cache_info().currsize:
                    # What calls a function that was not kept isn't kept either.
                    warnings.simplefilter("ignore", NumbaWarning)
                super()._save_overload(sig, data)
        except OSError as error:
            warn_of_no_room(self._cache_path, str(error.strerror))


class CodeFiles(IndexDataCacheFile):
    """The cache files of one function; damaged ones lead to compiling anew."""

    last_read = None

    def _load_index(self):
        self.last_read = self._index_path
        try:
            return super()._load_index()
        except Exception as error:
            self.complain(self._index_path, error)
            return {}

    def _load_data(self, name):
        self.last_read = self._data_path(name)
        return super()._load_data(name)

    def complain(self, path, error):
        warnings.warn(
            f"The file {path} of compiled code can't be read ({type(error).__name__}: {error}). "
            "Its function is compiled anew, and the file is replaced if it can be.",
            UserWarning,
            stacklevel=2,
        )


@cache
def warn_of_no_room(path, reason):
    """Warn, once for a folder, that compiled code can't be kept in it."""
    warnings.warn(
        f"Compiled code can't be kept in {path} ({reason}): every process compiles it anew, which "
        "takes some tens of seconds. Make room there, or give another folder in the environment "
        "variable NUMBA_CACHE_DIR.",
        UserWarning,
        stacklevel=2,
    )


# Below PyMC's logger: shown where "Sampling 2 chains" is, and silenced by pm.sample(quiet=True).
_log = logging.getLogger("pymc.pymc_kmc")


def njit(function=None, **options):
    """Compile as ``numba.njit(cache=True, **options)``, with the module's cache; also a decorator.

    Where no folder is writable, as in a read-only container, every process compiles anew.
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
    """Logs once in a process that the package compiles; `is_kept`: whether code goes to disk."""

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
