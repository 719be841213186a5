"""The Op of an estimated likelihood, a function of parameters and frozen noise; its potential."""

import numbers
import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pymc_kmc._compat import expect_numba_fallback
from pymc_kmc.likelihoods.checks import check_model, check_name
from pymc_kmc.likelihoods.executors import ExecutorError, Failure, Timed, timed
from pymc_kmc.likelihoods.extras import WithExtras, chosen
from pymc_kmc.likelihoods.replicates import Replicates, choose_n_replicates
from pymc_kmc.likelihoods.simulations import Combination, NotAnArray
from pymc_kmc.likelihoods.user_function import (
    UserFunctionOp,
    as_tensors,
    evaluate_at_initial_point,
    key_of,
    names_of,
)

# Evaluations under the same noise after which a chain warns that no step renews it. A Slice step
# makes tens an iteration, a NUTS tree at most 1023.
FROZEN_EVALUATIONS = 2000


class EstimatorError(RuntimeError):
    """A user's estimator or simulator raised, or returned something of the wrong type.

    The message has the parameters and the seed that reproduce the call. In the process where it
    happened ``__cause__`` is the original exception.

    Attributes
    ----------
    noise : ndarray or None
        The seed or normal numbers of that call; if an executor failed, a row for each call.
    of_executor : bool
        Whether an executor failed instead of the function.
    """

    noise: np.ndarray | None = None
    of_executor: bool = False


class NoisyLogLikelihood(UserFunctionOp):
    """Log of an unbiased likelihood estimate: a function of parameters and of frozen noise.

    Two instances are never equal, lest PyTensor merge them; the noise must be a shared variable,
    lest PyTensor fold a node of constants.

    `replicates` run the user's function, `what` in messages, for each row of noise; `names` are
    those of its parameters; ``combine(results) -> float`` makes the log estimate. A
    :class:`~pymc_kmc.likelihoods.simulations.Combination` also records a chain's simulations. With
    `n_replicates` "auto" the step tunes it, from `fewest` up, to the `target_variance`.

    Attributes
    ----------
    noise : Noise
        Scheme of noise.
    is_auto : bool
        Whether the number of replicates is tuned.
    n_start : int
        Number of replicates at a chain's start.
    n_calls : int
        Number of estimates made in this process.
    """

    # The Summaries of a simulator, None of an estimator.
    summaries: Any = None

    def __init__(
        self, name, replicates, combine, names, n_replicates, target_variance, what, fewest, extras
    ):
        super().__init__(name, f"{what} of {name!r}", names, extras)
        self.replicates = replicates
        self.noise = replicates.noise
        self.combine = combine
        self.what = what
        self.is_auto = n_replicates == "auto"
        self.n_start = fewest if self.is_auto else n_replicates
        self.fewest = fewest
        self.target_variance = target_variance
        self.n_calls = 0
        self._last_noise = None
        self._n_under_noise = 0

    def __str__(self):
        return f"NoisyLogLikelihood{{{self.name}}}"

    def make_node(self, *inputs):
        noise, *parameters = inputs
        return Apply(self, [noise, *map(pt.as_tensor_variable, parameters)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        noise, *parameters = inputs
        self._watch_for_frozen_noise(noise)
        output_storage[0][0] = np.asarray(self.evaluate(noise, *parameters))

    def evaluate(self, noise, *parameters):
        """Return the log estimate at `parameters`, on their natural scale, under noise (n, ...).

        The last few values are remembered, so that steps that move other parameters cost no
        evaluation. NaN and infinite values are returned. Raises an EstimatorError if the user's
        function or an executor fails.
        """
        return self.evaluate_with_extras(noise, *parameters)[0]

    def evaluate_with_extras(self, noise, *parameters):
        """Return :meth:`evaluate`, and raveled extras, None without any."""
        values = [np.asarray(value) for value in parameters]
        return self._cache.find(
            self._key(noise, values), lambda: next(self._estimates([(noise, values)]))
        )

    def all_with_extras(self, calls, executor=None):
        """Return :meth:`evaluate_with_extras` of many calls, as of :meth:`each`."""

        def evaluate(rows):
            return self._estimates([calls[i] for i in rows], executor)

        return self._cache.find_all([self._key(*call) for call in calls], evaluate)

    def each(self, calls, executor=None):
        """Yield the log estimates of calls, pairs of noise and parameters, and don't remember them.

        The replicates' own executor, else `executor`, a LazyExecutor, runs all calls at once.
        """
        return (estimate for estimate, _ in self._estimates(calls, executor))

    def n_workers(self, executor=None):
        """Return how many calls an executor runs at once for :meth:`each`."""
        is_used = executor is not None and self.replicates.executor is None
        return executor.n_workers if is_used else 1

    def _estimates(self, calls, executor=None):
        calls = [(noise, [np.asarray(value) for value in values]) for noise, values in calls]

        def compute(missing):
            some = calls if missing is None else [calls[i] for i in missing]
            results = self.replicates.each(some, executor, self.stored and self._arrived)
            for _ in some:
                try:
                    yield next(results)
                except ExecutorError as error:
                    yield Timed(Failure(0, error, ""), 0.0)

        results = self._results_of([(values, (noise,)) for noise, values in calls], compute)
        for (noise, parameters), found in zip(calls, results, strict=True):
            self.n_calls += 1
            yield self._combined(found, noise, parameters)

    def simulated(self, inputs, rng, executor=None):
        """Yield a simulated data set at each of n points; `inputs` has n values of each parameter.

        `executor`, a LazyExecutor, is used if the potential has none. Raises a NotAnArray if the
        data are none, an EstimatorError if the simulator fails.
        """
        simulate = Replicates(self.summaries.data, self.noise)
        calls = [(self.noise.draw(1, rng), row) for row in zip(*inputs, strict=True)]
        results = simulate.each(calls, self.replicates.executor or executor)
        for call, (found, _) in zip(calls, results, strict=True):
            if isinstance(found, Failure):
                if isinstance(found.error, NotAnArray):  # which a summary may well read
                    raise found.error
                self._combined(found, *call)
            yield found[0]

    @staticmethod
    def _key(noise, values):
        return noise.tobytes(), key_of(values)

    def refresh(self, noise):
        """Make values under the chain's current noise the last to be forgotten."""
        noise = noise.tobytes()
        self._cache.refresh(lambda key: key[0] == noise)

    @property
    def simulations(self):
        """Record of the chain's simulations, None without a simulator."""
        return self.combine if isinstance(self.combine, Combination) else None

    def start_chain(self):
        if self.simulations is not None:
            self.simulations.forget()

    def choose_n_replicates(self, start, parameters, rng):
        """Return the number of replicates for the target variance, and their variance."""

        def log_estimates(n):
            noise = self.noise.draw(n, rng)
            while True:
                yield self._call(noise, parameters)
                noise = self.noise.renew(noise, rng)

        return choose_n_replicates(log_estimates, start, self.target_variance, self.fewest)

    def try_out(self, noise, parameters):
        """Make one estimate in this process, with errors of :meth:`evaluate`."""
        self.n_calls += 1

        def compute(missing):
            yield timed(self.replicates.here, noise, parameters)

        (found,) = self._results_of([(parameters, (noise,))], compute)
        return self._combined(found, noise, parameters)

    def _arrived(self, call, result, seconds):
        """Store an estimate before it is asked for, in case the run is killed meanwhile."""
        noise, parameters = call
        self.keep(parameters, (noise,), self._checked(result), seconds, replace=False)

    def _call(self, noise, parameters):
        return next(self.each([(noise, parameters)]))

    def _checked(self, results):
        """Return results, the extras of all replicates stacked (n, k)."""
        if self.extras is None or isinstance(results, Failure | WithExtras):
            return results
        values, extras = zip(*results, strict=True)
        return WithExtras(np.array(values), np.stack(extras))

    def _combined(self, results, noise, parameters):
        """Return the log estimate and one replicate's extras (or None); raise a failure's error."""
        if isinstance(results, WithExtras):
            log_weights = results.value
            if self.simulations is not None:
                log_weights = self.simulations.log_weights(log_weights)
            k = chosen(log_weights, noise)
            return self.combine(results.value), results.extras[k]
        if not isinstance(results, Failure):
            return self.combine(results), None
        of_executor = isinstance(results.error, ExecutorError)
        row = noise[0 if of_executor else results.row]
        how = f"To reproduce it, call the {self.what} with {self.noise.describe(row)}"
        if of_executor:
            how = f"One of the calls had {self.noise.describe(row)}; error.noise has a row each."
        raised = EstimatorError(self._told(results, parameters, f"\n{how}"))
        raised.noise, raised.of_executor = noise if of_executor else row, of_executor
        raise raised from results.cause

    def _watch_for_frozen_noise(self, noise):
        """Warn if nothing renews the noise: the chain then follows one realisation of it."""
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


def add_potential(
    name,
    replicates,
    combine,
    params,
    n_replicates,
    target_variance,
    model=None,
    summaries=None,
    fewest=1,
    *,
    store=None,
    results="log estimates",
    shape=(),
    extras=None,
):
    """Add a noisy log likelihood to a model, after one estimate at the initial point; return it.

    Arguments are those of :class:`NoisyLogLikelihood`; `summaries` are a simulator's. A `store`
    keeps the `results` of replicates, so named in messages, of this `shape`. Raises a TypeError for
    a result of the wrong type, a ValueError for no `params` or a `target_variance` that isn't
    positive, and an EstimatorError if the user's function raises.
    """
    model, what = check_model(model), "estimator" if summaries is None else "simulator"
    check_name(name)
    params = as_tensors(name, params, what)
    if not (isinstance(target_variance, numbers.Real) and 0 < target_variance < np.inf):
        raise ValueError(f"target_variance of {name!r} must be positive, got {target_variance!r}.")
    names = names_of(params)
    op = NoisyLogLikelihood(
        name, replicates, combine, names, n_replicates, target_variance, what, fewest, extras
    )
    op.summaries = summaries
    op.keep_in(store, results + " made at once" * op.noise.is_joint, params, shape, model)
    noise = op.noise.draw(op.n_start, np.random.default_rng(0))
    values = evaluate_at_initial_point(name, params, model)
    is_known = op.known(values, (noise[:fewest],)) is not None
    try:
        # In this process, whatever the executor, and with as few replicates as find an error.
        op.try_out(noise[:fewest], values)
    except EstimatorError as error:
        if error.__cause__ is None:  # the result has the wrong type
            raise TypeError(str(error)) from None
        raise
    if summaries is not None and not is_known:
        summaries.warn_if_constant(op.noise, values)
    with model:
        value = pm.Potential(name, op(pytensor.shared(noise, name=f"{name}_noise"), *params))
    op.claim_name(model)
    return value
