"""Programs as functions: their files, their seeds, their faults, their end."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.commands import MOST_KEPT, STDERR
from pymc_kmc.likelihoods.executors import Unavailable

ROOT = Path(__file__).parents[3]
# The programs of these tests are the shell's: Python takes longer to start.
LINE = "read a b < in.txt; echo step >&2; echo $$((2 * $$a)) $$b > out.txt"


def script(text, parameters=("mood",), **options):
    return kmc.command(["sh", "-c", text], parameters, **options)


def line(tmp_path, text=LINE, **options):
    options = {"files": {"in.txt": "$a $b"}, "output": "out.txt", "shape": 2} | options
    return script(text, ["a", "b"], folder=tmp_path, **options)


def test_a_program_reads_and_writes_files(tmp_path):
    function = line(tmp_path)
    np.testing.assert_array_equal(function(3, 0.1), [6, 0.1])
    assert not list(tmp_path.iterdir())
    assert repr(function) == "<Command 'sh' of (a, b)>"


def test_numbers_keep_all_digits_and_arrays_their_rows(tmp_path):
    function = script("cat deep/x; echo $n", ["x", "n"], files={"deep/x": "$x\n"})
    x = np.random.default_rng(1).normal(size=(2, 3))
    with pytest.raises(ValueError, match="can't be read"):
        function(x, 1)
    function = script("cat deep/x", ["x"], files={"deep/x": "$x\n"})
    np.testing.assert_array_equal(function(x), x)
    np.testing.assert_array_equal(function(x[0]), x[0])
    assert function(x[0, 0]).shape == ()


def test_parameters_may_be_named_by_pythons_words():
    function = script("echo $lambda $rng", ["lambda", "rng"])
    np.testing.assert_array_equal(function(0.5, 2), [0.5, 2])


def test_templates_may_be_files_and_outputs_be_parsed(tmp_path):
    (tmp_path / "in.template").write_text('{"a": $a, "price": "$$5"}')

    def parse(path):
        return [len(path.read_text()), float((path.parent / STDERR).read_text())]

    function = kmc.command(
        "sh -c 'cat in.json; echo 7 >&2'",
        ["a"],
        files={"in.json": tmp_path / "in.template"},
        parse=parse,
    )
    assert function(1.5) == [len('{"a": 1.5, "price": "$5"}'), 7.0]


def test_as_a_black_box_on_an_executor_with_a_store(tmp_path):
    function = cloudpickle.loads(cloudpickle.dumps(line(tmp_path)))
    path = tmp_path / "line.db"
    with pm.Model() as model:
        a, b = pm.Poisson("a", 3.0), pm.Normal("b")
        options = {"executor": lambda: ThreadPoolExecutor(2), "store": path}
        mean = kmc.BlackBox("line", function, a, b, shape=2, **options)
        pm.Normal("y", mean, 1.0, observed=[2.0, 1.0])
    (box,) = kmc.black_boxes(model)
    outputs, _ = box.evaluate_many([np.arange(3), np.array([0.1, 0.2, 0.3])])
    np.testing.assert_array_equal(outputs, [[0, 0.1], [2, 0.2], [4, 0.3]])
    assert len(kmc.EvaluationStore(path)) == 4


def test_seeds_come_from_the_chain():
    function = script("echo $seed.$x", ["x"])
    estimates = [function(5, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert estimates[0] == estimates[1] != estimates[2]
    with pm.Model():
        kmc.PseudoMarginalPotential("y", script("echo 0.$seed$x", ["x"]), pm.Poisson("x", 3.0))
        with pytest.raises(TypeError, match="'f' can't be called.*missing.*'rng'"):
            kmc.BlackBox("f", function, pm.Normal("z"))
        with pytest.raises(TypeError, match="estimator.*unexpected keyword argument 'rng'"):
            kmc.PseudoMarginalPotential("f", script("echo $x", ["x"]), pm.Normal("w"))


FAULTS = [
    ("echo $mood; echo too deep >&2; exit 3", RuntimeError, "exit status 3.*stderr.*too deep"),
    ("echo thick; exit 1; $mood", RuntimeError, "exit status 1.*stdout.*thick"),
    ("kill -SEGV $$$$; $mood", RuntimeError, "exit status -11.*It printed nothing"),
    ("kill -KILL $$$$; $mood", Unavailable, "was killed from outside"),
    ("echo $mood > other.txt", FileNotFoundError, "ended without a file 'out.txt'"),
    ("printf '1 2\\n3' > out.txt; $mood", ValueError, r"can't be read \(ValueError: .*columns"),
    ("echo 1 2 > out.txt; $mood", ValueError, r"numbers of shape \(2,\), not \(4,\)"),
    ("sleep 60 & echo $$! > pid; wait; $mood", TimeoutError, "longer than timeout=0.5 seconds"),
]


@pytest.mark.parametrize(("text", "error", "message"), FAULTS)
def test_the_directory_of_a_failed_call_is_kept(tmp_path, text, error, message):
    text = text.replace("$mood", "true $mood") if text.endswith("$mood") else text
    function = script(text, output="out.txt", shape=4, timeout=0.5, folder=tmp_path)
    with pytest.raises(error, match=rf"(?s)'sh' .*{message}") as raised:
        function(1.0)
    (directory,) = tmp_path.iterdir()
    assert f"Its directory is kept: {directory}\n" in str(raised.value)
    assert (directory / STDERR).exists()
    if error is TimeoutError:  # the program's own child
        assert has_ended(int((directory / "pid").read_text()))


def has_ended(process):
    """Wait until another process is gone, or a zombie that nobody has waited for."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_rejections_do_not_fill_the_disk(tmp_path):
    function = script("exit $mood", folder=tmp_path)
    for _ in range(MOST_KEPT + 3):
        with pytest.raises(RuntimeError) as raised:
            function(1)
    assert len(list(tmp_path.iterdir())) == MOST_KEPT
    assert Path(str(raised.value).split(": ")[1].split("\n")[0]).is_dir()


def test_what_is_rejected_and_what_is_not(tmp_path):
    (program := tmp_path / "program").write_text("#!/bin/sh\ntest $1 -lt 2 && echo 1.0\n")
    program.chmod(0o755)
    with pm.Model() as model:
        x = pm.Poisson("x", 0.1)
        function = kmc.command([program, "$x"], ["x"], folder=tmp_path)
        kmc.BlackBox("f", function, x, on_error="reject")
        pm.Potential("p", kmc.BlackBox("g", function, x, on_error="reject"))
    box = next(box for box in kmc.black_boxes(model) if box.name == "g")
    assert box.evaluate(np.array(1)) == (1.0, True)
    with pytest.warns(UserWarning, match="'g' raised RuntimeError: 'program' ended with exit"):
        assert not box.evaluate(np.array(2))[1]
    program.unlink()
    with pytest.raises(kmc.BlackBoxError, match="'g' got no result: 'program' can't be run"):
        box.evaluate(np.array(0))
    assert box.n_rejected == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(Unavailable, match=r"'sh' can't be run: .*nowhere"):
        script("echo $mood", folder=tmp_path / "nowhere")(1.0)


INTERRUPTED = """
import signal, sys, pymc_kmc as kmc
# A shell may have let it ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
kmc.command(["sh", "-c", "sleep $x & echo $$! > {0}/pid; wait"], ["x"], folder="{0}/calls")(60)
"""


def test_ctrl_c_ends_the_program_and_its_children(tmp_path):
    (tmp_path / "calls").mkdir()
    code = INTERRUPTED.format(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60.0
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert not list((tmp_path / "calls").iterdir())


def test_ctrl_c_while_the_program_starts(tmp_path, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            script("sleep 60; $mood", folder=tmp_path)("true")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert has_ended(started[0])
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_the_program_ends(tmp_path, monkeypatch):
    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            status = super().wait(timeout)  # Popen waits for a moment longer
            if timeout is not None:
                raise KeyboardInterrupt
            return status

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        script("$mood", folder=tmp_path, timeout=60)("true")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arguments": ["nowhere", "$a"]}, FileNotFoundError, "the program 'nowhere' isn't there"),
        ({"arguments": [__file__, "$a"]}, PermissionError, "can't be executed: chmod"),
        ({"parameters": ["a", "b"]}, ValueError, r"parameters=\['a', 'b'\] must be .*\['a'\]"),
        ({"parameters": []}, ValueError, r"parameters=\[\] must be .*\['a'\]"),
        ({"parameters": "a"}, ValueError, "parameters='a' must be a list of names"),
        ({"files": {"in": "$a $b"}}, ValueError, r"parameters=\['a'\] must be .*\['a', 'b'\]"),
        ({"files": {"in": "$a costs 5$"}}, ValueError, "write [$][$] for a dollar in '[$]a costs"),
        ({"files": {"in": Path("nowhere")}}, FileNotFoundError, "nowhere"),
        ({"timeout": -1}, ValueError, "timeout must be a positive number of seconds, got -1"),
    ],
)
def test_bad_arguments(options, error, message):
    options = {"arguments": ["sh", "$a"], "parameters": ["a"]} | options
    with pytest.raises(error, match=message):
        kmc.command(**options)
