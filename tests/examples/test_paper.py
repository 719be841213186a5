"""The papers' figures and tables are made by one command, and a run is never made twice."""

import pandas as pd
import pytest

pytest.importorskip("threadpoolctl")  # of the extra `bench`
from matplotlib.image import imread  # noqa: E402

from examples.paper import __main__ as command  # noqa: E402
from examples.paper import frame, trajectories  # noqa: E402

pytestmark = pytest.mark.documentation


@pytest.mark.parametrize("name", command.experiments())
def test_each_in_its_quick_form(name, tmp_path, capsys):
    command.main([name, "--quick", "--folder", str(tmp_path)])
    table = capsys.readouterr().out
    assert table.count("\n| ") >= 3  # a header, a rule, a row
    assert imread(tmp_path / f"{name}.png").std() > 0.0


def test_help_lists_all(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    for name, one in command.experiments().items():
        assert f"{name:20} {one.about}" in text


def counted(calls, fails_at=None):
    """An experiment that notes its runs."""

    def run(sampler, size, seed):
        if (sampler, seed) == fails_at:
            raise KeyboardInterrupt
        calls.append((sampler, size, seed))
        return [{"x": x, "value": size + x + 0.5 * seed} for x in range(2)]

    def settings(quick, seeds):
        return [
            {"sampler": sampler, "size": 0.1, "seed": seed}
            for seed in range(seeds)
            for sampler in ("a", "b")
        ]

    def table(results):
        return frame.averages(results[results.x == 0], ["sampler"], {"value": ".2f"})

    def draw(results, figure):
        frame.lines(figure.subplots(), results, "x", "value", "sampler")

    return frame.Experiment("counted", "-", settings, run, table, draw, seeds=2)


def test_what_was_interrupted_goes_on_and_no_run_is_made_twice(tmp_path):
    calls = []
    with pytest.raises(KeyboardInterrupt):
        frame.execute(counted(calls, fails_at=("a", 1)), tmp_path)
    assert calls == [("a", 0.1, 0), ("b", 0.1, 0)]
    table = frame.execute(counted(calls), tmp_path)
    assert calls == [("a", 0.1, 0), ("b", 0.1, 0), ("a", 0.1, 1), ("b", 0.1, 1)]
    assert list(table.value) == 2 * ["0.35 +- 0.25"]
    # Fewer seeds are a part of what there is, more seeds are made beside it.
    assert list(frame.execute(counted(calls), tmp_path, seeds=1).value) == 2 * ["0.10"]
    assert len(calls) == 4
    frame.execute(counted(calls), tmp_path, seeds=3)
    assert calls[4:] == [("a", 0.1, 2), ("b", 0.1, 2)]
    assert len(pd.read_csv(tmp_path / "counted.csv")) == 12


def test_acceptance_is_one_on_the_true_energy_and_falls_with_its_error():
    target = trajectories.gaussian([1.0, 1.0])
    x, momentum = [[0.5, 0.0]], [[0.0, 1.0]]

    def chance(gradient):
        path = trajectories.leapfrog(gradient, *map(trajectories.np.array, (x, momentum)), 0.01, 50)
        return trajectories.acceptances(target, *path)

    assert chance(target.gradient).min() > 0.999
    assert chance(lambda x: -target.gradient(x))[-1, 0] < 0.8
