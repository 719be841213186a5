"""Tasks that travel to the workers of an executor."""

import pickle
import traceback
from functools import lru_cache
from hashlib import sha256

import cloudpickle

from pymc_kmc.likelihoods.executors import Failure

MOST_PAYLOADS = 8  # unpacked tasks that a worker keeps, one a potential: some hold large data


class Shipped:
    """An object, closures too, that `cloudpickle` packs once and each worker unpacks once."""

    def __init__(self, content):
        self._content = content
        self._payload = None

    @property
    def content(self):
        if self._content is None:
            self._content = unpack(self._payload)
        return self._content

    def __getstate__(self):
        if self._payload is None:
            self._payload = Payload(cloudpickle.dumps(self._content))
        return self._payload

    def __setstate__(self, payload):
        # Unpacked at the first call: an exception here would kill a pool's worker, unexplained.
        self._content, self._payload = None, payload


def call(task, arguments, random, row=0):
    """Return a task's result, or the :class:`Failure` of a row of noise."""
    try:
        # [()] makes numbers of 0-d arrays. Copies: the task may write into its arguments.
        return task(*[value.copy()[()] for value in arguments], **random)
    except (Exception, SystemExit) as error:
        # Without the frames of this function and of the task's own wrapper. Foreign code ends
        # itself with sys.exit.
        frames = traceback.format_tb(error.__traceback__)[2:]
        return Failure(row, error, "".join(frames))


class RunOnce(Shipped):
    """Runs a task once; see :func:`call`."""

    def __call__(self, arguments, random):
        return call(self.content, arguments, random)


class RunRows(Shipped):
    """Runs a task for rows of noise."""

    def __init__(self, task, noise):
        super().__init__((task, noise))

    def __call__(self, rows, arguments):
        """Return the task's results for `rows`, or the first :class:`Failure`."""
        task, noise = self.content
        results = []
        calls = [(slice(None), rows)] if noise.is_joint else enumerate(rows)
        for index, row in calls:
            result = call(task, arguments, noise.inputs(row), index)
            if isinstance(result, Failure):
                return result
            results.append(result)
        return results[0] if noise.is_joint else results


class Payload:
    """Bytes that a cache compares by their digest."""

    def __init__(self, content):
        self.content = content
        self.digest = sha256(content).digest()

    def __eq__(self, other):
        return self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


@lru_cache(maxsize=MOST_PAYLOADS)
def unpack(payload):
    """Return the content of a payload, unpacked once for all tasks of a worker."""
    return pickle.loads(payload.content)
