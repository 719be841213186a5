"""What was learned of a target: a value, that learns where it was uncertain or wrong."""

import dataclasses

import numpy as np
import pytest

from pymc_kmc.adaptation.fitted import LogWeights
from pymc_kmc.numerics.coordinates import IDENTITY
from pymc_kmc.surrogates import LogDensityGP
from tests.bananas import Banana
from tests.fitted import fitted_surrogate, snapshot, stretching_warp

BANANA = Banana()


def fitted_to_the_middle(n=300, farthest=4.0, warp=IDENTITY):
    """What is learned from draws of a banana's middle, and these."""
    X = BANANA.draws(n, np.random.default_rng(3))
    X = X[np.abs(X[:, 0]) < farthest]
    values = BANANA.log_density(X)
    surrogate = LogDensityGP(100, rng=0).fit(warp.forward(X), values + warp.log_volume(X))
    return fitted_surrogate(surrogate, X, values, warp), X


@pytest.fixture(scope="module")
def middle():
    return fitted_to_the_middle()


def learn(fitted, x, value):
    return fitted.learn(fitted.compare(x, float(value)))


FAR = np.array([7.0, 12.0])


def test_learns_from_what_was_uncertain_or_wrong_alone(middle):
    fitted, X = middle
    known = X[0] + 0.01
    assert learn(fitted, known, BANANA.log_density(known)) is fitted
    wrong = BANANA.log_density(known) - 1.0
    assert learn(fitted, known, wrong) is not fitted
    learned = learn(fitted, FAR, BANANA.log_density(FAR))
    assert learned is not fitted
    assert abs(learned.surrogate.predict(FAR) - BANANA.log_density(FAR)) < 0.1


def test_values_far_below_the_bulk_are_left_to_the_next_fit():
    fitted, _ = fitted_to_the_middle(farthest=np.inf)
    for place in np.array([[0.0, 15.0], [0.0, -25.0]]):
        surprise = fitted.surrogate.predict(place) - 20.0
        assert learn(fitted, place, surprise) is fitted


@pytest.mark.parametrize("warp", [IDENTITY, stretching_warp()], ids=["plain", "warped"])
def test_what_learns_is_a_new_value_and_the_old_one_stays_as_it_was(warp):
    """Every bit of it, the surrogate's own included; also after a surrogate has learned often."""
    fitted, _ = fitted_to_the_middle(warp=warp)
    chain = [fitted]
    before = [snapshot(fitted)]
    for x1 in (5.0, -5.0, 6.0, -6.0, 7.0):
        x = np.array([x1, BANANA.ridge(x1)])
        chain.append(learn(chain[-1], x, BANANA.log_density(x) + 1.0))
        before.append(snapshot(chain[-1]))
    assert len({id(value.surrogate) for value in chain}) == 6
    assert len(set(before)) == 6
    assert [snapshot(value) for value in chain] == before


def test_nothing_of_it_can_be_set(middle):
    fitted, _ = middle
    with pytest.raises(dataclasses.FrozenInstanceError):
        fitted.surrogate = None


def test_transitions_and_log_weights_follow_what_is_learned(middle):
    """Predictions contain the constant and log weights don't: the usual one stays the same."""
    fitted, X = middle
    learned = learn(fitted, FAR, BANANA.log_density(FAR) - 2.0)
    assert learned.surrogate.constant_ != fitted.surrogate.constant_
    moved = learned.hamiltonian
    assert learned.transitions.hamiltonian is learned.log_weights.hamiltonian is moved
    np.testing.assert_array_equal(
        moved.parameters.coefficients, learned.surrogate.parameters_.coefficients
    )
    assert moved.log_density(FAR) == pytest.approx(learned.surrogate.log_density(FAR))
    assert learned.transitions._replace(hamiltonian=None) == fitted.transitions._replace(
        hamiltonian=None
    )
    for x in X[:20]:
        value = float(BANANA.log_density(x))
        weight = learned.log_weights(x, value) + learned.log_weights.median
        assert weight == pytest.approx(value - learned.surrogate.log_density(x), abs=1e-6)
        usual = value - learned.surrogate.predict(x)
        assert learned.log_weights(x, value) == pytest.approx(usual, abs=0.3)


def test_a_comparison_is_in_the_surrogates_coordinates():
    warp = stretching_warp()
    fitted, X = fitted_to_the_middle(warp=warp)
    value = float(BANANA.log_density(X[0]))
    comparison = fitted.compare(X[0], value)
    np.testing.assert_array_equal(comparison.place, warp.forward(X[0]))
    assert comparison.value == value + warp.log_volume(X[0])
    assert comparison.predicted == pytest.approx(fitted.surrogate.predict(warp.forward(X[0])))
    assert comparison.error < 0.2 and 0 < comparison.std < 0.3


def test_excess_is_that_of_the_place_in_the_surrogates_coordinates():
    """Nine nats too high: very large, and as the log weights say in their coordinates."""
    warp = stretching_warp()
    fitted, X = fitted_to_the_middle(warp=warp)
    value = float(BANANA.log_density(X[0]))
    assert fitted.excess(X[0], value) == 0.0
    assert fitted.excess(X[0], value + 9.0) == 1.0
    expected = fitted.log_weights.excess(warp.forward(X[0]), value + 2.0 + warp.log_volume(X[0]))
    assert fitted.excess(X[0], value + 2.0) == expected
    assert 0.0 < expected < 1.0


def test_weighed_by_other_states(middle):
    fitted, _ = middle
    X = BANANA.draws(200, np.random.default_rng(4))
    weighed = fitted.weighed(X, BANANA.log_density(X))
    expected = LogWeights.of(fitted.hamiltonian, X, BANANA.log_density(X))
    assert weighed.log_weights == expected != fitted.log_weights
    assert weighed.surrogate is fitted.surrogate and weighed.transitions is fitted.transitions
