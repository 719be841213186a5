"""Programs that read files and write files, as functions of parameters.

Templates are those of :class:`string.Template`, where ``$rate`` is a value: input files (JSON,
namelists, C) often have the braces of Python's formats, and rarely dollars.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from string import Template
from tempfile import mkdtemp
from typing import Any

import numpy as np

from pymc_kmc.likelihoods.executors import Unavailable, check_time_limit, noticed_interrupts

STDOUT, STDERR = "stdout.txt", "stderr.txt"  # what the program prints, in its directory
MOST_SEED = 2**31  # bound of seeds: programs read signed 32-bit integers
LINES_OF_LOG = 10  # last lines of a failing program's output that a message quotes
MOST_KEPT = 20  # failed calls whose directories a process keeps: rejections may be thousands

# Directories of this process's failed calls, the oldest first.
_kept: deque = deque()


def command(
    arguments: str | Sequence[str],
    parameters: Sequence[str],
    *,
    files: Mapping[str, str | os.PathLike] | None = None,
    output: str | None = None,
    parse: Callable[[Path], Any] = np.loadtxt,
    shape: int | tuple[int, ...] | None = None,
    timeout: float | None = None,
    folder: str | os.PathLike | None = None,
) -> Callable[..., Any]:
    """Make a function of a command line: a compiled program, a script, in any language.

    It is the function of a :func:`BlackBox`, or with ``$seed`` the estimator or simulator of a
    noisy likelihood. Each call writes `files` into a new directory, runs the program there, reads
    its output and removes the directory. After a failure it stays (the last 20 do), and the error
    has its path.

    Parameters
    ----------
    arguments : str or sequence of str
        The program and its arguments, templates. A string is split as by a shell, but none runs.
        The program is looked up when the function is made. Other relative paths start at the call's
        directory: give absolute ones to files of yours.
    parameters : sequence of str
        Names of the function's parameters, in their order. ``$name`` in a template is the value,
        with all digits; entries of an array are separated by spaces, rows by line feeds. ``$$`` is
        a dollar. ``$seed`` is a whole number below 2^31, drawn from ``rng=``.
    files : dict of str to str or os.PathLike, optional
        Templates of the files that the program reads, by name: a text or its `pathlib.Path`.
    output : str, optional
        Name of the file that the program writes, by default what it prints.
    parse : callable
        ``parse(path) -> array_like`` reads the output, by default `numpy.loadtxt`. Other files of
        the call are beside it, as ``path.parent / "log"``.
    shape : int or tuple of int, optional
        Shape that `parse` must return. A result of another shape is a failure.
    timeout : float, optional
        Seconds after which the program is killed, with all processes that it has started.
    folder : str or os.PathLike, optional
        Folder of the directories, by default that of temporary files.

    Returns
    -------
    callable
        ``function(*param_values)``, with ``$seed`` ``function(*param_values, rng=)``. It pickles.

    Raises
    ------
    FileNotFoundError, PermissionError
        If the program or a template's file isn't there, or the program can't be executed.
    ValueError
        If a template has a name that isn't among `parameters`, or a parameter is in none of them.

    Examples
    --------
    >>> import sys, numpy as np, pymc as pm, pymc_kmc as kmc
    >>> script = "print(*[$amplitude * 2.0 ** (-t / $half_life) for t in range(5)])"
    >>> decay = kmc.command(
    ...     [sys.executable, "decay.py"], ["amplitude", "half_life"], files={"decay.py": script}
    ... )
    >>> decay(4.0, 1.0)
    array([4.  , 2.  , 1.  , 0.5 , 0.25])
    >>> with pm.Model():
    ...     amplitude, half_life = pm.HalfNormal("amplitude"), pm.HalfNormal("half_life")
    ...     mean = kmc.BlackBox("decay", decay, amplitude, half_life, shape=5)
    """
    return Command(arguments, parameters, files or {}, output, parse, shape, timeout, folder)


class Command:
    """A command line as a function; see :func:`command`."""

    def __init__(self, arguments, parameters, files, output, parse, shape, timeout, folder):
        arguments = shlex.split(arguments) if isinstance(arguments, str) else arguments
        program, *rest = map(os.fspath, arguments)
        self.name = Path(program).name
        self._arguments = [_executable(program), *rest]
        self._files = {
            name: text if isinstance(text, str) else Path(text).read_text(encoding="utf-8")
            for name, text in files.items()
        }
        check_time_limit(timeout)
        self._output, self._parse, self.timeout = output or STDOUT, parse, timeout
        self._shape = (shape,) if isinstance(shape, int) else shape
        self._folder = None if folder is None else os.path.abspath(folder)
        is_seeded = _check_names(self._arguments + list(self._files.values()), parameters)
        # Python's own words, such as lambda, are names of parameters by position alone.
        is_word = any(map(iskeyword, parameters))
        kind = Parameter.POSITIONAL_ONLY if is_word else Parameter.POSITIONAL_OR_KEYWORD
        named = [Parameter(name, kind) for name in parameters]
        rng = [Parameter("rng", Parameter.KEYWORD_ONLY)] * is_seeded
        self.__signature__ = Signature(named + rng)

    def __repr__(self):
        return f"<Command {self.name!r} of {self.__signature__}>"

    def __call__(self, *values, **random):
        given = self.__signature__.bind(*values, **random).arguments
        if "rng" in random:
            given["seed"] = given.pop("rng").integers(MOST_SEED)
        texts = {name: _text(value) for name, value in given.items()}
        arguments = [Template(argument).substitute(texts) for argument in self._arguments]
        directory = None
        try:
            directory = Path(mkdtemp(prefix=f"{self.name}-", dir=self._folder))
            for name, template in self._files.items():
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(Template(template).substitute(texts), encoding="utf-8")
            status = _run(arguments, directory, self.timeout)
        except BaseException as error:
            if isinstance(error, subprocess.TimeoutExpired):
                text = f"took longer than timeout={self.timeout:g} seconds and was killed."
                raise self._failed(TimeoutError, text, directory) from None
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise Unavailable(f"{self.name!r} can't be run: {error}.") from error
        result = self._result(status, directory)
        shutil.rmtree(directory, ignore_errors=True)
        return result

    def _result(self, status, directory):
        if status in (-signal.SIGTERM, -getattr(signal, "SIGKILL", signal.SIGTERM)):
            # By someone, or by the system for want of memory: no matter of the parameters.
            raise self._failed(Unavailable, "was killed from outside.", directory)
        if status != 0:
            raise self._failed(RuntimeError, f"ended with exit status {status}.", directory)
        path = directory / self._output
        if not path.exists():
            text = f"ended without a file {self._output!r}."
            raise self._failed(FileNotFoundError, text, directory)
        try:
            result = self._parse(path)
            shape = np.shape(result)
        except Exception as error:
            text = f"wrote {self._output!r}, which can't be read ({type(error).__name__}: {error})."
            raise self._failed(ValueError, text, directory) from error
        if self._shape not in (None, shape):
            text = f"wrote {self._output!r} with numbers of shape {shape}, not {self._shape}."
            raise self._failed(ValueError, text, directory)
        return result

    def _failed(self, kind, text, directory):
        """Keep a directory; return an error with its path and the end of the program's log."""
        _kept.append(directory)
        while len(_kept) > MOST_KEPT:
            shutil.rmtree(_kept.popleft(), ignore_errors=True)
        for name in (STDERR, STDOUT):
            lines = (directory / name).read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                log = "\n".join([f"The end of {name}:", *lines[-LINES_OF_LOG:]])
                break
        else:
            log = "It printed nothing."
        return kind(f"{self.name!r} {text} Its directory is kept: {directory}\n{log}")


def _run(arguments, directory, seconds):
    """Run a program; return its status. Kill its process group after `seconds` and on Ctrl-C."""
    process = None
    try:
        with (
            open(directory / STDOUT, "wb") as out,
            open(directory / STDERR, "wb") as err,
            # One between the program's start and its handle would leave it running.
            noticed_interrupts(is_postponed=True),
        ):
            process = subprocess.Popen(
                arguments,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return process.wait(seconds)
    except BaseException:
        if process is not None:
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):  # ended while Popen handled Ctrl-C
                    os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
        raise


def _executable(program):
    """Return the absolute path of an executable program, or raise an error."""
    found = shutil.which(program)
    if found is not None:
        return os.path.abspath(found)
    if os.path.exists(program):
        raise PermissionError(f"the program {program!r} can't be executed: chmod +x {program}")
    raise FileNotFoundError(
        f"the program {program!r} isn't there: give its path, or put it on the PATH."
    )


def _check_names(templates, parameters):
    """Return whether templates have $seed; raise a ValueError unless they have the parameters."""
    if isinstance(parameters, str):
        raise ValueError(f"parameters={parameters!r} must be a list of names, {[parameters]}.")
    names: set = set()
    for template in map(Template, templates):
        if not template.is_valid():
            raise ValueError(
                "arguments and files may have $ before names only; write $$ for a dollar in "
                f"{template.template!r}."
            )
        names.update(template.get_identifiers())
    is_seeded = "seed" in names - set(parameters)
    if names - {"seed"} != set(parameters) - {"seed"}:
        raise ValueError(
            f"parameters={list(parameters)} must be the names after $ in arguments and files, "
            f"which are {sorted(names)}."
        )
    return is_seeded


def _text(value):
    rows = np.atleast_2d(value)
    return "\n".join(" ".join(map(repr, row)) for row in rows.reshape(-1, rows.shape[-1]).tolist())
