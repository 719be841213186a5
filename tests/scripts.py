"""Examples as users run them."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


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
    finished = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert str(picture) in finished.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(folder.iterdir()) == [picture]
    return finished.stdout
