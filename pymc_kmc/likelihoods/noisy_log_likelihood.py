"""The Op of a likelihood that is estimated: a function of parameters and of frozen noise."""

import warnings

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_kmc._compat import expect_numba_fallback
from pymc_kmc.likelihoods.checks import WrongResult
from pymc_kmc.likelihoods.executors import ExecutorError, Failure
from pymc_kmc.likelihoods.n_replicates import TARGET_VARIANCE, choose_n_replicates

__all__ = ["EstimatorError", "NoisyLogLikelihood"]

# How many pairs of parameters and noise are remembered. A Metropolis step of another variable asks
# for two values in turn, Slice and NUTS come back to their starting point after a few more.
MEMORY = 8
# So many different parameter values under one noise mean that nothing ever renews it. A Slice step
# makes tens of evaluations an iteration, a NUTS tree at most 1023.
FROZEN_EVALUATIONS = 2000


class EstimatorError(RuntimeError):
    """A user's estimator raised, or returned something that isn't a number.

    The message has the parameter values and the seed that reproduce the call; in the process
    where it happened ``__cause__`` is the original exception.

    Attributes
    ----------
    noise : ndarray
        The seed, or the normal numbers, of that call; of all calls of the estimate, a row each,
        if an executor failed.
    """

    noise = None


class NoisyLogLikelihood(Op):
    """Log of an unbiased likelihood estimate: a function of parameters and of frozen noise.

    Two instances are never equal, and the noise must be a shared variable: PyTensor would otherwise
    merge equal nodes, and fold a node whose inputs are all constant.

    Parameters
    ----------
    name : str
        Name of the potential, for messages.
    replicates : Replicates
        Run what is estimated once for each row of noise.
    combine : callable
        ``combine(results) -> float`` makes the log estimate of the list of their results. It may
        have ``explain() -> str``, which says why a chain doesn't move, and ``forget()``, for what
        it remembers of a chain to that end.
    parameter_names : sequence of str
        Names of the parameters, for messages.
    what : str
        What the user's function is called in messages.
    n_replicates : int or "auto"
    target_variance : float
        Of the log estimate, for "auto".
    fewest : int
        Smallest number of replicates that `combine` can do with.

    Attributes
    ----------
    n_start : int
        Number of replicates that a chain begins with.
    n_calls : int
        How many estimates were made in this process.
    """

    def __init__(
        self,
        name,
        replicates,
        combine,
        parameter_names,
        *,
        what="estimator",
        n_replicates=1,
        target_variance=TARGET_VARIANCE,
        fewest=1,
    ):
        self.name = name
        self.replicates = replicates
        self.noise = replicates.noise
        self.combine = combine
        self.parameter_names = tuple(parameter_names)
        self.what = what
        self.is_auto = n_replicates == "auto"
        self.n_start = fewest if self.is_auto else n_replicates
        self.fewest = fewest
        self.target_variance = target_variance
        self.n_calls = 0
        self._memory = {}
        self._last_noise = None
        self._n_under_noise = 0

    def __str__(self):
        return f"NoisyLogLikelihood{{{self.name}}}"

    def make_node(self, noise, *parameters):
        return Apply(self, [noise, *map(pt.as_tensor_variable, parameters)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        noise, *parameters = inputs
        self._watch_for_frozen_noise(noise)
        output_storage[0][0] = np.asarray(self.evaluate(noise, *parameters))

    def evaluate(self, noise, *parameters):
        """Return the log estimate at `parameters` under `noise`.

        The last few values are remembered: under one noise the estimate is a deterministic
        function, so steps that don't move these parameters cost no evaluation.

        Parameters
        ----------
        noise : ndarray, shape (n_replicates, ...)
        *parameters : array_like
            Parameter values on their natural scale.

        Returns
        -------
        float
            May be NaN or infinite: what to do then is the step's business.

        Raises
        ------
        EstimatorError
            If the user's function raises or returns something of the wrong type, or an executor
            fails.
        """
        parameters = [np.asarray(value) for value in parameters]
        key = (noise.tobytes(), *(value.tobytes() for value in parameters))
        value = self._memory.pop(key, None)
        if value is None:
            value = self._call(noise, parameters)
            while len(self._memory) >= MEMORY:
                del self._memory[next(iter(self._memory))]
        self._memory[key] = value  # the last used is the last forgotten
        return value

    def refresh(self, noise):
        """Make the values under `noise`, the chain's current one, the last forgotten."""
        noise = noise.tobytes()
        for key in [key for key in self._memory if key[0] == noise]:
            self._memory[key] = self._memory.pop(key)

    def start_chain(self):
        """Forget what `combine` has seen in the last chain."""
        if hasattr(self.combine, "forget"):
            self.combine.forget()

    def explain(self):
        """Return what `combine` has to say of a chain that doesn't move, or an empty string."""
        explain = getattr(self.combine, "explain", None)
        return explain() if explain else ""

    def choose_n_replicates(self, start, parameters, rng):
        """Return the number of replicates with the target variance at `parameters`, and that."""

        def log_estimates(n):
            noise = self.noise.draw(n, rng)
            while True:
                yield self._call(noise, parameters)
                noise = self.noise.renew(noise, rng)

        return choose_n_replicates(log_estimates, start, self.target_variance, self.fewest)

    def try_out(self, noise, parameters):
        """Make one estimate in this process, for the exceptions of :meth:`evaluate`."""
        return self._call(noise, parameters, self.replicates.here)

    def _call(self, noise, parameters, run=None):
        self.n_calls += 1
        parameters = [np.asarray(value) for value in parameters]
        try:
            results = (run or self.replicates)(noise, parameters)
        except ExecutorError as error:
            raised = EstimatorError(
                f"The executor of {self.name!r} did not return the {self.what}'s results: {error}\n"
                f"Parameters: {self._shown(parameters)}\n"
                f"One of the calls had {self.noise.describe(noise[0])}; error.noise has a row each."
            )
            raised.noise = noise
            raise raised from error.__cause__
        if not isinstance(results, Failure):
            return self.combine(results)
        error, row = results.error, noise[results.index]
        how = (
            f"Parameters: {self._shown(parameters)}\n"
            f"To reproduce it, call the {self.what} with {self.noise.describe(row)}"
        )
        if isinstance(error, WrongResult):
            raised = EstimatorError(f"The {self.what} of {self.name!r} {error}\n{how}")
            cause = None
        else:
            raised = EstimatorError(
                f"The {self.what} of {self.name!r} raised {type(error).__name__}: {error}\n"
                f"{how}\n{results.frames}"
            )
            cause = error
        raised.noise = row
        raise raised from cause

    def _shown(self, parameters):
        return ", ".join(
            f"{name}={np.array2string(value, separator=', ', floatmode='unique')}"
            for name, value in zip(self.parameter_names, parameters, strict=True)
        )

    def _watch_for_frozen_noise(self, noise):
        """Warn where the noise is never renewed: the chain would see one realisation of it."""
        same = self._last_noise is not None and np.array_equal(noise, self._last_noise)
        self._n_under_noise = self._n_under_noise + 1 if same else 0
        self._last_noise = noise
        if self._n_under_noise == FROZEN_EVALUATIONS:
            warnings.warn(
                f"The noise of {self.name!r} has stayed the same for {FROZEN_EVALUATIONS} "
                "evaluations: the draws follow one realisation of the estimate, not the "
                "posterior. Sample at least one variable with a step of pymc_kmc, for example "
                "pm.sample(step=pymc_kmc.KMC()).",
                UserWarning,
                stacklevel=2,
            )


expect_numba_fallback(NoisyLogLikelihood)
