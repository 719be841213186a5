"""A black box's outputs in every distribution of PyMC, other parameters free: compiled, or not.

Compiled code is compared with NumPy. `make test` compiles one model of those distributions whose
special functions PyTensor compiled otherwise; `make faults` all, each by itself: 5 to 15 seconds.
"""

import os

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_kmc as kmc
from pymc_kmc.adaptation.transitions import whitened_hamiltonian
from pymc_kmc.learning.emulated_density import EmulatedParameters
from pymc_kmc.surrogates import exact_gp_evaluation
from tests.learned import density_of

REALS = np.array([-0.4, 0.9, 1.3, 0.2])
POSITIVE = np.array([0.4, 0.9, 1.3, 2.2])
SHARES = np.array([0.2, 0.5, 0.7, 0.4])
COUNTS = np.array([3, 2, 1, 4])
CATEGORIES = np.array([0, 1, 2, 1])
EYE, RING = np.eye(4), np.eye(4)[[1, 2, 3, 0]] + np.eye(4)[[3, 0, 1, 2]]


def cut(y):
    return pt.stack([0.0 * y, y])


def share(y):
    return y / (1.0 + y)


# Data and parameters of each, given outputs y (4,), about 1, and positive numbers s and r.
DISTRIBUTIONS = {
    "AR": (REALS, lambda y, s, r: {"rho": y[:2], "sigma": s, "init_dist": normal(r, 2)}),
    "AsymmetricLaplace": (REALS, lambda y, s, r: {"kappa": r, "mu": y, "b": s}),
    "Bernoulli": (COUNTS % 2, lambda y, s, r: {"p": share(y * s)}),
    "Beta": (SHARES, lambda y, s, r: {"alpha": y, "beta": s}),
    "BetaBinomial": (COUNTS, lambda y, s, r: {"n": 9, "alpha": y, "beta": s}),
    "Binomial": (COUNTS, lambda y, s, r: {"n": 9, "logit_p": y - s}),
    "CAR": (REALS, lambda y, s, r: {"mu": y, "W": RING, "alpha": share(s), "tau": r}),
    "Categorical": (CATEGORIES, lambda y, s, r: {"logit_p": y * s}),
    "Cauchy": (REALS, lambda y, s, r: {"alpha": y, "beta": s}),
    "ChiSquared": (POSITIVE, lambda y, s, r: {"nu": y * s}),
    "Dirichlet": (SHARES / SHARES.sum(), lambda y, s, r: {"a": y * s}),
    "DirichletMultinomial": (COUNTS, lambda y, s, r: {"n": 10, "a": y * s}),
    "DiscreteWeibull": (COUNTS, lambda y, s, r: {"q": share(y * s), "beta": r}),
    "ExGaussian": (REALS, lambda y, s, r: {"mu": y, "sigma": s, "nu": r}),
    "Exponential": (POSITIVE, lambda y, s, r: {"lam": y * s}),
    "Gamma": (POSITIVE, lambda y, s, r: {"mu": y, "sigma": s}),
    "GaussianRandomWalk": (
        REALS,
        lambda y, s, r: {"mu": y[:3], "sigma": s, "init_dist": normal(r)},
    ),
    "Geometric": (COUNTS, lambda y, s, r: {"p": share(y * s)}),
    "Gumbel": (REALS, lambda y, s, r: {"mu": y, "beta": s}),
    "HalfCauchy": (POSITIVE, lambda y, s, r: {"beta": y * s}),
    "HalfNormal": (POSITIVE, lambda y, s, r: {"sigma": y * s}),
    "HalfStudentT": (POSITIVE, lambda y, s, r: {"nu": s, "sigma": y}),
    "HurdleGamma": (POSITIVE, lambda y, s, r: {"psi": share(s), "alpha": y, "beta": r}),
    "HurdleLogNormal": (POSITIVE, lambda y, s, r: {"psi": share(s), "mu": y, "sigma": r}),
    "HurdleNegativeBinomial": (COUNTS, lambda y, s, r: {"psi": share(s), "mu": y, "alpha": r}),
    "HurdlePoisson": (COUNTS, lambda y, s, r: {"psi": share(s), "mu": y}),
    "InverseGamma": (POSITIVE, lambda y, s, r: {"alpha": s, "beta": y}),
    "Kumaraswamy": (SHARES, lambda y, s, r: {"a": y, "b": s}),
    "Laplace": (REALS, lambda y, s, r: {"mu": y, "b": s}),
    "LogNormal": (POSITIVE, lambda y, s, r: {"mu": y, "sigma": s}),
    "Logistic": (REALS, lambda y, s, r: {"mu": y, "s": s}),
    "LogitNormal": (SHARES, lambda y, s, r: {"mu": y, "sigma": s}),
    "Moyal": (REALS, lambda y, s, r: {"mu": y, "sigma": s}),
    "Multinomial": (COUNTS, lambda y, s, r: {"n": 10, "p": y**s / (y**s).sum()}),
    "MvNormal": (REALS, lambda y, s, r: {"mu": y, "cov": s * EYE + 0.3 * r}),
    "MvStudentT": (REALS, lambda y, s, r: {"nu": r, "mu": y, "scale": s * EYE}),
    "NegativeBinomial": (COUNTS, lambda y, s, r: {"mu": y, "alpha": s}),
    "Normal": (REALS, lambda y, s, r: {"mu": y, "sigma": s}),
    "NormalMixture": (
        REALS,
        lambda y, s, r: {"w": [0.3, 0.7], "mu": pt.stack([y, -y], -1), "sigma": s},
    ),
    "OrderedLogistic": (CATEGORIES, lambda y, s, r: {"eta": y, "cutpoints": cut(s)}),
    "OrderedProbit": (CATEGORIES, lambda y, s, r: {"eta": y, "cutpoints": cut(s)}),
    "Pareto": (POSITIVE, lambda y, s, r: {"alpha": y * s, "m": 0.1}),
    "Poisson": (COUNTS, lambda y, s, r: {"mu": y * s}),
    "Rice": (POSITIVE, lambda y, s, r: {"nu": y, "sigma": s}),
    "SkewNormal": (REALS, lambda y, s, r: {"mu": y, "sigma": s, "alpha": r}),
    "SkewStudentT": (REALS, lambda y, s, r: {"a": r, "b": s, "mu": y, "sigma": s}),
    "StudentT": (REALS, lambda y, s, r: {"nu": r, "mu": y, "sigma": s}),
    "Triangular": (SHARES, lambda y, s, r: {"lower": -y, "upper": 1.0 + s + r, "c": r}),
    "TruncatedNormal": (
        REALS,
        lambda y, s, r: {"mu": y, "sigma": s, "lower": -1.0, "upper": 3.0},
    ),
    "Uniform": (SHARES, lambda y, s, r: {"lower": -y, "upper": 1.0 + s}),
    "VonMises": (REALS, lambda y, s, r: {"mu": y, "kappa": s}),
    "Wald": (POSITIVE, lambda y, s, r: {"mu": y, "lam": s}),
    "Weibull": (POSITIVE, lambda y, s, r: {"alpha": s, "beta": y}),
    "ZeroInflatedBinomial": (
        COUNTS,
        lambda y, s, r: {"psi": share(s), "n": 9, "p": share(y * r)},
    ),
    "ZeroInflatedNegativeBinomial": (
        COUNTS,
        lambda y, s, r: {"psi": share(s), "mu": y, "alpha": r},
    ),
    "ZeroInflatedPoisson": (COUNTS, lambda y, s, r: {"psi": share(s), "mu": y}),
}
# Censored at 1, or at a count of 3.
CENSORED = {
    "Gamma": np.minimum(POSITIVE, 1.0),
    "NegativeBinomial": np.minimum(COUNTS, 3),
    "Normal": np.minimum(REALS, 1.0),
    "Poisson": np.minimum(COUNTS, 3),
    "StudentT": np.minimum(REALS, 1.0),
    "Weibull": np.minimum(POSITIVE, 1.0),
}
SOME = ["BetaBinomial", "Gamma", "NegativeBinomial", "StudentT"]
EVERY = [[name] for name in [*DISTRIBUTIONS, *[f"Censored {name}" for name in CENSORED]]]


def normal(sigma, n=None):
    return pm.Normal.dist(0.0, sigma, shape=n)


def observe(name, *parameters):
    kind = name.removeprefix("Censored ")
    data, arguments = DISTRIBUTIONS[kind]
    arguments = arguments(*parameters)
    if kind == name:
        getattr(pm, name)(name, **arguments, observed=data)
    else:
        data, dist = CENSORED[kind], getattr(pm, kind).dist(**arguments)
        pm.Censored(name, dist, lower=None, upper=data.max(), observed=data)


@pytest.mark.parametrize("names", EVERY if "FAULTS_EXAMPLES" in os.environ else [SOME], ids=str)
def test_outputs_go_anywhere(names, monkeypatch):
    monkeypatch.setattr(exact_gp_evaluation, "NEGLIGIBLE", 0.0)
    with pm.Model() as model:
        a, s, r = pm.Normal("a"), pm.LogNormal("s"), pm.LogNormal("r")
        y = kmc.BlackBox("y", lambda a: np.exp(0.1 * a * np.arange(4)), a, shape=4)
        for name in names:
            observe(name, y, s, r)
    density = density_of(model)
    assert isinstance(density.parameters, EmulatedParameters)
    hamiltonian = whitened_hamiltonian(density)
    x = np.array([0.2, -0.1, 0.3])
    value, gradient = density.log_density(x), density.gradient(x)
    assert np.isfinite(value)
    assert hamiltonian.log_density(x) == pytest.approx(value, rel=1e-9, abs=1e-7)
    # One leapfrog step from rest moves by the gradient.
    end, _ = hamiltonian.trajectory(x, np.zeros(3), step := 1e-2, 1)
    moved = density.coordinates.matrix @ (end - x)
    gradient = gradient @ density.coordinates.inverse
    np.testing.assert_allclose(2.0 * moved / step**2, gradient, rtol=2e-3, atol=1e-3)
