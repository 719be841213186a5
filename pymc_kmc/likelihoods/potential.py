"""A noisy log likelihood as a potential of a PyMC model."""

import numbers

import numpy as np
import pymc as pm
import pytensor

from pymc_kmc.likelihoods.checks import check_model, check_name
from pymc_kmc.likelihoods.noisy_log_likelihood import EstimatorError, NoisyLogLikelihood
from pymc_kmc.likelihoods.user_function import as_tensors, evaluate_at_initial_point, names_of


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
    check=None,
    model=None,
):
    """Add a noisy log likelihood to a model, after one estimate at the initial point; return it.

    Arguments are those of :class:`NoisyLogLikelihood`. ``check(noise, values)`` makes a further
    check of the user's function, given the scheme of noise and the parameters' values at the
    initial point.

    Raises
    ------
    TypeError
        If the user's function returns something of the wrong type.
    ValueError
        If there are no `params`, or `target_variance` isn't positive.
    EstimatorError
        If the user's function raises.
    """
    model = check_model(model)
    check_name(name)
    params = as_tensors(name, params, what)
    if not (isinstance(target_variance, numbers.Real) and 0 < target_variance < np.inf):
        raise ValueError(f"target_variance of {name!r} must be positive, got {target_variance!r}.")
    op = NoisyLogLikelihood(
        name,
        replicates,
        combine,
        names_of(params),
        what=what,
        n_replicates=n_replicates,
        target_variance=target_variance,
        fewest=fewest,
    )
    noise = op.noise.draw(op.n_start, np.random.default_rng(0))
    values = evaluate_at_initial_point(params, model)
    try:
        # In this process, whatever the executor, and with as few replicates as find an error.
        op.try_out(noise[:fewest], values)
    except EstimatorError as error:
        if error.__cause__ is None:  # the result has the wrong type
            raise TypeError(str(error)) from None
        raise
    if check is not None:
        check(op.noise, values)
    with model:
        return pm.Potential(name, op(pytensor.shared(noise, name=f"{name}_noise"), *params))
