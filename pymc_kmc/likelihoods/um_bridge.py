"""Models behind UM-Bridge servers, in any language, as black boxes.

A model of the UM-Bridge protocol takes and returns lists of vectors, here called blocks, over HTTP.
This module adds a time limit and explained errors to the client of the package umbridge.
"""

import json
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any, Literal

import numpy as np
import pymc as pm
from pytensor.tensor import TensorVariable

from pymc_kmc.likelihoods.black_box import BlackBox
from pymc_kmc.likelihoods.checks import WrongResult
from pymc_kmc.likelihoods.executors import Unavailable, check_time_limit
from pymc_kmc.likelihoods.store import StoreLike

LONGEST_ANSWER = 200  # characters of an answer that messages quote: an HTML page has thousands
# Python's servers write these numbers as Python does, which isn't JSON.
NUMBERS = {"nan": "NaN", "inf": "Infinity"}


def umbridge(
    url: str,
    model_name: str,
    *params: TensorVariable,
    config: dict[str, Any] | None = None,
    name: str | None = None,
    timeout: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    on_error: Literal["raise", "reject"] = "raise",
    store: StoreLike | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Make a tensor of a model behind a UM-Bridge server: any language, any machine, a cluster.

    It is a :func:`BlackBox` with the sizes that the server reports when the model is built;
    gradients of the server are not used. Needs umbridge: ``pip install 'pymc-kmc[umbridge]'``.

    Parameters
    ----------
    url : str
        Address of the server or of its load balancer, such as "http://localhost:4242".
    model_name : str
        Name of a model that it serves.
    *params : TensorVariable
        The model's variables or expressions of them, which fill the input blocks in order. A block
        may take several; none may be split between blocks.
    config : dict, optional
        The configuration that the model is called with.
    name : str, optional
        Name of the black box, by default `model_name`.
    timeout : float, optional
        Seconds for an answer, by default any. Then an error ends the sampling, whatever `on_error`:
        the server is still busy, and the next call would wait for it.
    executor : concurrent.futures.Executor or callable, optional
        Executor that asks the server for batches of points, with a thread for each of its workers:
        ``executor=lambda: ThreadPoolExecutor(16)``.
    on_error : {"raise", "reject"}
        The treatment of points where the model fails; see :func:`BlackBox`. An unreachable server
        always ends the sampling.
    store : str, os.PathLike or EvaluationStore, optional
        File that keeps every evaluation; see :func:`BlackBox`.
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        float64, a vector of all output blocks, one after another.

    Raises
    ------
    ImportError
        If the package umbridge isn't installed.
    ConnectionError
        If the server doesn't answer, or not as a UM-Bridge server does.
    ValueError
        If it has no such model, or an argument is out of its range; as :func:`BlackBox` does too.
    TypeError
        If the params don't fill the input blocks, or `config` isn't a dict of what JSON has.
    BlackBoxError
        If the model fails.

    Examples
    --------
    .. code-block:: python

        with pm.Model() as model:
            depth = pm.LogNormal("depth", shape=2)
            speed = pm.HalfNormal("speed")
            gauges = kmc.umbridge("http://localhost:4242", "tsunami", depth, speed)
            pm.Normal("y", gauges, 0.1, observed=measured)
    """
    function = ServerModel(url, model_name, config, timeout)
    return BlackBox(
        model_name if name is None else name,
        function,
        *params,
        shape=sum(function.output_sizes),
        executor=executor,
        on_error=on_error,
        store=store,
        model=model,
    )


class ServerModel:
    """A server's model as a function of its params, which fill its input blocks; pickles."""

    def __init__(self, url, model_name, config, timeout):
        try:
            from umbridge import HTTPModel, supported_models
        except ImportError as error:
            raise ImportError(
                "kmc.umbridge needs the package umbridge: pip install 'pymc-kmc[umbridge]'."
            ) from error
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r} must be an address such as 'http://localhost:4242'.")
        check_time_limit(timeout)
        self.url, self.model_name = url.rstrip("/"), model_name
        self.config, self.timeout = checked_config(config), timeout
        try:
            models = self._asked(supported_models, self.url)
            if model_name not in models:
                raise ValueError(
                    f"model_name={model_name!r} isn't among the models of {url!r}: {models}."
                )
            self._client = self._asked(HTTPModel, self.url, model_name)
            self.input_sizes = self._asked(self._client.get_input_sizes, self.config)
            self.output_sizes = self._asked(self._client.get_output_sizes, self.config)
        except (Unavailable, RuntimeError) as error:
            raise ConnectionError(f"kmc.umbridge: {error}") from error

    def __call__(self, *values):
        vectors = [np.ravel(np.asarray(value, dtype=float)) for value in values]
        sizes, ends = [len(vector) for vector in vectors], np.cumsum(self.input_sizes)
        if not set(ends) <= {0, *np.cumsum(sizes)} or sum(sizes) != sum(self.input_sizes):
            raise WrongResult(
                f"takes input blocks of {self.input_sizes} values from params of {sizes}, which "
                f"don't fill them one after another (model {self.model_name!r} at {self.url!r})."
            )
        blocks = np.split(np.concatenate(vectors), ends[:-1])
        outputs = self._asked(self._client, [block.tolist() for block in blocks], self.config)
        return np.concatenate([np.asarray(block, dtype=float) for block in outputs])

    def _asked(self, function, *arguments):
        """Call the client; raise Unavailable if the server is to blame, else RuntimeError."""
        server = f"the model {self.model_name!r} of the UM-Bridge server {self.url!r}"
        try:
            return within(self.timeout, function, *arguments)
        except TimeoutError as error:
            text = f"{server} took longer than timeout={self.timeout:g} seconds."
            raise Unavailable(f"{text} Give it more, or make the server faster.") from error
        except ValueError as error:  # before OSError, which requests' errors of JSON are too
            return self._outputs_of(getattr(error, "doc", str(error)), server)
        except OSError as error:
            while error.__context__ is not None:  # requests wraps the reason several times
                error = error.__context__
            text = f"{server} can't be reached: {error}."
            raise Unavailable(f"{text} Is the server running, and is this its address?") from error
        except Exception as error:
            raise RuntimeError(f"{server} failed: {error}") from error

    def _outputs_of(self, answer, server):
        """Return the outputs of an answer with Python's inf or nan, which JSON lacks, or raise."""
        if answer.startswith('{"output"'):
            written = re.sub(r"\b(nan|inf)\b", lambda found: NUMBERS[found[0]], answer)
            return json.loads(written)["output"]
        text = f"{server} answered {answer[:LONGEST_ANSWER]!r}. Its log may say more."
        # The answer of Python's server where the model raises an exception.
        raise RuntimeError(text) if answer.startswith("500 ") else Unavailable(text)


def within(seconds, function, *arguments):
    """Return a function's result, or raise a TimeoutError and leave the call to a daemon thread."""
    if seconds is None:
        return function(*arguments)
    future: Future = Future()

    def run():
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(seconds)


def checked_config(config):
    """Return a configuration as a dict; raise a TypeError if JSON can't express it."""
    config = {} if config is None else config
    try:
        return dict(json.loads(json.dumps(config)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"config={config!r} must be a dict of what JSON has: {error}.") from None
