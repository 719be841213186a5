"""Examples as users run them."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def uncompiled():
    """Return an environment in which PyTensor compiles nothing in C or numba by itself.

    Scripts in their quick form, and runs that are killed, take less than compiling them.
    """
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), "mode=FAST_COMPILE"]
    return os.environ | {"PYTENSOR_FLAGS": ",".join(filter(None, flags))}


def run_quickly(script, folder):
    """Run an example in its quick form in an empty folder, where it leaves its picture alone.

    Returns
    -------
    str
        What it prints.
    """
    picture = folder / "picture.png"
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / script)]
    command += ["--quick", "--output", str(picture)]
    options = {"capture_output": True, "text": True, "timeout": 300, "env": uncompiled()}
    finished = subprocess.run(command, cwd=folder, **options)
    assert finished.returncode == 0, finished.stderr
    assert str(picture) in finished.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(folder.iterdir()) == [picture]
    return finished.stdout
