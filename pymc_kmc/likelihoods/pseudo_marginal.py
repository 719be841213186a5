r"""Likelihoods that can only be estimated, as potentials of a PyMC model.

Let :math:`\hat L(\theta, u) \ge 0` be an estimate of the likelihood computed with random numbers
:math:`u \sim q`, with :math:`E_q \hat L(\theta, u) = L(\theta)`. A Markov chain on
:math:`(\theta, u)` with stationary density proportional to :math:`\pi(\theta) \hat L(\theta, u)
q(u)` has the exact posterior as its marginal in :math:`\theta` (Andrieu and Roberts, 2009),
provided that the estimate at the current state is *kept*, not drawn again. Here :math:`u` is what
a generator seeded with an integer gives. The seed is part of the model's graph, so that for a
fixed seed the model's log density is an ordinary deterministic function: any step method may move
:math:`\theta` under a fixed seed, and the steps of this package move :math:`\theta` and the seed
together.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.
"""

import inspect
import numbers
import traceback
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

__all__ = ["EstimatorError", "NoisyLogLikelihood", "PseudoMarginalPotential"]

# How many (parameters, seed) pairs are remembered. A Metropolis step of another variable asks for
# two values in turn, Slice and NUTS come back to their starting point after a few more.
MEMORY = 8
# So many different parameter values under one seed mean that nothing ever draws a new one. A Slice
# step makes tens of evaluations an iteration, a NUTS tree at most 1023.
FROZEN_EVALUATIONS = 2000


class EstimatorError(RuntimeError):
    """A user's estimator raised, or returned something that isn't a number.

    The message has the parameter values and the seed that reproduce the call; in the process
    where it happened ``__cause__`` is the original exception.
    """


def noise_generator(seed):
    """Return the generator that belongs to a noise seed.

    Parameters
    ----------
    seed : int
        Non-negative integer below 2**63.

    Returns
    -------
    numpy.random.Generator
    """
    return np.random.Generator(np.random.PCG64(int(seed)))


class NoisyLogLikelihood(Op):
    """Log of an unbiased likelihood estimate: a function of parameters and a noise seed.

    Two instances are never equal, and the seed must be a shared variable: PyTensor would otherwise
    merge equal nodes, and fold a node whose inputs are all constant.

    Parameters
    ----------
    name : str
        Name of the potential, for messages.
    estimator : callable
        ``estimator(*parameter_values, rng=numpy.random.Generator) -> float``.
    parameter_names : sequence of str
        Names of the parameters, for messages.

    Attributes
    ----------
    n_calls : int
        How many times the estimator was called in this process.
    """

    def __init__(self, name, estimator, parameter_names):
        self.name = name
        self.estimator = estimator
        self.parameter_names = tuple(parameter_names)
        self.n_calls = 0
        self._memory = {}
        self._last_seed = None
        self._n_under_seed = 0

    def __str__(self):
        return f"NoisyLogLikelihood{{{self.name}}}"

    def make_node(self, seed, *parameters):
        return Apply(self, [seed, *map(pt.as_tensor_variable, parameters)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        seed, *parameters = inputs
        self._watch_for_frozen_noise(int(seed))
        output_storage[0][0] = np.asarray(self.evaluate(int(seed), *parameters))

    def evaluate(self, seed, *parameters):
        """Return the log estimate at `parameters` under `seed`.

        The last few values are remembered: under one seed the estimate is a deterministic
        function, so steps that don't move these parameters cost no evaluation.

        Parameters
        ----------
        seed : int
            Noise seed.
        *parameters : array_like
            Parameter values on their natural scale.

        Returns
        -------
        float
            May be NaN or infinite: what to do then is the step's business.

        Raises
        ------
        EstimatorError
            If the estimator raises or returns something that isn't a real scalar.
        """
        parameters = [np.asarray(value) for value in parameters]
        key = (seed, *(value.tobytes() for value in parameters))
        value = self._memory.pop(key, None)
        if value is None:
            value = self._call(seed, parameters)
            while len(self._memory) >= MEMORY:
                del self._memory[next(iter(self._memory))]
        self._memory[key] = value  # the last used is the last forgotten
        return value

    def refresh(self, seed):
        """Make the values under `seed`, the chain's current noise, the last forgotten."""
        for key in [key for key in self._memory if key[0] == seed]:
            self._memory[key] = self._memory.pop(key)

    def _call(self, seed, parameters):
        self.n_calls += 1
        # [()] makes numbers of 0-d arrays; the copy protects the chain from an estimator that
        # writes.
        arguments = [value.copy()[()] for value in parameters]
        try:
            estimate = self.estimator(*arguments, rng=noise_generator(seed))
        except Exception as error:
            raise EstimatorError(
                f"The estimator of {self.name!r} raised {type(error).__name__}: {error}\n"
                f"{self._how_to_reproduce(seed, parameters)}\n"
                f"{''.join(traceback.format_tb(error.__traceback__)[1:])}"
            ) from error
        try:
            return as_real_scalar(estimate)
        except TypeError as error:
            raise EstimatorError(
                f"The estimator of {self.name!r} must return a float, the log of the "
                f"estimate; {error}\n"
                f"{self._how_to_reproduce(seed, parameters)}"
            ) from None

    def _how_to_reproduce(self, seed, parameters):
        values = ", ".join(
            f"{name}={np.array2string(value, separator=', ', floatmode='unique')}"
            for name, value in zip(self.parameter_names, parameters, strict=True)
        )
        return (
            f"Parameters: {values}\n"
            f"To reproduce it, call the estimator with rng=numpy.random.Generator("
            f"numpy.random.PCG64({seed}))"
        )

    def _watch_for_frozen_noise(self, seed):
        """Warn where the noise is never renewed: the chain would see one realisation of it."""
        self._n_under_seed = self._n_under_seed + 1 if seed == self._last_seed else 0
        self._last_seed = seed
        if self._n_under_seed == FROZEN_EVALUATIONS:
            warnings.warn(
                f"The noise of {self.name!r} has stayed the same for {FROZEN_EVALUATIONS} "
                "evaluations: "
                "the draws follow one realisation of the estimate, not the posterior. Sample "
                "at least "
                "one variable with a step of pymc_kmc, for example pm.sample(step=pymc_kmc.KMC()).",
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
        raise TypeError(f"it returned a masked value: {value!r}")
    if isinstance(value, np.ndarray):
        if value.shape != ():
            raise TypeError(f"it returned an array of shape {value.shape}")
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"it returned {value!r} of type {type(value).__name__}")
    return float(value)


def PseudoMarginalPotential(name: str, estimator: Callable, *params, model=None):  # noqa: N802
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
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it.

    Raises
    ------
    TypeError
        If `estimator` isn't callable, doesn't take ``rng=``, or gives something else than a real
        number at the model's initial point, where it is called once.
    ValueError
        If there are no `params`.
    EstimatorError
        If the estimator raises at the model's initial point.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. *Annals of Statistics* 37, 697-725.

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
    model = modelcontext(model)
    if not params:
        raise ValueError(
            f"PseudoMarginalPotential({name!r}, ...) got no params: name the variables that the "
            "estimator takes, PseudoMarginalPotential(name, estimator, *params)."
        )
    check_estimator_signature(name, estimator, len(params))
    params = [pt.as_tensor_variable(param) for param in params]
    parameter_names = [param.name or f"params[{i}]" for i, param in enumerate(params)]
    op = NoisyLogLikelihood(name, estimator, parameter_names)
    seed = pytensor.shared(np.int64(0), name=f"{name}_noise_seed")
    try:
        op.evaluate(0, *evaluate_at_initial_point(params, model))
    except EstimatorError as error:
        if error.__cause__ is None:  # not raised by the estimator: its result has the wrong type
            raise TypeError(str(error)) from None
        raise
    with model:
        return pm.Potential(name, op(seed, *params))


def check_estimator_signature(name, estimator, n_params):
    """Raise a TypeError if `estimator` can't be called with `n_params` values and ``rng=``."""
    if not callable(estimator):
        raise TypeError(
            f"estimator of {name!r} must be callable, estimator(*param_values, rng=), "
            f"got {estimator!r} of type {type(estimator).__name__}."
        )
    try:
        signature = inspect.signature(estimator)
    except (TypeError, ValueError):  # no signature to be had: some compiled callables
        return
    try:
        signature.bind(*range(n_params), rng=None)
    except TypeError as error:
        raise TypeError(
            f"estimator of {name!r} can't be called as estimator({n_params} param values, rng=): "
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
