"""Compiled code on disk: damaged, out of date, or without room."""

import shutil
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config

import pymc_kmc
from pymc_kmc.numerics import jit
from pymc_kmc.numerics.jit import njit


def twice_of(x):
    return 2 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def compiled():
    """Compile in a new dispatcher, as a new process does; return it with the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function = njit(twice_of)
        assert function(1.5) == 3.0
    return function, [str(warning.message) for warning in caught]


def was_loaded(function):
    return sum(function.stats.cache_hits.values()) == 1


def test_kept_and_loaded(folder):
    first, messages = compiled()
    assert not was_loaded(first) and not messages
    again, messages = compiled()
    assert was_loaded(again) and not messages


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", ["empty", "truncated", "other"])
def test_a_damaged_file_is_compiled_anew_and_named(folder, suffix, content):
    compiled()
    (path,) = folder.rglob(f"*{suffix}")
    before = path.read_bytes()
    path.write_bytes({"empty": b"", "truncated": before[:-9], "other": b"\x80\x04"}[content])
    function, messages = compiled()
    assert not was_loaded(function)
    assert str(path) in messages[0] and "compiled anew" in messages[0]
    again, messages = compiled()
    assert was_loaded(again) and not messages


def test_a_full_disk_is_no_error(folder, monkeypatch):
    def no_room(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jit.CodeFiles, "_open_for_write", no_room)
    function, (message,) = compiled()
    assert "No space left on device" in message and str(folder) in message
    assert "NUMBA_CACHE_DIR" in message
    assert compiled()[1] == []  # once a process


def test_other_sources_are_compiled_anew(folder, monkeypatch):
    """numba itself looks at the file of the outermost function alone."""
    compiled()
    monkeypatch.setattr(jit, "sources_digest", lambda: "of another version")
    assert not was_loaded(compiled()[0])
    assert was_loaded(compiled()[0])


@pytest.fixture
def copy(tmp_path):
    """The package's sources, to be changed."""
    package = Path(pymc_kmc.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(package, tmp_path / package.name, ignore=ignore))


@pytest.mark.parametrize(
    ("module", "matters"),
    [
        ("__init__", True),  # the version
        ("surrogates/kernels", True),  # compiles, and is inlined by others
        ("numerics/evaluation", True),
        ("advice", False),
    ],
)
def test_which_sources_matter(copy, module, matters):
    before = jit.sources_digest.__wrapped__(copy)
    path = copy / f"{module}.py"
    path.write_text(path.read_text() + "\n# changed\n")
    assert (jit.sources_digest.__wrapped__(copy) != before) == matters


def test_all_that_the_package_compiles_is_kept_this_way():
    """Nothing goes by numba's own cache."""
    for path in Path(pymc_kmc.__file__).parent.rglob("*.py"):
        if path.name != "jit.py":
            assert "cache=True" not in path.read_text(), path


def test_a_dispatcher_is_what_numba_makes():
    function = njit(fastmath=True)(twice_of)
    assert isinstance(function, type(numba.njit(twice_of)))
    np.testing.assert_array_equal(function(np.ones(2)), [2.0, 2.0])
