"""ABCPotential: kernels, what simulators may return, and what happens when they misbehave.

The likelihood has a closed form where summaries are N(x, V): with a Gaussian kernel it is the
density of N(x, V + epsilon^2 I), times (2 pi epsilon^2)^(p / 2). Averages of estimates are compared
with it at 4.5 standard errors: a false-alarm rate of 7e-6 a check; seeds are fixed.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

import pymc_kmc as kmc
from pymc_kmc.likelihoods.abc import KernelAverage
from tests.estimates import check_mean, estimates
from tests.targets import column, metropolis_chain, run, warnings_of

OBSERVED = np.array([0.5, -0.3, 0.4, 0.2])
EPSILON = 0.7
# To which share the estimates' means are known.
PRECISION = 0.1


def simulator(x, rng):
    return x + rng.standard_normal(4)


def many(x, rng, size):
    return x + rng.standard_normal((size, 4))


def potential(simulate=simulator, **options):
    """The op of a potential in a model of one variable, x, that starts at 0.2."""
    options = {"observed": OBSERVED, "epsilon": EPSILON} | options
    with pm.Model():
        x = pm.Normal("x", initval=0.2)
        return kmc.ABCPotential("abc", simulate, x, **options).owner.op


def weight(kernel, r):
    """The kernels as documented."""
    if kernel == "gaussian":
        return np.exp(-0.5 * r**2)
    return float(r <= 1) if kernel == "uniform" else max(0.0, 1 - r**2)


@pytest.mark.parametrize("simulate", [simulator, many])
@pytest.mark.parametrize("n", [1, 7])
def test_unbiased_with_data_as_summary(simulate, n):
    covariance = (1 + EPSILON**2) * np.eye(4)
    expected = multivariate_normal(OBSERVED, covariance).pdf(np.full(4, 0.6))
    expected *= (2 * np.pi * EPSILON**2) ** 2
    check_mean(estimates(potential(simulate, n_simulations=n), 0.6, 3000), expected, PRECISION)


@pytest.mark.parametrize("kernel", ["gaussian", "uniform", "epanechnikov"])
def test_unbiased_for_each_kernel(kernel):
    """The mean of the data is N(x, 1/4)."""
    options = {"kernel": kernel, "n_simulations": 5}
    one = potential(summary=np.mean, **options)
    all_at_once = potential(many, summary=lambda data: data.mean(axis=1), **options)

    def integrand(mean):
        return weight(kernel, abs(mean - OBSERVED.mean()) / EPSILON) * norm.pdf(mean, 0.9, 0.5)

    edges = OBSERVED.mean() + np.array([-EPSILON, EPSILON])
    expected, _ = quad(integrand, -5, 5, points=edges)
    check_mean(estimates(one, 0.9, 2000), expected, PRECISION)
    check_mean(estimates(all_at_once, 0.9, 2000), expected, PRECISION)


def test_a_distance_of_ones_own():
    def largest(simulated, observed):
        return np.max(np.abs(simulated - observed), axis=-1)

    options = {"distance": largest, "kernel": "uniform", "n_simulations": 5}
    ends = np.array([[-EPSILON], [EPSILON]])
    expected = np.prod(np.diff(norm.cdf(OBSERVED + ends - 0.2), axis=0))
    check_mean(estimates(potential(**options), 0.2, 2000), expected, PRECISION)
    check_mean(estimates(potential(many, **options), 0.2, 2000), expected, PRECISION)


@pytest.mark.parametrize("kernel", ["gaussian", "uniform", "epanechnikov"])
def test_weights_of_kernels(kernel):
    average = KernelAverage("abc", kernel, 2.0)
    for distance in (0.0, 0.5, 1.9, 2.0, 2.1, np.inf):
        assert np.exp(average([distance])) == pytest.approx(weight(kernel, distance / 2.0))
    for failed in (np.nan, np.inf):
        assert np.exp(average([0.5, failed])) == pytest.approx(0.5 * weight(kernel, 0.25))
        assert average([failed]) == average([failed, failed]) == -np.inf
    expected = np.mean([weight(kernel, r) for r in (0.25, 0.75, 3.0)])
    assert average([0.5, 1.5, 6.0]) == pytest.approx(np.log(expected))


@pytest.mark.parametrize("simulate", [simulator, many])
def test_the_same_noise_gives_the_same_estimate(simulate):
    op = potential(simulate)
    first, second = (
        op.noise.draw(10, np.random.default_rng(1)),
        op.noise.draw(10, np.random.default_rng(2)),
    )
    value = op.evaluate(first, 0.3)
    op.evaluate(second, 0.3)
    op._cache.clear()
    assert op.evaluate(first, 0.3) == value
    assert op.evaluate(second, 0.3) != value
    # One new seed is enough.
    first[3] = second[3]
    assert op.evaluate(first, 0.3) != value


def test_one_call_makes_all_data_sets():
    sizes = []

    def counting(x, rng, size):
        sizes.append(size)
        return many(x, rng, size)

    op = potential(counting, n_simulations=20)
    estimates(op, 0.0, 3)
    # The first ones are trials: can it run, and is it random?
    assert sizes == [1, 2, 20, 20, 20]


def test_size_may_be_a_parameter():
    def with_size(size, rng):
        return size + rng.standard_normal(4)

    assert not potential(with_size).noise.is_joint


def test_correlated_normals():
    def smooth(x, u):
        return x + u

    op = potential(smooth, n_normals=4, n_simulations=5)
    noise = op.noise.draw(5, np.random.default_rng(0))
    near = op.noise.renew(noise, np.random.default_rng(1))
    assert abs(op.evaluate(noise, 0.3) - op.evaluate(near, 0.3)) < 0.5
    expected = multivariate_normal(OBSERVED, (1 + EPSILON**2) * np.eye(4)).pdf(np.full(4, 0.3))
    check_mean(estimates(op, 0.3, 2000), expected * (2 * np.pi * EPSILON**2) ** 2, PRECISION)


def model_with(simulate, initval=0.2, **options):
    options = {"observed": OBSERVED, "epsilon": EPSILON} | options
    with pm.Model() as model:
        x = pm.Normal("x", initval=initval)
        kmc.ABCPotential("abc", simulate, x, **options)
    return model


def test_an_executor_gives_the_same_draws():
    here, _ = metropolis_chain(model_with(simulator, correlation=0.5))
    with ThreadPoolExecutor(2) as pool:
        model = model_with(simulator, correlation=0.5, executor=pool, timeout=60.0)
        there, _ = metropolis_chain(model)
    np.testing.assert_array_equal(here, there)
    assert len(set(here)) > 10


def test_auto_finds_a_number_of_simulations():
    model = model_with(many, n_simulations="auto", target_variance=0.5)
    _, statistics = metropolis_chain(model, n=130)
    n = statistics[-1]["kmc_n_replicates"]
    assert statistics[0]["kmc_n_replicates"] == 1
    op = potential(many, n_simulations=int(n))
    assert 0.15 < estimates(op, 0.2, 300).var() < 1.5


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"simulate": 3.0}, TypeError, "simulator of 'abc' must be callable"),
        ({"simulate": lambda x: OBSERVED}, TypeError, "can't be called as simulator"),
        ({"simulate": lambda x, y, rng: OBSERVED}, TypeError, "can't be called as simulator"),
        ({"simulate": lambda x, rng: None}, TypeError, "returned a data set that is None"),
        ({"simulate": lambda x, rng: OBSERVED[:3]}, TypeError, r"shape \(3,\), where \(4,\)"),
        ({"simulate": lambda x, rng: 1j * OBSERVED}, TypeError, "is of type complex128"),
        ({"simulate": lambda x, rng: "data"}, TypeError, "is of type <U4"),
        ({"simulate": lambda x, rng: [[1.0], [1.0, 2.0]]}, TypeError, "not an array"),
        (
            {"simulate": lambda x, rng: np.ma.masked_less(OBSERVED, 0)},
            TypeError,
            "is a masked array",
        ),
        (
            {"simulate": lambda x, rng: np.ma.masked_less(OBSERVED, 0), "summary": np.mean},
            TypeError,
            "is a masked array",
        ),
        ({"simulate": lambda x, rng, size: OBSERVED}, TypeError, r"\(4,\), where \(1, 4\)"),
        ({"observed": np.ma.masked_less(OBSERVED, 0)}, TypeError, "observed of 'abc' is a masked"),
        ({"observed": None}, TypeError, "observed of 'abc' is None"),
        ({"observed": [0.0, np.nan, 1.0, 1.0]}, ValueError, "observed of 'abc' has NaN"),
        (
            {"observed": [0.0, np.nan], "summary": np.mean},
            ValueError,
            "observed of 'abc' has a summary with NaN",
        ),
        ({"summary": 3}, TypeError, "summary of 'abc' must be callable"),
        ({"summary": lambda data: None}, TypeError, "observed of 'abc' has as its summary None"),
        (
            {"simulate": many, "summary": lambda data: data.mean(axis=0)},
            TypeError,
            "must keep that axis",
        ),
        ({"distance": 3}, TypeError, "distance of 'abc' must be callable"),
        ({"distance": np.subtract}, TypeError, r"distance must return a float: an array of shape"),
        ({"distance": lambda s, o: -1.0}, TypeError, "distance returned -1.0, which is negative"),
        (
            {"simulate": many, "distance": lambda s, o: np.abs(s - o)},
            TypeError,
            r"a float for each data set: has shape \(1, 4\)",
        ),
        ({"epsilon": 0.0}, ValueError, "epsilon of 'abc' must be a positive number, got 0.0"),
        ({"epsilon": np.nan}, ValueError, "epsilon of 'abc' must be"),
        ({"epsilon": "small"}, ValueError, "epsilon of 'abc' must be"),
        ({"kernel": "box"}, ValueError, "kernel='box' is unknown"),
        ({"n_simulations": 0}, ValueError, "n_simulations of 'abc' must be a positive whole"),
        ({"simulate": many, "correlation": 0.9}, ValueError, "correlation of 'abc' needs"),
        ({"simulate": many, "n_normals": 4}, ValueError, "n_normals of 'abc' needs"),
        (
            {"simulate": many, "executor": ThreadPoolExecutor},
            ValueError,
            "executor of 'abc' needs a simulator that makes one data set a call",
        ),
        ({"target_variance": 0.0}, ValueError, "target_variance of 'abc'"),
    ],
)
def test_what_is_wrong_is_found_when_the_model_is_built(options, error, message):
    with pytest.raises(error, match=message):
        potential(**options)


@pytest.mark.parametrize("data", [[1, 0, 2, 1], np.array([1, 0, 2, 1], np.uint8), OBSERVED > 0])
@pytest.mark.filterwarnings("ignore:The simulator of 'abc' returned the same data")
def test_counts_and_truth_values_are_data(data):
    op = potential(lambda x, rng: data, observed=[0, 0, 2, 1], n_simulations=1)
    first = float(np.asarray(data)[0])
    rest = np.sum((np.asarray(data, float)[1:] - [0, 2, 1]) ** 2)
    assert estimates(op, 0.0, 1)[0] == pytest.approx(-0.5 * (first**2 + rest) / EPSILON**2)


def test_data_may_be_anything_that_the_summary_takes():
    def simulate(x, rng):
        return {"events": [x] * rng.integers(1, 5)}

    op = potential(simulate, observed={"events": []}, summary=lambda d: len(d["events"]))
    assert np.isfinite(estimates(op, 0.0, 1)).all()


class Failing:
    """Misbehaves where x exceeds .5."""

    def __init__(self, result=None):
        self.result = result

    def __call__(self, x, rng, size=None):
        data = many(x, rng, size or 1)
        if x > 0.5:
            if self.result is None:
                raise ZeroDivisionError(f"solver failed at {data[0, 0]!r}")
            return self.result
        return data if size else data[0]


class FailingOne(Failing):
    def __call__(self, x, rng):
        return super().__call__(x, rng)


@pytest.mark.parametrize("kind", [Failing, FailingOne])
def test_an_error_has_the_parameters_and_the_seed_that_reproduce_it(kind):
    with pytest.raises(kmc.EstimatorError, match="simulator of 'abc' raised Zero") as caught:
        metropolis_chain(model_with(kind()))
    message = str(caught.value)
    value = float(message.split("x=")[1].split()[0])
    code = message.split("call the simulator with ")[1].splitlines()[0]
    with pytest.raises(ZeroDivisionError) as again:
        eval(f"simulate(value, {code})", {"simulate": kind(), "value": value, "numpy": np})
    assert str(again.value) in message
    assert ("size=10" in code) == (kind is Failing)


def test_a_wrong_shape_later_on_has_them_too():
    with pytest.raises(kmc.EstimatorError, match=r"shape \(2,\), where \(4,\)") as caught:
        metropolis_chain(model_with(FailingOne(np.zeros(2))))
    assert "PCG64(" in str(caught.value) and "x=" in str(caught.value)


def half_failing(simulate, value=np.nan):
    """The simulator, of one data set or of many; half of them are lost."""

    def one(x, rng):
        return simulate(x, rng) if rng.random() < 0.5 else np.full(4, value)

    def all_at_once(x, rng, size):
        return np.where(rng.random((size, 1)) < 0.5, simulate(x, rng, size), value)

    return one if simulate is simulator else all_at_once


def no_distance(simulated, observed):
    """NaN where the first value is positive."""
    distance = np.linalg.norm(simulated - observed, axis=-1)
    return np.where(simulated[..., 0] > 0, np.nan, distance)[()]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("simulate", [simulator, many])
@pytest.mark.parametrize("n", [1, 6])
def test_a_failed_simulation_is_infinitely_far(simulate, n, value):
    """Unbiased for half of the likelihood, whatever the number of simulations."""
    expected = multivariate_normal(OBSERVED, (1 + EPSILON**2) * np.eye(4)).pdf(np.full(4, 0.2))
    expected *= 0.5 * (2 * np.pi * EPSILON**2) ** 2
    op = potential(half_failing(simulate, value), n_simulations=n)
    check_mean(estimates(op, 0.2, 6000 // n), expected, 0.2)
    record = op.simulations
    # 6000 and the ones that the model's building makes: 4.5 standard errors are .03.
    assert record.n_failed / record.n_simulations == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("simulate", [simulator, many])
def test_a_distance_may_say_that_a_simulation_failed(simulate):
    op = potential(simulate, distance=no_distance, n_simulations=5)
    # The first value given that it is negative, by Gaussian conditioning.
    v = 1 / (1 + 1 / EPSILON**2)
    mean = v * (0.2 + OBSERVED[0] / EPSILON**2)
    first = norm(0.2, np.sqrt(1 + EPSILON**2)).pdf(OBSERVED[0]) * norm(mean, v**0.5).cdf(0.0)
    rest = multivariate_normal(OBSERVED[1:], (1 + EPSILON**2) * np.eye(3)).pdf(np.full(3, 0.2))
    expected = first * rest * (2 * np.pi * EPSILON**2) ** 2
    check_mean(estimates(op, 0.2, 3000), expected, PRECISION)


def chain_with_failures(simulate, n_tune=60, n=60, **options):
    """Places while tuning and after it, the statistics of both, and the step."""
    model = model_with(simulate, **options)
    step = kmc.AdaptiveMetropolis(model=model)
    step.set_rng(np.random.default_rng(3))
    before, statistics = run(step, model.initial_point(), n_tune)
    step.stop_tuning()
    after, more = run(step, before[-1], n)
    return column(before + after, "x"), statistics + more, step


@pytest.mark.parametrize("kind", [Failing, FailingOne])
def test_where_all_simulations_fail_is_a_plain_rejection(kind):
    wanted = (10, 4) if kind is Failing else 4
    simulate = kind(np.full(wanted, np.nan))
    options = {"executor": ThreadPoolExecutor} if kind is FailingOne else {}
    places, statistics, step = chain_with_failures(simulate, n_simulations=10, **options)
    assert max(places) <= 0.5
    assert statistics[-1]["kmc_n_invalid"] == 0
    (record,) = step.target.simulations
    assert record.n_failed > 100 and record.n_failed % 10 == 0
    assert statistics[-1]["kmc_failed_share"] == record.n_failed / record.n_simulations
    messages = warnings_of(statistics)
    assert sum("simulations for 'abc' failed" in message for message in messages) == 1
    # Counted by chain.
    step.set_rng(np.random.default_rng(4))
    assert np.isnan(step.target.failed_share)


def test_rare_failures_are_counted_and_not_warned_about():
    def rarely(x, rng, size):
        return np.where(rng.random((size, 1)) < 0.98, many(x, rng, size), np.nan)

    _, statistics, _ = chain_with_failures(rarely, n_simulations=20)
    assert 0.01 < statistics[-1]["kmc_failed_share"] < 0.03
    assert not any("failed" in message for message in warnings_of(statistics))


def test_a_start_whose_simulations_all_fail_is_named_and_may_be_left():
    def failing(x, rng, size):
        return np.full((size, 4), np.nan) if x < 0 else many(x, rng, size)

    places, statistics, _ = chain_with_failures(failing, initval=-0.5, n_tune=100)
    first = warnings_of(statistics)[0]
    assert "starts where the estimate of the log likelihood is -inf. 10 of 10 simul" in first
    assert max(places) > 0


def test_a_chain_that_sticks_where_all_simulations_fail_names_them():
    def lost(x, rng, size):
        return np.full((size, 4), np.nan)

    _, statistics, _ = chain_with_failures(lost, n_tune=520, n=0)
    (message,) = [m for m in warnings_of(statistics) if "No proposal was accepted" in m]
    assert "simulations for 'abc' failed, with NaN or infinite results" in message
    assert "distances" not in message


def test_an_epsilon_that_nothing_reaches_is_named_with_the_smallest_distance():
    seen = []

    def recorded(x, rng, size):
        data = many(x, rng, size)
        seen.extend(np.linalg.norm(data - OBSERVED, axis=1))
        return data

    model = model_with(recorded, kernel="uniform", epsilon=1e-3, n_simulations=2)
    places, statistics = metropolis_chain(model, n=520)
    assert len(set(places)) == 1
    messages = warnings_of(statistics)
    assert "starts where the estimate of the log likelihood is -inf" in messages[0]
    (message,) = [m for m in messages if "No proposal was accepted" in m]
    assert "so is acceptance" in message and "epsilon=0.001" in message
    assert "lucky" not in message
    # The chain's last few simulations came after the warning.
    assert any(f"was {min(seen[1:n]):.3g}," in message for n in range(1000, len(seen) + 1))


def test_a_small_epsilon_is_named_for_a_gaussian_kernel_too():
    average = KernelAverage("abc", "gaussian", 0.1)
    assert average.explain() == ""
    average([3.0, 2.0, np.nan])
    assert "smallest of 2 distances" in average.explain() and "was 2," in average.explain()
    average([0.05])
    assert "epsilon" not in average.explain()
    average.forget()
    assert average.smallest == np.inf


def test_a_simulator_that_seems_to_be_constant_is_told():
    def rare(x, rng):
        """Differs once in a while."""
        return np.full(4, rng.random() < 0.4)

    for constant in (lambda x, rng: np.ones(4), lambda x, rng, size: np.ones((size, 4))):
        with pytest.warns(UserWarning, match="simulator of 'abc' returned the same data 10 times"):
            potential(constant)
    with pytest.warns(UserWarning, match="returned the same summary 10 times"):
        potential(summary=lambda data: [len(data)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential(rare)
        potential()
        potential(many)
