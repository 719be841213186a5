r"""Likelihoods that can only be estimated, as potentials of a PyMC model.

Let :math:`\hat L(\theta, u) \ge 0` be an estimate of the likelihood computed with random numbers
:math:`u \sim q`, with :math:`E_q \hat L(\theta, u) = L(\theta)`. A Markov chain on
:math:`(\theta, u)` with stationary density proportional to :math:`\pi(\theta) \hat L(\theta, u)
q(u)` has the exact posterior as its marginal in :math:`\theta` (Andrieu and Roberts, 2009),
provided that the estimate at the current state is *kept*, not drawn again. Here :math:`u` is an
array of seeds, or of normal numbers (:mod:`.noise`), a row for each of the replicates that are
averaged (:mod:`.replicates`). It is part of the model's graph, so that for a fixed u the model's
log density is an ordinary deterministic function: any step method may move :math:`\theta` under a
fixed u, and the steps of this package move :math:`\theta` and u together.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.
"""

import inspect
import numbers
import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.model import modelcontext
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_kmc._compat import expect_numba_fallback
from pymc_kmc.likelihoods.noise import Normals, Seeds
from pymc_kmc.likelihoods.replicates import (
    TARGET_VARIANCE,
    ExecutorError,
    Failure,
    Replicates,
    choose_n_replicates,
    log_mean_exp,
)

__all__ = ["EstimatorError", "NoisyLogLikelihood", "PseudoMarginalPotential"]

# How many pairs of parameters and noise are remembered. A Metropolis step of another variable asks
# for two values in turn, Slice and NUTS come back to their starting point after a few more.
MEMORY = 8
# So many different parameter values under one noise mean that nothing ever renews it. A Slice step
# makes tens of evaluations an iteration, a NUTS tree at most 1023.
FROZEN_EVALUATIONS = 2000
# The noise is part of the state and must mix too: on random effects .9 gave KMC 85 effective draws
# and .99 gave 23 (examples/benchmarks/README.md). Estimates of larger variance ask for more:
# Deligiannidis, Doucet and Pitt (2018) use .98 to .9995 for long series.
DEFAULT_CORRELATION = 0.95


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


class WrongResult(TypeError):
    """A user's function returned something of the wrong type or shape; says what."""


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


def as_real_scalar(value):
    """Return `value` as a float.

    Parameters
    ----------
    value : object
        A real number or a 0-d array of one.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If it is anything else; the message says what it is.
    """
    if isinstance(value, np.ma.MaskedArray) or value is np.ma.masked:
        raise TypeError(f"a masked value: {value!r}")
    if isinstance(value, np.ndarray):
        if value.shape != ():
            raise TypeError(f"an array of shape {value.shape}")
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return float(value)


class LogEstimate:
    """What is run for each replicate: the user's estimator, whose result is a float."""

    def __init__(self, estimator):
        self.estimator = estimator

    def __call__(self, *arguments, **random):
        estimate = self.estimator(*arguments, **random)
        try:
            return as_real_scalar(estimate)
        except TypeError as error:
            raise WrongResult(
                f"must return a float, the log of the estimate; it returned {error}"
            ) from None


def PseudoMarginalPotential(  # noqa: N802
    name: str,
    estimator: Callable,
    *params,
    n_replicates: int | str = 1,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor=None,
    timeout: float | None = None,
    model=None,
):
    r"""Add the log of an unbiased likelihood estimate to a model.

    The posterior that the steps of this package then sample is the exact one, however noisy the
    estimate: it is drawn once for every proposal and kept for as long as the proposal stays the
    chain's state (Andrieu and Roberts, 2009). At least one of the model's variables must be
    sampled by a step of this package, any one: it renews the noise. PyMC's own steps may sample
    the others.

    Parameters
    ----------
    name : str
        Name of the potential.
    estimator : callable
        ``estimator(*param_values, rng=numpy.random.Generator) -> float``, the log of an unbiased,
        non-negative estimate of the likelihood. Everything random in it must come from `rng`.
        ``-inf`` is a legal value; NaN and ``+inf`` reject the proposal and are reported.
    *params : TensorVariable
        What the estimator gets, in this order: the model's variables or expressions of them. They
        arrive on their natural (constrained) scale with their shapes, scalars as numbers.
    n_replicates : int or "auto"
        How many independent estimates are averaged. "auto" finds the number, up to 1000, while
        tuning, such that the log of the average has variance `target_variance` where the chain
        is then; it is fixed after tuning, and reported as ``kmc_n_replicates`` in the sample
        statistics. With `correlation` it is half the mean squared difference that counts,
        between the estimates of a proposal and of the chain's state.
    target_variance : float
        For "auto", by default 2: chains move, and fewer replicates would hardly make more of each
        (Doucet et al., 2015; Sherlock, Thiery and Lee, 2017).
    n_normals : int, optional
        The estimator gets ``u=``, a vector of so many independent standard normal numbers, instead
        of `rng`, and must have no other randomness. A proposal's vector is correlated with the
        chain's, which makes the estimates' errors nearly cancel (Deligiannidis, Doucet and Pitt,
        2018). For this the log estimate must depend on `u` smoothly: sort a particle filter's
        particles before resampling.
    correlation : float, optional
        Of a proposal's `u` with the chain's, by default .95. Without `n_normals`, the share of the
        replicates whose seeds a proposal keeps, by default 0 (Tran et al., 2016).
    executor : concurrent.futures.Executor or callable, optional
        Where the replicates run: a process pool, ``distributed.Client().get_executor()``,
        ``mpi4py.futures.MPIPoolExecutor()``, or a function that returns one, which is then called
        once in each process that needs it. The draws don't depend on it. A process pool goes with
        ``pm.sample(cores=1)``: PyMC's own processes can't start others. Only ``submit`` is used,
        and ``result`` and ``cancel`` of what it returns. The estimator travels by `cloudpickle`
        with every task: large data are better loaded by it where it runs.
    timeout : float, optional
        Seconds that the executor has for one estimate; then there is an error. Worker processes
        of an executor that was given as a function are stopped; threads can't be.
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it.

    Raises
    ------
    TypeError
        If `estimator` isn't callable, doesn't take ``rng=`` (``u=``), or gives something else than
        a real number at the model's initial point, where it is called once.
    ValueError
        If there are no `params`, or an argument is out of its range.
    EstimatorError
        If the estimator raises at the model's initial point.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. *Annals of Statistics* 37, 697-725.

    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudomarginal method.
    *Journal of the Royal Statistical Society B* 80, 839-870.

    Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of
    Markov chain Monte Carlo when using an unbiased likelihood estimator. *Biometrika* 102, 295-313.

    Sherlock, C., Thiery, A. H. and Lee, A. (2017). Pseudo-marginal Metropolis-Hastings sampling
    using averages of unbiased estimators. *Biometrika* 104, 727-734.

    Tran, M.-N., Kohn, R., Quiroz, M. and Villani, M. (2016). The block pseudo-marginal sampler.
    arXiv:1603.02485.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kmc as kmc
    >>> def estimator(x, rng):
    ...     z = x + rng.standard_normal(100)
    ...     return np.log(np.mean(np.exp(-0.5 * (z - 1.0) ** 2)))
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     _ = kmc.PseudoMarginalPotential("loglik", estimator, x)
    >>> [potential.name for potential in model.potentials]
    ['loglik']
    """
    noise = check_noise(name, n_normals, correlation, n_replicates)
    check_callable(name, "estimator", estimator, len(params), noise)
    return add_potential(
        name,
        Replicates(LogEstimate(estimator), noise, executor, timeout),
        log_mean_exp,
        params,
        n_replicates=n_replicates,
        target_variance=target_variance,
        model=model,
    )


def check_noise(name, n_normals, correlation, n_replicates, number="n_replicates"):
    """Return the kind of noise that these arguments ask for, or raise a ValueError."""
    if n_replicates != "auto" and not is_positive_integer(n_replicates):
        raise ValueError(
            f"{number} of {name!r} must be a positive whole number or 'auto', got {n_replicates!r}."
        )
    if n_normals is None:
        correlation = 0.0 if correlation is None else correlation
        if correlation and n_replicates == 1:
            raise ValueError(
                f"correlation={correlation} of {name!r} needs several replicates, some of which "
                f"keep their seeds, or an estimator that takes u=: give {number} or n_normals."
            )
    elif not is_positive_integer(n_normals):
        raise ValueError(
            f"n_normals of {name!r} must be a positive whole number, got {n_normals!r}."
        )
    if correlation is None:
        correlation = DEFAULT_CORRELATION
    if not (isinstance(correlation, numbers.Real) and 0 <= correlation < 1):
        raise ValueError(f"correlation of {name!r} must be in [0, 1), got {correlation!r}.")
    if n_normals is None:
        return Seeds(correlation)
    return Normals(int(n_normals), correlation)


def is_positive_integer(value):
    """Say whether `value` is a positive whole number, of Python's or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1


def add_potential(
    name,
    replicates,
    combine,
    params,
    *,
    n_replicates,
    target_variance,
    fewest=1,
    what="estimator",
    model=None,
):
    """Add a noisy log likelihood to a model, after a look at the initial point.

    Parameters
    ----------
    params : sequence of TensorVariable
        At least one.
    name, replicates, combine, n_replicates, target_variance, fewest, what
        As of :class:`NoisyLogLikelihood`.
    model : pymc.Model, optional

    Returns
    -------
    TensorVariable
        The potential.
    """
    model = modelcontext(model)
    if not params:
        raise ValueError(
            f"{name!r} got no params: name the variables that the {what} takes, after it."
        )
    if not (isinstance(target_variance, numbers.Real) and 0 < target_variance < np.inf):
        raise ValueError(f"target_variance of {name!r} must be positive, got {target_variance!r}.")
    params = [pt.as_tensor_variable(param) for param in params]
    op = NoisyLogLikelihood(
        name,
        replicates,
        combine,
        [param.name or f"params[{i}]" for i, param in enumerate(params)],
        what=what,
        n_replicates=n_replicates,
        target_variance=target_variance,
        fewest=fewest,
    )
    noise = op.noise.draw(op.n_start, np.random.default_rng(0))
    try:
        # Here, whatever the executor, and no more than it takes to find what is wrong.
        op.try_out(noise[:fewest], evaluate_at_initial_point(params, model))
    except EstimatorError as error:
        if error.__cause__ is None:  # not raised by the estimator: its result has the wrong type
            raise TypeError(str(error)) from None
        raise
    with model:
        return pm.Potential(name, op(pytensor.shared(noise, name=f"{name}_noise"), *params))


def check_callable(name, what, function, n_params, noise):
    """Raise a TypeError if `function` can't be called with `n_params` values and the noise."""
    random = noise.inputs(noise.draw(1, np.random.default_rng(0))[0])
    keywords = ", ".join(f"{keyword}=" for keyword in random)
    if not callable(function):
        raise TypeError(
            f"{what} of {name!r} must be callable, {what}(*param_values, {keywords}), "
            f"got {function!r} of type {type(function).__name__}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no signature to be had: some compiled callables
        return
    try:
        signature.bind(*range(n_params), **random)
    except TypeError as error:
        raise TypeError(
            f"{what} of {name!r} can't be called as {what}({n_params} param values, {keywords}): "
            f"{error}. Its signature is {signature}."
        ) from None


def evaluate_at_initial_point(params, model):
    """Return the values of `params` at the model's initial point, on their natural scale."""
    values = model.replace_rvs_by_values(params)
    point = model.initial_point()
    function = pytensor.function(
        model.value_vars, values, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return function(*(point[variable.name] for variable in model.value_vars))
