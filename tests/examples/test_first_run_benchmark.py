"""The benchmark of the first run: it begins with nothing that was compiled before."""

import io
import json
from contextlib import redirect_stdout

import pymc as pm
import pytest

from examples.benchmarks import first_run

pytestmark = pytest.mark.documentation


def test_the_quick_table(capsys, monkeypatch):
    """Its run is made in this process, in which much is compiled already."""

    def here(folder, *options):
        with redirect_stdout(io.StringIO()) as said:
            first_run.main(["--here", *options])
        return json.loads(said.getvalue().splitlines()[-1])

    monkeypatch.setattr(first_run, "in_a_process", here)
    monkeypatch.setattr(pm, "sample", pm.sample)  # the benchmark replaces it
    first_run.main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert tuple(name for name, *_ in rows) == first_run.ROWS
    clock = [float(cell.split()[0]) for _, cell in rows]
    assert 0 < clock[-1] and clock == sorted(clock)


def test_a_run_keeps_what_it_compiles_in_its_folder(tmp_path, monkeypatch):
    """A user's caches must neither help nor hurt."""
    commands = []

    class Done:
        returncode, stdout = 0, "said before\n[[1.0, 2.0, 0.5]]\n"

    def run(command, env, **options):
        commands.append((command, env))
        return Done

    monkeypatch.setenv("PYTENSOR_FLAGS", "floatX=float64,base_compiledir=elsewhere")
    monkeypatch.setattr(first_run.subprocess, "run", run)
    assert first_run.in_a_process(tmp_path, "--quick") == [[1.0, 2.0, 0.5]]
    ((command, environment),) = commands
    assert command[-2:] == ["--here", "--quick"]
    assert environment["NUMBA_CACHE_DIR"] == str(tmp_path / "numba")
    assert environment["PYTENSOR_FLAGS"].endswith(f",base_compiledir={tmp_path / 'pytensor'}")
