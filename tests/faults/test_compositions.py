"""Random compositions around a black box: what is learned is right, or said to be doubtful.

A box's outputs, terms or log likelihood are clipped, switched, replaced where they are NaN,
indexed, weighted, mixed, used twice and boxed again; likelihoods are of many kinds. Moments and
evidence are compared with sums over a grid of the model's own log density, asked point by point.
A mode where the prior hardly ever comes may be missed, as `learn` says: all else must be right.
`FAULTS_EXAMPLES=200 pytest tests/faults/test_compositions.py` tries more.
"""

import os
from collections import Counter

import pytensor
from hypothesis import HealthCheck, Phase, assume, given, settings

from tests.compositions import built, compositions
from tests.honesty import TooRough, deviation, exact_moments, learn

# In `make test`: each takes two to five seconds.
FEW = 6
N_EXAMPLES = int(os.environ.get("FAULTS_EXAMPLES", FEW))
# Evaluations that learning has: enough for a smooth curve of two parameters.
MOST = 200
# Share of the models that must be learned without a doubt: who doubts everything is never wrong.
SURE = 0.5


def test_moments_are_right_or_doubted():
    outcomes, wrong = Counter(), []

    # Shrinking takes minutes, and a composition is short as it is.
    @settings(
        max_examples=N_EXAMPLES,
        derandomize=N_EXAMPLES == FEW,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(compositions())
    def check(text):
        found, message = outcome(text)
        assume(found != "too rough")
        outcomes[found] += 1
        if found == "wrong":
            wrong.append(f"{message}\n{text}")

    check()
    print(dict(outcomes))
    assert not wrong, "\n\n".join(wrong)
    assert outcomes["right"] >= SURE * outcomes.total(), outcomes


def outcome(text):
    """Return what came of a model, and why.

    That is "right", "doubted", "wrong", "hidden" where the prior hardly comes to what was missed,
    or, where no grid can tell, "too rough".
    """
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        model = built(text)
        try:
            exact = exact_moments(model)
        except TooRough as error:
            return "too rough", str(error)
        learned = learn(model, random_seed=1, max_evaluations=MOST)
        if learned.is_doubtful:
            return "doubted", str(learned.refusal or learned.messages)
        if message := deviation(learned, exact):
            common = exact_moments(model, with_rare=False)
            return ("wrong" if deviation(learned, common) else "hidden"), message
    return "right", ""
