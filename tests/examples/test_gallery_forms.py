"""Models of PyMC's gallery without gradients, as written there: ``step=kmc.KMC()`` is the change.

A black-box likelihood as an Op in a CustomDist; an ODE solver by ``as_op``;
a ``pm.Simulator``. Data and chains are shorter.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import as_op
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy.integrate import odeint

import pymc_kmc as kmc
from tests.chains import ONE_CHAIN
from tests.estimates import z_score_of_draws

pytestmark = pytest.mark.documentation

# Standard errors that a short chain's mean may be off.
TOLERANCE = 6.0

# Black-box likelihood (numpy): a straight line.

SIGMA = 1.0
X = np.linspace(0.0, 9.0, 10)
DATA = 0.4 * X + 3.0 + SIGMA * np.random.default_rng(716743).standard_normal(10)


def my_loglike(m, c, sigma, x, data):
    return -0.5 * ((data - (m * x + c)) / sigma) ** 2 - np.log(np.sqrt(2 * np.pi)) - np.log(sigma)


class LogLike(Op):
    def make_node(self, m, c, sigma, x, data):
        inputs = [pt.as_tensor(value) for value in (m, c, sigma, x, data)]
        return Apply(self, inputs, [inputs[-1].type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(my_loglike(*inputs))


loglike_op = LogLike()


def custom_dist_loglike(data, m, c, sigma, x):
    return loglike_op(m, c, sigma, x, data)


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_black_box_likelihood():
    with pm.Model():
        m = pm.Uniform("m", lower=-10.0, upper=10.0)
        c = pm.Uniform("c", lower=-10.0, upper=10.0)
        pm.CustomDist("likelihood", m, c, SIGMA, X, observed=DATA, logp=custom_dist_loglike)
        idata = pm.sample(step=kmc.KMC(), tune=400, draws=200, random_seed=1, **ONE_CHAIN)
    # The prior is flat where the likelihood has its mass.
    design = np.stack([X, np.ones(10)], axis=1)
    covariance = SIGMA**2 * np.linalg.inv(design.T @ design)
    expected = covariance @ design.T @ DATA / SIGMA**2
    for i, name in enumerate(["m", "c"]):
        draws = idata.posterior[name].values
        assert abs(z_score_of_draws(draws, expected[i])) < TOLERANCE
        assert draws.std() == pytest.approx(covariance[i, i] ** 0.5, rel=0.4)


# Lotka-Volterra: the ODE by SciPy, wrapped by as_op.

YEARS = np.arange(1900.0, 1921.0)
# Hares and lynxes, in thousands of pelts of the Hudson's Bay Company.
HARES = [30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1, 40.3, 57.0, 76.6]
HARES += [52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNXES = [4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4, 8.0, 12.3, 19.5, 45.7]
LYNXES += [51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
PELTS = np.stack([HARES, LYNXES], axis=1)
# Least squares.
THETA = np.array([0.48, 0.025, 0.93, 0.028, 34.9, 3.86])


def rhs(populations, t, theta):
    x, y = populations
    alpha, beta, gamma, delta, *_ = theta
    return [alpha * x - beta * x * y, -gamma * y + delta * x * y]


@as_op(itypes=[pt.dvector], otypes=[pt.dmatrix])
def pytensor_forward_model_matrix(theta):
    return odeint(func=rhs, y0=theta[-2:], t=YEARS, args=(theta,))


@pytest.mark.filterwarnings("ignore:Numba will use object mode", "ignore:Excess work done")
def test_lotka_volterra_by_as_op():
    with pm.Model() as model:
        alpha = pm.TruncatedNormal("alpha", mu=THETA[0], sigma=0.1, lower=0, initval=THETA[0])
        beta = pm.TruncatedNormal("beta", mu=THETA[1], sigma=0.01, lower=0, initval=THETA[1])
        gamma = pm.TruncatedNormal("gamma", mu=THETA[2], sigma=0.1, lower=0, initval=THETA[2])
        delta = pm.TruncatedNormal("delta", mu=THETA[3], sigma=0.01, lower=0, initval=THETA[3])
        xt0 = pm.TruncatedNormal("xto", mu=THETA[4], sigma=1, lower=0, initval=THETA[4])
        yt0 = pm.TruncatedNormal("yto", mu=THETA[5], sigma=1, lower=0, initval=THETA[5])
        sigma = pm.HalfNormal("sigma", 10)
        ode_solution = pytensor_forward_model_matrix(
            pm.math.stack([alpha, beta, gamma, delta, xt0, yt0])
        )
        pm.Normal("Y_obs", mu=ode_solution, sigma=sigma, observed=PELTS)
        idata = pm.sample(step=kmc.KMC(), tune=300, draws=100, random_seed=1, **ONE_CHAIN)
        start = float(model.compile_logp()(model.initial_point()))
    assert idata.sample_stats["kmc_accepted"].values.mean() > 0.1
    assert idata.sample_stats["lp"].values.mean() > start
    # The residuals' standard deviation at the least-squares solution.
    theta = THETA
    residuals = odeint(rhs, theta[-2:], YEARS, args=(theta,)) - PELTS
    assert idata.posterior["sigma"].values.mean() == pytest.approx(residuals.std(), rel=0.4)


# SMC-ABC: a simulator of normal data, compared by its order statistics.


def normal_sim(rng, a, b, size=200):
    return rng.normal(a, b, size=size)


def test_simulator():
    data = np.random.default_rng(42).normal(loc=0, scale=1, size=200)
    with pm.Model():
        a = pm.Normal("a", mu=0, sigma=5)
        b = pm.HalfNormal("b", sigma=1)
        pm.Simulator("s", normal_sim, a, b, sum_stat="sort", epsilon=1, observed=data)
        idata = pm.sample(step=kmc.KMC(), tune=500, draws=300, random_seed=1, **ONE_CHAIN)
    assert idata.sample_stats["kmc_accepted"].values.mean() > 0.03
    assert idata.posterior["a"].values.mean() == pytest.approx(0.0, abs=0.3)
    assert idata.posterior["b"].values.mean() == pytest.approx(1.0, abs=0.3)
