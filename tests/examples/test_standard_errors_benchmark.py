"""The benchmark of standard errors runs."""

import numpy as np
import pytest

from examples.benchmarks.peers import Reference
from examples.benchmarks.standard_errors import Uneven, main


@pytest.mark.documentation
@pytest.mark.one_line
@pytest.mark.parametrize("options", [[], ["--growth", "0.5"]])
def test_it_runs_in_short(capsys, options):
    main(["--quick", *options])
    assert "| dose-response |" in capsys.readouterr().out


@pytest.mark.documentation
@pytest.mark.one_line
def test_noise_grows_along_the_first_input():
    known = Reference(np.array([0.81, 7.92, -0.02]), np.array([0.84, 2.97, 0.98]), None)
    problem = Uneven("dose-response", 2.0, 0, 0.5, known)
    mean, sd = problem.first
    noise = [problem.noise_at((np.array([mean + k * sd]),)) for k in (-2.0, 0.0, 2.0, 100.0)]
    # A standard deviation's log grows by half of .5, up to six standard deviations of the input.
    np.testing.assert_allclose(np.log(np.array(noise) / 2.0), [-0.5, 0.0, 0.5, 1.5])
