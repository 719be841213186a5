"""partial_posteriors: seeds, executors, interrupts, errors."""

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_kmc as kmc
from pymc_kmc.likelihoods.executors import ExecutorError
from tests.subsets import Conjugate, normal_data, template

two_processes = partial(ProcessPoolExecutor, 2, mp_context=multiprocessing.get_context("fork"))
DATA = normal_data(200)


def exact_run(subset, seed):
    """A number that depends on the rows, their order and the seed."""
    return np.random.default_rng(seed).normal(subset @ np.arange(1.0, len(subset) + 1.0))


def estimate(data=DATA, build=None, functional=None, sample=None, **options):
    model = Conjugate()
    settings = {"first_size": 8, "alpha": 0.5, "n_replications": 6, "random_seed": 4}
    return kmc.partial_posteriors(
        build or model.build,
        data,
        functional or model.functional,
        sample=sample or model.sample,
        progressbar=False,
        **settings | options,
    )


def test_subsets_are_nested_beginnings_of_one_permutation():
    model = Conjugate()
    result = estimate(np.arange(200.0), model.build, sample=model.sample, n_replications=20)
    first = 0
    for level in result.levels:
        subsets = model.subsets[first : first + level + 1]
        first += level + 1
        assert [len(subset) for subset in subsets] == result.schedule.sizes[: level + 1].tolist()
        for small, large in zip(subsets[:-1], subsets[1:], strict=True):
            np.testing.assert_array_equal(small, large[: len(small)])
        assert len(np.unique(subsets[-1])) == len(subsets[-1])
    assert first == len(model.subsets)
    # Permutations of different replications differ.
    beginnings = [tuple(subset) for subset in model.subsets if len(subset) == 8]
    assert len(set(beginnings)) == 20


def test_a_run_does_not_depend_on_how_far_its_replication_goes():
    """Both alphas truncate elsewhere; the first run's seed stays."""
    seeds = {}
    for alpha in (0.1, 5.0):
        seeds[alpha] = []

        def sample(model, seed, seen=seeds[alpha]):
            seen.append(seed)
            return {"theta": np.zeros((1, 3))}

        estimate(sample=sample, alpha=alpha, n_replications=1)
    assert len(seeds[0.1]) > len(seeds[5.0]) == 1
    assert seeds[0.1][0] == seeds[5.0][0]
    assert len(set(seeds[0.1])) == len(seeds[0.1])


def test_the_same_seed_gives_the_same_estimate():
    sequence = np.random.SeedSequence(4)
    first = estimate(random_seed=sequence)
    assert estimate(random_seed=sequence).estimate == first.estimate
    assert estimate(random_seed=4).estimate == first.estimate
    assert estimate(random_seed=5).estimate != first.estimate
    assert estimate(random_seed=[4, 5]).estimate != first.estimate
    drawn = [estimate(random_seed=np.random.default_rng(6)).estimate for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert estimate(random_seed=None).estimate != estimate(random_seed=None).estimate
    # More replications begin with the same ones.
    np.testing.assert_array_equal(
        estimate(n_replications=9).debiased[:6], estimate(random_seed=4).debiased
    )


def portable_build(subset):
    # The whole subset travels through the model's name, so that the process doesn't matter.
    with pm.Model() as model:
        pm.Normal("theta", 0.0, 1.0)
        pm.Data("subset", subset)
    return model


def portable_sample(model, seed):
    return {"theta": exact_run(model["subset"].get_value(), seed) * np.ones((1, 3))}


@pytest.mark.parametrize("executor", ["processes", "threads", "function"])
def test_the_estimate_does_not_depend_on_the_executor(executor):
    options = {"build": portable_build, "sample": portable_sample}
    expected = estimate(**options).debiased
    if executor == "function":
        found = estimate(executor=two_processes, **options)
    else:
        with two_processes() if executor == "processes" else ThreadPoolExecutor(2) as pool:
            found = estimate(executor=pool, **options)
    np.testing.assert_array_equal(found.debiased, expected)
    assert np.ptp(expected) > 0


def test_one_and_the_same_model_on_pm_sample():
    """pm.sample itself, at home and in another process."""

    def build(subset):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("theta", 0.0, 1.0), 1.0, observed=subset)
        return model

    options = {
        "build": build,
        "functional": "theta",
        "sample": {"step": kmc.AdaptiveMetropolis, "draws": 20, "tune": 20},
        "n_replications": 2,
    }
    here = estimate(**options)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        there = estimate(executor=pool, **options)
    np.testing.assert_array_equal(here.estimate, there.estimate)
    assert here.labels == ["mean of theta", "sd of theta"]


@pytest.mark.parametrize("kind", ["frame", "tuple", "dict"])
def test_containers(kind):
    container = {
        "frame": pd.DataFrame({"y": DATA}),
        "tuple": (DATA, np.arange(200)),
        "dict": {"y": DATA, "x": np.arange(200)},
    }[kind]
    model = Conjugate()

    def build(subset):
        y = subset[0] if kind == "tuple" else subset["y"]
        return model.build(np.asarray(y))

    assert estimate(container, build, sample=model.sample).estimate == estimate().estimate


# Interrupts


def test_an_interrupt_gives_what_there_is():
    model, calls = Conjugate(), []

    def sample(*arguments):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return model.sample(*arguments)

    result = estimate(build=model.build, sample=sample)
    whole = estimate()
    assert 0 < result.n_replications < 6
    assert result.interrupted and not whole.interrupted
    np.testing.assert_array_equal(result.debiased, whole.debiased[: result.n_replications])
    assert "Interrupted" in result.findings[0]


def test_an_interrupt_that_pm_sample_swallows():
    """pm.sample returns the draws so far; a path with such a run doesn't count."""
    # A process in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    handler, calls = signal.default_int_handler, []

    def sample(model, seed):
        calls.append(1)

        def interrupt(trace, draw):
            if len(calls) == 3 and draw.draw_idx == 20:
                signal.raise_signal(signal.SIGINT)

        with model:
            return pm.sample(
                20,
                tune=20,
                chains=1,
                cores=1,
                step=pm.Metropolis(),
                random_seed=seed,
                callback=interrupt,
                progressbar=False,
                compute_convergence_checks=False,
            )

    def build(subset):
        with pm.Model() as model:
            pm.Normal("theta", 0.0, 1.0)
        return model

    try:
        result = estimate(build=build, functional="theta", sample=sample, alpha=8.0)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.n_replications == 2
    assert len(calls) == 3


def test_an_interrupt_before_there_is_anything():
    def sample(model, seed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="no replication has ended"):
        estimate(sample=sample)


def test_an_interrupt_with_an_executor():
    """The report of the third replication is interrupted: the two before it stay."""
    from pymc_kmc.partial import estimator

    class Interrupting(estimator.AlikeCheck):
        n_checks = 0

        def __call__(self, runs):
            Interrupting.n_checks += 1
            if Interrupting.n_checks == 3:
                raise KeyboardInterrupt
            super().__call__(runs)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(estimator, "AlikeCheck", Interrupting)
        result = estimate(build=portable_build, sample=portable_sample, executor=pool)
    assert result.interrupted
    assert 2 <= result.n_replications <= 3


# Errors


def test_an_error_says_where_it_was_raised():
    def build(subset):
        if len(subset) > 8:
            raise ArithmeticError("too many")
        return template()

    with pytest.raises(ArithmeticError, match="too many") as caught:
        estimate(build=build, sample=lambda model, seed: {"theta": np.zeros((1, 3))})
    notes = "\n".join(caught.value.__notes__)
    assert "level 1, a subset of 16 data, random_seed=" in notes
    assert "first_size" not in notes


def test_an_error_at_the_first_level_names_the_remedy():
    def build(subset):
        raise ArithmeticError("singular")

    for executor in (None, two_processes):
        with pytest.raises(ArithmeticError, match="singular") as caught:
            estimate(build=build, executor=executor, n_replications=1)
        notes = "\n".join(caught.value.__notes__)
        assert "replication 0, level 0, a subset of 8 data" in notes
        assert "give a larger first_size" in notes
        assert ("in build\n" in notes) == (executor is not None)


def test_a_worker_that_dies():
    with pytest.raises(ExecutorError, match="crash in compiled code"):
        estimate(build=lambda subset: os._exit(1), executor=two_processes)


def test_replications_that_a_dying_worker_takes_along_are_run_again(tmp_path):
    def build(subset):
        if len(subset) > 8 and not died.exists():
            died.touch()
            os._exit(1)
        return portable_build(subset)

    died = tmp_path / "died"
    with two_processes() as pool, pytest.raises(ExecutorError, match="Give a function"):
        estimate(build=build, sample=portable_sample, executor=pool)
    died.unlink()
    found = estimate(build=build, sample=portable_sample, executor=two_processes)
    expected = estimate(build=portable_build, sample=portable_sample)
    assert died.exists()
    np.testing.assert_array_equal(found.debiased, expected.debiased)


def test_something_that_does_not_travel():
    lock = __import__("threading").Lock()
    with two_processes() as pool, pytest.raises(ExecutorError, match="pickle"):
        estimate(build=lambda subset: lock, executor=pool)


def test_models_of_other_variables():
    def build(subset):
        with pm.Model() as model:
            pm.Normal("theta" if len(subset) < 16 else "phi")
        return model

    with pytest.raises(ValueError, match=r"same variables .* \['theta'\] and one of \['phi'\]"):
        estimate(build=build, sample=lambda model, seed: {"theta": np.zeros((1, 3))})


def test_a_functional_whose_shape_grows():
    model = Conjugate()
    with pytest.raises(ValueError, match=r"shape \(8,\) and \(16,\)"):
        estimate(build=model.build, sample=model.sample, functional=lambda _: model.subsets[-1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"build": 3}, TypeError, "build must be a function, got 3"),
        ({"data": [1, 2]}, TypeError, "data must be an array"),
        ({"functional": 3}, TypeError, "functional must be"),
        ({"n_replications": 0}, ValueError, "n_replications must be .* got 0"),
        ({"n_replications": 2.5}, ValueError, "n_replications must be .* got 2.5"),
        ({"first_size": 201}, ValueError, "first_size must be .* 200, got 201"),
        ({"alpha": 0}, ValueError, "alpha must be a positive number, got 0"),
        ({"sample": 3}, TypeError, "sample must be"),
        ({"executor": 3}, TypeError, "executor must .* got 3"),
        ({"random_seed": "a"}, TypeError, "random_seed must be .* got 'a'"),
        ({"random_seed": -1}, TypeError, "random_seed must be .* got -1"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        estimate(**options)


def test_the_progress_bar_counts_replications(capsys):
    model = Conjugate()
    kmc.partial_posteriors(
        model.build,
        DATA,
        model.functional,
        first_size=8,
        alpha=0.5,
        n_replications=3,
        sample=model.sample,
        random_seed=1,
    )
    assert "3/3" in capsys.readouterr().out
