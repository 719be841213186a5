"""A trial of each fault; `python -m tests.faults` runs many."""

from tests.faults import trials
from tests.faults.scenarios import SCENARIOS


def test_one_trial_of_each():
    """In one process: the next trial is right after the one before, too."""
    outcomes = list(trials.run_all([(name, 0) for name in SCENARIOS]))
    assert [name for name, _, _ in outcomes] == list(SCENARIOS)
    assert [outcome for _, _, outcome in outcomes if outcome] == []


def test_a_trial_that_ends_its_process_is_counted(monkeypatch):
    def run(trials):
        if trials[0][1] == 0:
            yield ""  # and then the process is gone
        else:
            yield from len(trials) * [""]

    monkeypatch.setattr(trials, "_run_in_one_process", run)
    found = list(trials.run_all([("a", 0), ("b", 1), ("c", 2)]))
    assert [bool(outcome) for _, _, outcome in found] == [False, True, False]
