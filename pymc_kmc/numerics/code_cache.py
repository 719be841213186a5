"""Compiled code on disk that never comes from other sources and never causes a failure.

numba keeps compiled code beside the sources or in the user's cache folder. It checks the source of
the outermost function alone, while inlined code and constants come from other modules too: after an
upgrade in place a stale file would be used. And it raises where a file is damaged or the disk is
full. Here a file belongs to all sources that compiled code of the package is made from. Where a
file can't be read or written, its code is compiled anew, with a warning that names the file.
"""

import re
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path

from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.errors import NumbaWarning

PACKAGE = Path(__file__).parents[1]
# What a module has that compiles something by itself.
COMPILES = re.compile(r"^\s*@(?:numba\.)?(?:njit|evaluation|overload|intrinsic)\b", re.MULTILINE)
IMPORTED = re.compile(rf"^\s*from {PACKAGE.name}\.([\w.]+) import", re.MULTILINE)


@cache
def sources_digest(package=PACKAGE):
    """Return a digest of the version and of the sources that compiled code is made from.

    These are the package's modules that compile something, those that they import from, whose
    constants become part of the code, and ``__init__.py``. Empty if sources can't be read, as in an
    archive.
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
