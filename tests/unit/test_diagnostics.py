"""What limits a chain is said, with the remedy, from the statistics alone."""

import copy
import dataclasses
import re
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_kmc as kmc
from pymc_kmc.diagnostics import LABELS
from pymc_kmc.notebook import number
from pymc_kmc.runs import Run
from tests.chains import run, short_sequences
from tests.learned import curve, decay
from tests.models import noisy_gaussian
from tests.targets import warnings_of

# With 3000, some 1300 effective ones, R-hat was 1.013 on a seed of eleven.
N_DRAWS = 6000
# Distances of fresh values from a surrogate that is 5 nats off, noise of .7 to 1.2 included.
ERRORS = 5.0 * np.random.default_rng(0).standard_normal(N_DRAWS)
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "random_seed": 1}


@pytest.fixture(scope="module")
def noisy():
    with noisy_gaussian(1.0), short_sequences():
        return pm.sample(step=kmc.KMC(learn=False), tune=1000, draws=N_DRAWS, chains=2, **QUIET)


def with_statistics(idata, **values):
    """The same run with other statistics; its tuning is as long as the step asks for.

    Evaluations take a microsecond, however busy the computer was.
    """
    changed = copy.deepcopy(idata)
    usual = {"kmc_default_tune": 1000, "kmc_evaluation_time": 1e-6}
    for name, value in (usual | values).items():
        changed.sample_stats[name].values[:] = value
    return changed


def test_a_good_run_has_nothing_to_complain_of(noisy):
    diagnosis = kmc.diagnose(with_statistics(noisy, kmc_proposal_time=0.0))
    assert diagnosis.findings == ()
    assert str(diagnosis).startswith("Good: R-hat is at most 1.0")
    assert "effective draws of everything.\n14,0" in str(diagnosis)
    chains, statistics = diagnosis.chains, noisy.sample_stats
    assert list(chains.index) == [0, 1]
    np.testing.assert_allclose(chains["acceptance"], statistics["kmc_accepted"].mean("draw"))
    np.testing.assert_allclose(chains["ideal"], statistics["kmc_ideal_acceptance"][:, -1])
    np.testing.assert_array_equal(chains["evaluations"], 1.0)
    assert (chains["transitions"] > 1).all() and (chains["random walks"] < 0.2).all()
    assert diagnosis.posterior["r_hat"] < 1.02 and diagnosis.posterior["ess_bulk"] > 200


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ({"kmc_noise_variance": 6.0, "kmc_ideal_acceptance": 0.08}, "Use 3 times as many"),
        ({"kmc_noise_variance": 0.01}, "better than they need to be, variance 0.01"),
        ({"kmc_noise_variance": np.nan, "kmc_ideal_acceptance": np.nan}, "was not measured"),
        ({"kmc_zero_share": 0.9}, "Zeros limit the chains: 90 %.* Use about 22 times"),
        ({"kmc_failed_share": 0.4}, "40 % of the simulations failed. They count as infinitely far"),
        ({"kmc_prediction_error": ERRORS}, "surrogate limits chains: .* deviation (4.9|5) nats"),
        ({"kmc_prediction_error": ERRORS, "kmc_n_fits": 0}, "The given surrogate is not of"),
        (
            {"kmc_steps_since_accept": 400, "kmc_noise_variance": 2.5},
            "one place for 400 iterations. A lucky estimate",
        ),
        ({"kmc_steps_since_accept": 400, "kmc_noise_variance": 0.2}, "far above its surrogate"),
        ({"kmc_n_invalid": 7}, "NaN or .inf 14 times"),
        ({"kmc_default_tune": 2100}, "shorter than the step asks for, 1000 .* for 2100"),
        ({"kmc_proposal_time": 9.0, "kmc_evaluation_time": 1.0}, "takes 1e.03 ms, less than a"),
    ],
)
def test_what_limits_a_chain_is_said(noisy, statistics, message):
    statistics = {"kmc_proposal_time": 0.0} | statistics
    findings = kmc.diagnose(with_statistics(noisy, **statistics)).findings
    assert len(findings) == 1, findings
    (finding,) = findings
    assert re.search(message, finding)


def test_a_long_stay_where_noise_was_not_measured_may_be_for_zeros(noisy):
    unmeasured = {"kmc_noise_variance": np.nan, "kmc_ideal_acceptance": np.nan}
    changed = with_statistics(noisy, kmc_steps_since_accept=400, kmc_proposal_time=0, **unmeasured)
    findings = " ".join(kmc.diagnose(changed).findings)
    assert "so do proposals whose estimates are zero; kmc.estimate_noise(model, idata)" in findings


def test_a_large_variance_that_does_no_harm_is_no_limit(noisy):
    """A few outliers make it: perfect proposals were accepted, as measured."""
    changed = with_statistics(
        noisy, kmc_noise_variance=6.0, kmc_ideal_acceptance=0.6, kmc_proposal_time=0.0
    )
    assert kmc.diagnose(changed).findings == ()


def test_advice_does_not_contradict_itself(noisy):
    """A poor surrogate of a cheap model: not more and fewer landmarks, not more and fewer draws."""
    changed = with_statistics(
        noisy, kmc_prediction_error=ERRORS, kmc_proposal_time=9.0, kmc_evaluation_time=1.0
    )
    findings = kmc.diagnose(changed).findings
    assert sum("n_landmarks" in finding for finding in findings) == 1
    stuck = with_statistics(
        noisy, kmc_steps_since_accept=400, kmc_noise_variance=0.01, kmc_proposal_time=0.0
    )
    findings = " ".join(kmc.diagnose(stuck).findings)
    assert "fewer simulations" in findings and "more simulations" not in findings


def moved(idata, n_still):
    """The same run beside a step that moves z slowly, and with `n_still` rejections in a row."""
    changed = with_statistics(idata, kmc_proposal_time=0.0)
    n = changed.sample_stats["kmc_accepted"].sizes["draw"]
    changed.sample_stats["kmc_accepted"].values[:, :n_still] = False
    changed.posterior["x"].values[:, :n_still] = changed.posterior["x"].values[:, :1]
    z = np.cumsum(np.random.default_rng(1).standard_normal((2, n)), axis=1)
    changed.posterior["z"] = changed.posterior["x"].copy(data=z)
    return changed


def test_a_slow_step_beside_is_what_is_blamed(noisy):
    findings = kmc.diagnose(moved(noisy, 20)).findings
    assert any(f.startswith("'z' has the fewest effective draws, and another") for f in findings)
    assert not any("surrogate" in f or "draw more." in f for f in findings)


def test_zero_estimates_are_what_is_blamed():
    """ABC with a uniform kernel and a small epsilon, where most estimates are zero."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Normal("x")
        kmc.ABCPotential(
            "abc",
            lambda x, rng: x + rng.standard_normal(2),
            x,
            observed=[0.3, 0.5],
            epsilon=0.3,
            kernel="uniform",
            n_simulations=3,
        )
        step = kmc.AdaptiveMetropolis(rng=rng)
    _, statistics = run(step, model.initial_point(), 1200)
    last = statistics[-1]
    # 22 fresh estimates, of which .87 or so are zero: 4.5 standard deviations.
    assert last["kmc_zero_share"] > 0.5
    step.stop_tuning()
    _, statistics = run(step, model.initial_point(), 1)
    assert "were zero where the chain was" in warnings_of(statistics)[0]


def test_failed_simulations_are_found_in_chains_of_other_processes():
    def simulator(x, rng, size):
        return np.where(rng.random((size, 1)) < 0.8, x + rng.standard_normal((size, 2)), np.nan)

    with pm.Model():
        x = pm.Normal("x")
        kmc.ABCPotential("abc", simulator, x, observed=[0.3, 0.5], epsilon=1.0)
        two = {"chains": 2, "cores": 2, "mp_ctx": "fork"}
        idata = pm.sample(50, tune=50, step=kmc.AdaptiveMetropolis(), **QUIET | two)
    diagnosis = kmc.diagnose(idata)
    # Some 1000 simulations a chain: 4.5 standard errors.
    np.testing.assert_allclose(diagnosis.chains["failed simulations"], 0.2, atol=0.06)
    assert any("% of the simulations failed." in finding for finding in diagnosis.findings)
    assert "share of simulations that failed" in diagnosis._repr_html_()


@pytest.mark.parametrize("n_chains", [1, 2])
def test_constants_make_no_warnings(n_chains):
    draws = np.random.default_rng(2).standard_normal((n_chains, 50, 2))
    draws[..., 0] = 1.0
    statistics = {"kmc_accepted": (("chain", "draw"), np.ones((n_chains, 50), dtype=bool))}
    groups = {"constant": np.ones((n_chains, 50)), "half": draws}
    posterior = {k: (("chain", "draw", "i")[: v.ndim], v) for k, v in groups.items()}
    idata = SimpleNamespace(posterior=xr.Dataset(posterior), sample_stats=xr.Dataset(statistics))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(kmc.diagnose(idata).posterior["ess_bulk"])


def test_chains_that_disagree_and_are_short(noisy):
    apart = copy.deepcopy(noisy)
    apart.posterior["x"].values[1] += 5.0
    findings = kmc.diagnose(apart).findings
    assert any("Chains disagree" in finding for finding in findings)
    assert any("effective draws are few, 400 would do" in finding for finding in findings)


def test_the_verdict_says_what_is_missing_and_why(noisy):
    noise = {"kmc_noise_variance": 6.0, "kmc_ideal_acceptance": 0.08}
    few = with_statistics(noisy, **noise).sel(draw=slice(0, 300))
    verdict = kmc.diagnose(few).verdict
    assert re.match(r"Not yet: .*'x' has \d+ effective draws.*, fewer than 400, because ", verdict)
    stuck = with_statistics(noisy, kmc_steps_since_accept=400)
    verdict = kmc.diagnose(stuck).verdict
    assert verdict.startswith("In doubt: ")
    assert verdict.endswith("but a chain stayed at one place for 400 iterations.")
    one = copy.deepcopy(noisy).sel(chain=[0])
    one.posterior["x"].values[:] = np.random.default_rng(4).standard_normal((1, N_DRAWS))
    one = kmc.diagnose(one).verdict
    assert one.startswith("Good, as far as one chain can tell: at least ")
    apart = copy.deepcopy(noisy)
    apart.posterior["x"].values[1] += 5.0
    verdict = kmc.diagnose(apart).verdict
    assert re.match(r"Not yet: R-hat is \d.*because chains disagree about the posterior\.", verdict)


def test_one_chain_with_far_noisier_estimates_is_in_doubt(noisy):
    """5.2 beside .1 passed, where perfect proposals are accepted often all the same."""
    changed = with_statistics(noisy, kmc_noise_variance=0.15, kmc_proposal_time=0.0)
    assert kmc.diagnose(changed).findings == ()
    changed.sample_stats["kmc_noise_variance"].values[1] = 5.2
    changed.sample_stats["kmc_ideal_acceptance"].values[:] = 0.6
    diagnosis = kmc.diagnose(changed)
    assert "but chain 1 has far noisier estimates than the others" in diagnosis.verdict
    (finding,) = diagnosis.findings
    assert "variance 5.2 for 0.15 to 0.15" in finding


def test_tails_that_are_less_known_than_the_middle():
    """Two chains whose sign is drawn anew each time and whose size hardly changes."""
    rng, shape = np.random.default_rng(3), (2, 4000)
    size = np.exp(0.02 * np.cumsum(rng.standard_normal(shape), axis=1))
    x = size * rng.choice([-1, 1], shape)
    statistics = {"kmc_accepted": (("chain", "draw"), np.ones(shape, dtype=bool))}
    idata = SimpleNamespace(
        posterior=xr.Dataset({"x": (("chain", "draw"), x)}), sample_stats=xr.Dataset(statistics)
    )
    diagnosis = kmc.diagnose(idata)
    assert any(re.match("The tails are less known.*'x'", each) for each in diagnosis.findings)


def test_learning_once_is_named_where_chains_learned_by_themselves(noisy):
    costly = {"kmc_evaluation_time": 0.1, "kmc_proposal_time": 0.0}
    hint = "kmc.KMC(kmc.learn(model)) learns once"
    for statistics, says in [
        ({"kmc_default_tune": 2100}, True),
        ({"kmc_prediction_error": ERRORS}, True),
        ({"kmc_n_tuning_evaluations": 2 * N_DRAWS}, True),
        ({}, False),
        ({"kmc_default_tune": 2100, "kmc_n_learning_evaluations": 90}, False),
        ({"kmc_default_tune": 2100, "kmc_evaluation_time": 1e-4}, False),
    ]:
        findings = kmc.diagnose(with_statistics(noisy, **costly | statistics)).findings
        assert any(hint in finding for finding in findings) == says, statistics


def test_evaluations_are_counted_where_they_went():
    """A learned posterior's, those of tuning, which PyMC discards, and those of drawing."""
    calls = []

    def counted(size, rate):
        calls.append(size)
        return decay(size, rate)

    with curve(counted):
        before = len(calls)
        step = kmc.KMC()
        n_learned = len(calls) - before
        idata = pm.sample(step=step, tune=60, draws=50, chains=2, **QUIET)
    found = kmc.diagnose(idata).evaluations
    assert 0.8 * n_learned <= found.learning <= n_learned  # the box is tried out, too
    assert 2 * 8 <= found.tuning <= 2 * 10 and found.drawing == 100
    assert str(found).startswith(f"{found.learning + found.tuning + 100} evaluations: ")
    old = xr.Dataset(idata.sample_stats.data_vars)
    old = old.drop_vars(["kmc_n_tuning_evaluations", "kmc_n_learning_evaluations"])
    trace = SimpleNamespace(posterior=idata.posterior, sample_stats=old)
    assert "the run doesn't say" in str(kmc.diagnose(trace).evaluations)


def test_steps_that_report_less():
    """Adaptive Metropolis has no surrogate: what it doesn't say is NaN, and not complained of."""
    with noisy_gaussian(1.0, companion=True) as model:
        step = [kmc.AdaptiveMetropolis([model["x"]]), kmc.AdaptiveMetropolis([model["z"]])]
        idata = pm.sample(step=step, tune=300, draws=300, chains=1, **QUIET)
    diagnosis = kmc.diagnose(idata)
    assert diagnosis.chains.index.names == ["chain", "step"] and len(diagnosis.chains) == 2
    assert diagnosis.chains["transitions"].isna().all()
    assert not any("surrogate" in finding for finding in diagnosis.findings)
    html = diagnosis._repr_html_()
    assert "chain 0, step 1</th>" in html and "moves on the surrogate" not in html
    assert ">nan<" not in html


def test_thinned_draws_have_no_other_step():
    """That the last of several iterations rejected says nothing about the others."""
    with pm.Model():
        pm.Normal("x")
        idata = pm.sample(step=kmc.AdaptiveMetropolis(), tune=100, draws=500, chains=2, **QUIET)
    diagnosis = kmc.diagnose(idata.isel(draw=slice(None, None, 5)))
    assert not diagnosis.verdict.startswith("Good")
    assert not any("another step" in finding for finding in diagnosis.findings)


class Tags(HTMLParser):
    """Checks that tags are closed in order, and collects the text between them."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def test_a_notebook_shows_the_same(noisy):
    # Rows without any value are left out.
    diagnosis = kmc.diagnose(with_statistics(noisy, kmc_n_invalid=7, kmc_failed_share=0.1))
    diagnosis = dataclasses.replace(diagnosis, findings=(*diagnosis.findings, "a < b & c"))
    tags = Tags()
    tags.feed(diagnosis._repr_html_())
    tags.close()
    assert tags.open == []
    text = "\n".join(tags.text)
    assert all(finding in text for finding in diagnosis.findings)
    assert diagnosis.verdict in text and str(diagnosis.evaluations) in text
    for name, values in diagnosis.chains.items():
        row = "\n".join([LABELS[name], *map(number, values)])
        assert row in text
        assert " ".join(row.split()) in " ".join(str(diagnosis).split())
    assert f"{diagnosis.posterior['ess_bulk']:.4g}" in text


def test_good_and_bad_figures_are_told_apart(noisy):
    diagnosis = kmc.diagnose(noisy)
    bad = dataclasses.replace(
        diagnosis, posterior={"r_hat": 1.2, "ess_bulk": 399.0, "ess_tail": 500.0}
    )
    assert diagnosis._repr_html_().count('class="good"') == 3
    assert bad._repr_html_().count('class="bad"') == 2


@pytest.mark.parametrize("keeps_tuning", [False, True])
def test_multitrace(keeps_tuning):
    """PyMC warns of MultiTrace; what is found is what InferenceData says of the same run."""
    arguments = QUIET | {"tune": 60, "draws": 100, "chains": 2, "discard_tuned_samples": False}
    with noisy_gaussian(1.0):
        idata = pm.sample(step=kmc.AdaptiveMetropolis(), **arguments)
        arguments["discard_tuned_samples"] = not keeps_tuning
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = pm.sample(
                step=kmc.AdaptiveMetropolis(), return_inferencedata=False, **arguments
            )
    expected, found = kmc.diagnose(idata), kmc.diagnose(trace)
    times = ["evaluation ms", "own share"]
    pd.testing.assert_frame_equal(
        found.chains.drop(columns=times), expected.chains.drop(columns=times)
    )
    assert found.posterior == pytest.approx(expected.posterior)
    run = Run.of(trace)
    assert (run.tuning is not None) == keeps_tuning
    if keeps_tuning:
        xr.testing.assert_equal(
            run.tuning.posterior["x"].drop_vars(["chain", "draw"]),
            Run.of(idata).tuning.posterior["x"].drop_vars(["chain", "draw"]),
        )


def test_multitrace_of_other_steps_is_refused():
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.Normal("x")
        trace = pm.sample(
            step=pm.Metropolis(), tune=9, draws=9, chains=1, return_inferencedata=False, **QUIET
        )
    with pytest.raises(ValueError, match="MultiTrace has no sample statistics"):
        kmc.diagnose(trace)


def test_loaded_from_disk(noisy, tmp_path):
    pytest.importorskip("h5netcdf")
    noisy.to_netcdf(tmp_path / "run.nc")
    found = kmc.diagnose(az.from_netcdf(tmp_path / "run.nc"))
    expected = kmc.diagnose(noisy)
    pd.testing.assert_frame_equal(found.chains, expected.chains)
    assert found.findings == expected.findings


def test_runs_of_other_steps_are_refused():
    with pm.Model():
        pm.Normal("x")
        idata = pm.sample(step=pm.Metropolis(), tune=50, draws=50, chains=1, **QUIET)
    with pytest.raises(ValueError, match=r"kmc_accepted is missing.*pass what pm\.sample"):
        kmc.diagnose(idata)


@pytest.mark.parametrize("use", [kmc.diagnose, kmc.extras, kmc.plots.plot_moves])
def test_a_result_without_draws(use):
    """As of a file that has the sampler's statistics alone."""
    statistics = xr.Dataset({"kmc_accepted": (("chain", "draw"), np.ones((1, 5), bool))})
    with pytest.raises(ValueError, match="idata has no group posterior.*pm.sample"):
        use(SimpleNamespace(sample_stats=statistics))
