"""Examples as users run them."""

import io
import os
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def uncompiled():
    """Return an environment in which PyTensor doesn't compile: short runs take less than that."""
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), "mode=FAST_COMPILE"]
    return os.environ | {"PYTENSOR_FLAGS": ",".join(filter(None, flags))}


def run_quickly(script, folder):
    """Run an example as a script, in its quick form and in an empty folder, where its picture is.

    It runs in this process, which has imported PyMC.

    Returns
    -------
    str
        What it prints.
    """
    picture = folder / "picture.png"
    path = str(EXAMPLES / script)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [path, "--quick", "--output", str(picture)])
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        runpy.run_path(path, run_name="__main__")
    printed = said.getvalue()
    assert str(picture) in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(folder.iterdir()) == [picture]
    return printed
