r"""Likelihoods that can only be estimated, as potentials of a PyMC model.

Let :math:`\hat L(\theta, u) \ge 0` be an estimate of the likelihood computed with random numbers
:math:`u \sim q`, with :math:`E_q \hat L(\theta, u) = L(\theta)`. A Markov chain on :math:`(\theta,
u)` with stationary density proportional to :math:`\pi(\theta) \hat L(\theta, u) q(u)` has the exact
posterior as its marginal in :math:`\theta` (Andrieu and Roberts, 2009), provided that the estimate
at the current state is *kept*, not drawn again.

The array :math:`u` has a row of seeds or normal numbers (:mod:`.noise_schemes`) for each averaged
replicate (:mod:`.n_replicates`) and is part of the model's graph. Under a fixed u the log density
is deterministic, and any step method may move :math:`\theta`. The steps of this package move
:math:`\theta` and u together.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Literal

import pymc as pm
from pytensor.tensor import TensorVariable

from pymc_kmc.likelihoods.checks import (
    WrongResult,
    as_real_scalar,
    check_callable,
    check_model,
    check_n_replicates,
)
from pymc_kmc.likelihoods.extras import Extras, ExtrasLike, apart, joined
from pymc_kmc.likelihoods.noise_schemes import choose_noise
from pymc_kmc.likelihoods.noisy_log_likelihood import add_potential
from pymc_kmc.likelihoods.replicates import TARGET_VARIANCE, Replicates, log_mean_exp
from pymc_kmc.likelihoods.store import StoreLike


class LogEstimate:
    """Calls the user's estimator for a replicate and checks that it returns a float."""

    def __init__(self, estimator, extras=None):
        self.estimator, self.extras = estimator, extras

    def __call__(self, *arguments, **random):
        estimate, extras = apart(self.extras, self.estimator(*arguments, **random))
        try:
            return joined(as_real_scalar(estimate), extras)
        except TypeError as error:
            raise WrongResult(
                f"must return a float, the log of the estimate; it returned {error}"
            ) from None


def PseudoMarginalPotential(  # noqa: N802
    name: str,
    estimator: Callable,
    *params: TensorVariable,
    n_replicates: int | Literal["auto"] = 1,
    target_variance: float = TARGET_VARIANCE,
    n_normals: int | None = None,
    correlation: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    store: StoreLike | None = None,
    extras: ExtrasLike | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add the log of an unbiased likelihood estimate to a model.

    The steps of this package then sample the exact posterior, however noisy the estimate: it is
    drawn once for every proposal and kept while the proposal is the chain's state (Andrieu and
    Roberts, 2009). A step of this package must sample at least one variable, to renew the noise;
    PyMC's own steps may sample the others.

    Parameters
    ----------
    name : str
        Name of the potential.
    estimator : callable
        ``estimator(*param_values, rng=numpy.random.Generator) -> float``, the log of an unbiased,
        non-negative estimate of the likelihood. Everything random in it must come from `rng`.
        ``-inf`` is a legal estimate of zero. NaN and ``+inf`` reject the proposal and are reported.
    *params : TensorVariable
        Arguments of the estimator, in order: the model's variables or expressions of them. It gets
        values of their shapes on the natural (constrained) scale, scalars as numbers.
    n_replicates : int or "auto"
        Number of independent estimates that are averaged. ``-inf`` of one counts as zero; NaN of
        one makes the average NaN, so that the draws would depend on `n_replicates`: return ``-inf``
        where an estimate is zero, as where all particles of a filter have died. "auto" finds the
        number, up to 1000, while tuning, such that the log of the average has variance
        `target_variance` at the chain's state (with `correlation`: half the mean squared difference
        of a proposal's log estimate from the state's). The sample statistics have it as
        ``kmc_n_replicates``.
    target_variance : float
        Variance of the log estimate for "auto", by default 2: chains move, and fewer replicates
        would hardly give more draws for each (Doucet et al., 2015; Sherlock, Thiery and Lee, 2017).
    n_normals : int, optional
        Number of standard normal numbers. The estimator then gets them as a vector ``u=`` instead
        of `rng`, and must have no other randomness. A proposal's vector is correlated with the
        chain's, so that the errors of the two estimates nearly cancel (Deligiannidis, Doucet and
        Pitt, 2018), if the log estimate is smooth in `u`: sort particles before resampling.
    correlation : float, optional
        Correlation of a proposal's `u` with the chain's, in [0, 1), by default .95. Without
        `n_normals`, share of seeds that a proposal keeps, by default 0 (Tran et al., 2016).
    executor : concurrent.futures.Executor or callable, optional
        Executor that runs the replicates: a process pool, ``distributed.Client().get_executor()``,
        ``mpi4py.futures.MPIPoolExecutor()``, or a function that returns one, called once in each
        process that needs it. The draws don't depend on it, given `n_parallel` of :class:`KMC`,
        which follows its workers by default. With a process pool use ``pm.sample(cores=1)``: PyMC's
        own processes can't start others. The estimator travels by `cloudpickle` with every task:
        let it load large data where it runs.
    timeout : float, optional
        Seconds that the executor has for one estimate; then an error is raised. Worker processes
        are stopped if `executor` was given as a function; threads can't be.
    store : str, os.PathLike or EvaluationStore, optional
        File that keeps every estimate, or an :class:`EvaluationStore` for several functions. Stored
        estimates aren't computed again; after a kill the same script makes the same draws.
    extras : dict of str to int, str or tuple, optional
        Shapes, by name, of arrays that the estimator returns beside its value and that the accepted
        evaluation keeps: lengths or names of the model's dims, e.g. ``{"path": (100,)}``. The
        estimator then returns ``log_estimate, {"path": array}``; :func:`extras` finds them in the
        result. Of several replicates one's are kept, with probability proportional to its estimate.
    model : pymc.Model, optional
        The model, by default the one of the context.

    Returns
    -------
    TensorVariable
        The potential, as `pymc.Potential` returns it. Nothing else in the log density may depend
        on it: making a step then raises a ValueError.

    Raises
    ------
    TypeError
        If `estimator` isn't callable, doesn't take ``rng=`` (``u=`` with `n_normals`), or doesn't
        return a real number at the model's initial point, where it is called once.
    ValueError
        If there are no `params`, an argument is out of its range, or the store has another
        function of this name.
    OSError
        If the store can't be used.
    EstimatorError
        If the estimator raises. The message has the parameters and the seed.

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
    check_n_replicates(name, n_replicates)
    noise = choose_noise(name, n_replicates, n_normals=n_normals, correlation=correlation)
    check_callable(name, "estimator", estimator, len(params), noise)
    model = check_model(model)
    kept = Extras.of(f"estimator of {name!r}", extras, model)
    replicates = Replicates(LogEstimate(estimator, kept), noise, executor, timeout)
    options = n_replicates, target_variance, model
    return add_potential(name, replicates, log_mean_exp, params, *options, store=store, extras=kept)
