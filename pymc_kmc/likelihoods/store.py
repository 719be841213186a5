"""Every evaluation in an SQLite file: what was computed once is never computed again.

The *key* of an evaluation is a digest of its parameters and noise, bit for bit; whole numbers and
numbers in single precision are 64-bit floats in it, as a table's are. A run with the same seed asks
for the same keys: after a kill it repeats the same draws without evaluations.

The file has a write-ahead log (WAL): writers wait for each other, readers for none. Each evaluation
is committed by itself. ``synchronous=NORMAL`` spares the flush to the disk, of milliseconds: a
dying process loses nothing, a power failure the last evaluations, and neither damages the file.
"""

import atexit
import json
import os
import sqlite3
import threading
import warnings
from contextlib import contextmanager
from hashlib import blake2b
from time import monotonic, sleep
from typing import NamedTuple

import numpy as np

from pymc_kmc.likelihoods.checks import WrongResult, as_real_array, check_name
from pymc_kmc.likelihoods.executors import Failure

TABLES_FORM = 1  # version of the file's tables
APPLICATION_ID = 0x4B4D4345  # SQLite's application_id of a store, "KMCE"
LONGEST_WAIT = 60.0  # seconds to wait for another writer: a merge of 10^6 rows takes ten
PAUSE = 0.01  # seconds between attempts to begin a log: here SQLite itself doesn't wait
MOST_EXACT = 2**53  # up to here whole numbers are exact as 64-bit floats
DIGEST_SIZE = 16  # bytes of a key: two of 10^6 are equal with probability 10^-27
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS functions
    (name TEXT PRIMARY KEY, version TEXT, kind TEXT, parameters TEXT, shape TEXT);
CREATE TABLE IF NOT EXISTS evaluations
    (name TEXT, key BLOB, parameters BLOB, noise BLOB, outputs BLOB, seconds REAL, failure TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS keys ON evaluations (name, key);
PRAGMA user_version={TABLES_FORM};
PRAGMA application_id={APPLICATION_ID};
COMMIT;
"""

# Names of what a table has besides parameters, its dimension among them.
OWN_COLUMNS = ("outputs", "seconds", "failure", "evaluation")

BLACK_BOX = "results"  # what a black box's evaluations are called; a likelihood's have other names

# By path, process and thread, with the identity of the file: SQLite's connections survive no fork.
# Children keep their parent's, since closing them would release the parent's locks.
_connections: dict = {}
# Paths of stores that failed: this process no longer writes into them.
_given_up: set = set()


class StoredFailure(WrongResult):
    """A failure of an earlier run: its `kind` for counts, the message and the seconds."""

    def __init__(self, kind, message, seconds):
        super().__init__(message)
        self.kind, self.seconds = kind, seconds


class FunctionEvaluations(NamedTuple):
    """The evaluations of one function in a store.

    Attributes
    ----------
    name, version, kind : str
        Its name, its version if one was given, and what is stored of it.
    parameters : tuple
        A pair of name and shape for each parameter; None in a shape is any length.
    shape : tuple
        Shape of a result, or of one replicate's result for an estimate.
    n_evaluations, n_failed, seconds : int, int, float
        Number of evaluations, of failed ones among them, and seconds that all took.
    """

    name: str
    version: str | None
    kind: str
    parameters: tuple
    shape: tuple
    n_evaluations: int = 0
    n_failed: int = 0
    seconds: float = 0.0

    def __str__(self):
        names = ", ".join(f"{name} {shape}" for name, shape in self.parameters)
        version = "without a version" if self.version is None else f"in version {self.version!r}"
        return f"{self.kind} of shape {self.shape}, of {names}, {version}"

    def fits(self, other):
        """Return whether two have the same version, kind and order, and fitting shapes."""
        names = [[key for key, _ in each.parameters] for each in (self, other)]
        if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
            return False  # its evaluations have one parameter's values in place of another's
        shapes = [[each.shape, *(s for _, s in each.parameters)] for each in (self, other)]
        same = (self.version, self.kind) == (other.version, other.kind)
        return same and len(shapes[0]) == len(shapes[1]) and all(map(_fit, *shapes))


def _fit(first, second):
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a == b or None in (a, b) for a, b in pairs)


class EvaluationStore:
    """A file that keeps every evaluation of black boxes and noisy likelihoods.

    Give it as ``store=`` to any number of :func:`BlackBox` and potentials. What is in it is never
    computed again: the same script resumes a killed run, with the same draws as without the kill.

    Processes of one machine may write at once. Evaluations on an executor are written by the
    process that asked for them.

    Parameters
    ----------
    path : str or os.PathLike
        The file, an SQLite database on a local disk; it is made if needed, its folder too. While in
        use, files of the same name with "-wal" and "-shm" are part of it.
    version : str or int, optional
        Version of the functions. Raise it, and take another file, when a function's results change:
        a store knows a function by its name and the shapes of its parameters and result. A file
        with another version is refused.

    Raises
    ------
    OSError
        If the file can't be opened, written or read.
    ValueError
        If it is another program's, or from another version of pymc_kmc.

    See Also
    --------
    learn : Takes a store as ``evaluations=``.

    Examples
    --------
    >>> import tempfile, numpy as np, pymc as pm, pymc_kmc as kmc
    >>> store = kmc.EvaluationStore(tempfile.mkdtemp() + "/decay.db")
    >>> with pm.Model() as model:
    ...     rate = pm.HalfNormal("rate", 1.0)
    ...     mean = kmc.BlackBox("decay", lambda rate: np.exp(-rate), rate, store=store)
    >>> len(store)
    1
    """

    def __init__(self, path, version=None):
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise TypeError(f"path={path!r} must be the path of a file, e.g. 'runs/model.db'.")
        if isinstance(version, bool) or not isinstance(version, str | int | None):
            raise TypeError(f"version={version!r} must be a string or a whole number.")
        self.path = os.path.abspath(os.fspath(path))
        self.version = None if version is None else str(version)
        self._execute("SELECT 1")

    def __len__(self) -> int:
        """Return the number of evaluations of all functions."""
        return self._execute("SELECT count(*) FROM evaluations").fetchone()[0]

    def __repr__(self) -> str:
        counts = ", ".join(f"{each.n_evaluations} of {each.name!r}" for each in self.functions)
        return f"EvaluationStore({self.path!r}: {counts or 'empty'})"

    @property
    def functions(self) -> list:
        """List of FunctionEvaluations, one a function."""
        statement = (
            "SELECT f.*, count(key), count(failure), total(seconds) FROM functions f"
            " LEFT JOIN evaluations USING (name) GROUP BY f.name ORDER BY f.rowid"
        )
        return [_described(row) for row in self._execute(statement)]

    def add(self, name, parameters, outputs) -> None:
        """Write a table of evaluations of a black box that were made elsewhere.

        Parameters
        ----------
        name : str
            Name of the black box.
        parameters : dict of str to array_like, shape (n, ...), or pandas.DataFrame
            Values of its parameters, in order, on their natural scale. They are found again if
            equal to the last bit, as 64-bit floats.
        outputs : array_like, shape (n, ...)
            Results of the function.

        Raises
        ------
        TypeError, ValueError
            If the arguments aren't real with n rows each, or the store's function is another.
        """
        check_name(name)
        try:
            parameters = dict(parameters)
            *columns, values = [
                as_real_array(value, (len(value), *np.shape(value)[1:]))
                for value in [*parameters.values(), outputs]
            ]
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"parameters and outputs of {name!r} must be a dict of arrays and an array, of "
                f"real numbers: {error}."
            ) from None
        lengths = [len(column) for column in (*columns, values)]
        if not columns or len(set(lengths)) != 1:
            of = [*map(str, parameters), "outputs"]
            raise ValueError(
                "parameters and outputs must have as many rows; got "
                f"{list(zip(of, lengths, strict=True))}."
            )
        shapes = [(str(key), each.shape[1:]) for key, each in zip(parameters, columns, strict=True)]
        function = StoredFunction(self, name, BLACK_BOX, shapes, values.shape[1:])
        with _explained(self.path):
            for *row, value in zip(*columns, values, strict=True):
                function.insert(row, (), value, None)

    def merge(self, other) -> None:
        """Add the evaluations of another store that this one doesn't have.

        Parameters
        ----------
        other : EvaluationStore, str or os.PathLike
            The store, or its path.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If both have a function of one name that differs, or of another version.
        """
        path = other.path if isinstance(other, EvaluationStore) else os.fspath(other)
        if not os.path.exists(path):
            raise FileNotFoundError(f"other={path!r} doesn't exist: give the path of a store.")
        other = EvaluationStore(path)
        for each in other.functions:
            self._register(each)
        self._execute("ATTACH ? AS other", (other.path,))
        try:
            self._execute("INSERT OR IGNORE INTO evaluations SELECT * FROM other.evaluations")
        finally:
            self._execute("DETACH other")

    def to_xarray(self, name):
        """Return the evaluations of a function as an `xarray.Dataset`, in the order of writing.

        Parameters
        ----------
        name : str
            Name of the function.

        Returns
        -------
        xarray.Dataset
            Its parameters by name, and `outputs`, `seconds` and `failure`, along the dimension
            "evaluation". Outputs are those of replicates for an estimate, NaN for a failure. A
            parameter with one of these names, or an earlier parameter's, is ``params[i]``, the i-th
            from 0.
        """
        import xarray as xr

        found = xr.Dataset()
        for key, array in self._columns(name).items():
            found[key] = ["evaluation", *(f"{key}_dim_{i}" for i in range(array.ndim - 1))], array
        return found

    def to_pandas(self, name):
        """Return the evaluations of a function as a `pandas.DataFrame`, in the order of writing.

        Arguments and columns are as of :meth:`to_xarray`; array entries are columns, ``rates[0]``.
        """
        import pandas as pd

        columns = {}
        for key, array in self._columns(name).items():
            for index in np.ndindex(array.shape[1:]):
                label = f"{key}[{', '.join(map(str, index))}]" if index else key
                columns[label] = array[(slice(None), *index)]
        return pd.DataFrame(columns)

    def rows(self, name):
        """Yield (parameters, noise, outputs, seconds, failure) of a function's evaluations.

        `parameters` and `noise` are lists of arrays, `noise` empty for a black box. For a failure
        the array `outputs` is None and `failure` is (kind, message).
        """
        for parameters, noise, outputs, seconds, failure in self._execute(
            "SELECT parameters, noise, outputs, seconds, failure FROM evaluations WHERE name = ?"
            " ORDER BY rowid",
            (name,),
        ):
            found = None if outputs is None else unpack(outputs)[0]
            failed = None if failure is None else tuple(json.loads(failure))
            yield unpack(parameters), unpack(noise), found, seconds, failed

    def _columns(self, name):
        described = {each.name: each for each in self.functions}
        if name not in described:
            raise ValueError(f"name={name!r} must be one of {list(described)}, in {self.path!r}.")
        rows = list(self.rows(name))
        names: list = []
        for i, (key, _) in enumerate(described[name].parameters):
            names.append(f"params[{i}]" if key in (*OWN_COLUMNS, *names) else key)
        columns = {key: _padded([row[0][i] for row in rows]) for i, key in enumerate(names)}
        columns["outputs"] = _padded([row[2] for row in rows])
        columns["seconds"] = np.array([row[3] for row in rows], dtype=float)
        columns["failure"] = np.array(["" if row[4] is None else row[4][1] for row in rows], object)
        return columns

    # The file

    def _execute(self, statement, values=()):
        with _explained(self.path):
            return _connection(self.path).execute(statement, values)

    def _register(self, new):
        """Enter FunctionEvaluations; raise a ValueError if the name is another function's."""
        row = *new[:3], json.dumps(new.parameters), json.dumps(new.shape)
        self._execute("INSERT OR IGNORE INTO functions VALUES (?, ?, ?, ?, ?)", row)
        found = self._execute("SELECT * FROM functions WHERE name = ?", (new.name,)).fetchone()
        if not (known := _described(found)).fits(new):
            raise ValueError(
                f"store {self.path!r} has another {new.name!r}: it has {known}; this is {new}. "
                "Give another path, or the version, shapes and order that it was written with."
            )


StoreLike = EvaluationStore | str | os.PathLike


def as_store(store, name):
    """Return the store of a function `name`, opened if it is a path; or raise a TypeError."""
    if isinstance(store, EvaluationStore):
        return store
    if not isinstance(store, StoreLike):
        raise TypeError(
            f"store of {name!r} must be a path or a kmc.EvaluationStore, got {store!r}."
        )
    return EvaluationStore(store)


class StoredFunction:
    """A function in a store, for the Op that calls it.

    Arguments but the first are those of :class:`FunctionEvaluations`. Raises a ValueError if the
    store has another function of that name. A later fault of the file ends storing only, until
    a model is built with it again.
    """

    def __init__(self, store, name, kind, params, shape):
        store = as_store(store, name)
        self.store, self.path, self.name = store, store.path, name
        self.entry = FunctionEvaluations(name, store.version, kind, tuple(params), tuple(shape))
        store._register(self.entry)
        _given_up.discard(self.path)  # the file can be written to again

    def find(self, parameters, noise):
        """Return the stored outputs with their extras, a list, or a Failure; None if not stored."""
        try:
            row = self._found(_row_key(parameters, noise))
            if row is None and not _are_floats(parameters):
                row = self._found(_digest(parameters, noise))  # of stores from before
            if row is None or row[2] is None:
                return row and unpack(row[0])
            kind, message = json.loads(row[2])
            return Failure(0, StoredFailure(kind, message, row[1]), "")
        except (sqlite3.Error, OSError, ValueError) as error:
            self._give_up(error)
            return None

    def _found(self, key):
        return self._execute(
            "SELECT outputs, seconds, failure FROM evaluations WHERE name = ? AND key = ?",
            (self.name, key),
        ).fetchone()

    def write(self, *row, **options):
        """Do :meth:`insert`; warn of a fault of the file once and write no more."""
        if self.path not in _given_up:
            try:
                self.insert(*row, **options)
            except (sqlite3.Error, OSError, ValueError) as error:
                self._give_up(error)

    def insert(self, parameters, noise, outputs, seconds, failure=None, extras=(), replace=True):
        """Store outputs and arrays `extras`, or a failure (kind, message); raise the file's faults.

        Without `replace` what is stored for these parameters stays.
        """
        key = _row_key(parameters, noise)
        values = None if failure is not None else pack([outputs, *extras])
        failure = None if failure is None else json.dumps(failure)
        row = key, pack(parameters), pack(noise), values, seconds, failure
        how = "REPLACE" if replace else "IGNORE"
        statement = f"INSERT OR {how} INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._execute(statement, (self.name, *row))

    def _execute(self, statement, values):
        connection = _connected(self.path)
        if connection is None:  # perhaps the file was deleted: a new one has no entry
            self.store._register(self.entry)
            connection = _connection(self.path)
        return connection.execute(statement, values)

    def _give_up(self, error):
        if self.path not in _given_up:
            _given_up.add(self.path)
            warnings.warn(
                f"The store {self.path!r} failed: {error}. This process goes on without storing "
                "its evaluations until a model is built with it again; those stored until now are "
                "not lost.",
                UserWarning,
                stacklevel=2,
            )


def pack(arrays):
    """Return arrays as bytes: a line with their types and shapes, then their contents."""
    arrays = [np.asarray(array) for array in arrays]
    head = json.dumps([(array.dtype.str, array.shape) for array in arrays])
    return b"\n".join([head.encode(), b"".join([array.tobytes() for array in arrays])])


def unpack(content):
    """Return the list of arrays of :func:`pack`."""
    head, content = content.split(b"\n", 1)
    arrays, begin = [], 0
    for dtype, shape in json.loads(head):
        n = int(np.prod(shape))
        array = np.frombuffer(content, dtype, n, begin).reshape(shape).copy()
        arrays.append(array)
        begin += array.nbytes
    return arrays


def _row_key(parameters, noise):
    return _digest([_as_floats(array) for array in parameters], noise)


def _digest(parameters, noise):
    content = pack(parameters) + b"\n" + pack(noise)
    return blake2b(content, digest_size=DIGEST_SIZE).digest()


def _are_floats(arrays):
    return all(np.asarray(array).dtype == np.float64 for array in arrays)


def _as_floats(array):
    """Return an array, of 64-bit floats if its numbers are exact as such."""
    array = np.asarray(array)
    if array.dtype.kind in "biu":
        is_exact = ((array >= -MOST_EXACT) & (array <= MOST_EXACT)).all()
    else:
        is_exact = np.can_cast(array.dtype, np.float64)
    return array.astype(np.float64) if is_exact else array


def _described(row):
    """Return the FunctionEvaluations of a row of the table of functions and counts."""
    name, version, kind, parameters, shape, *counts = row
    pairs = tuple((key, tuple(lengths)) for key, lengths in json.loads(parameters))
    return FunctionEvaluations(name, version, kind, pairs, tuple(json.loads(shape)), *counts)


def _padded(arrays):
    """Return arrays (or None) as one of floats, padded with NaN."""
    shapes = [array.shape for array in arrays if array is not None]
    full = np.full((len(arrays), *map(max, zip(*shapes, strict=True))), np.nan)
    for i, array in enumerate(arrays):
        if array is not None:
            full[(i, *map(slice, array.shape))] = array
    return full


@contextmanager
def _explained(path):
    """Raise faults of a file as an OSError with the path and a remedy."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        remedy = "Give a path in a folder that can be written to, on a local disk with room."
        if "locked" in str(error):
            remedy = f"Another program has held it for {LONGEST_WAIT:g} seconds: end it, or wait."
        elif "malformed" in str(error) or "not a database" in str(error):
            remedy = "It is damaged, or no store: give another path. Nothing was changed in it."
        raise OSError(f"store {path!r} can't be used: {error}. {remedy}") from error


def _key_here(path):
    return path, os.getpid(), threading.get_ident()


def _file_at(path):
    """Return what tells a file from those deleted before, while these are open; None if none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _connected(path):
    """Return this thread's connection to the file that the path leads to now, or None."""
    connection, file = _connections.get(_key_here(path), (None, None))
    return connection if connection is not None and file == _file_at(path) else None


def _connection(path):
    """Return this thread's connection, a new one if the file was deleted or replaced."""
    if (connection := _connected(path)) is not None:
        return connection
    key = _key_here(path)
    if key in _connections:
        _connections.pop(key)[0].close()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=LONGEST_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        _open(connection, path)
    except BaseException:
        connection.close()
        raise
    _connections[key] = connection, _file_at(path)
    return connection


def _open(connection, path):
    """Make the tables and the log of a new file; raise a ValueError if it is no store."""
    # In this order: another process may make the tables meanwhile.
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != APPLICATION_ID and not is_empty:
        raise ValueError(f"store {path!r} is another program's database: give another path.")
    if mark == APPLICATION_ID and form != TABLES_FORM:
        raise ValueError(
            f"store {path!r} was written by another version of pymc_kmc, in form {form}; this one "
            f"has form {TABLES_FORM}. Give another path."
        )
    deadline = monotonic() + LONGEST_WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > deadline:
                raise
            sleep(PAUSE)
    connection.execute("PRAGMA synchronous=NORMAL")
    if mark != APPLICATION_ID:
        connection.executescript(SCHEMA)


@atexit.register
def _close():
    for (_, process, _), (connection, _) in _connections.items():
        if process == os.getpid():
            connection.close()
