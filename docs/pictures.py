"""Draw the front page's picture: one target, one number of evaluations, three samplers.

    python docs/pictures.py

The banana B(.03, 100) in eight dimensions (Haario, Saksman and Tamminen, 1999): each sampler makes 2500 iterations of
tuning and 1000 draws. Contours are those of the exact marginal density.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_kmc as kmc
from examples.benchmarks.targets import banana

FOLDER = Path(__file__).parent / "_static"
N_TUNE, N_DRAWS, SEED = 2500, 1000, 1


def draws_of(step, name):
    """Return x_1 and x_2 of the draws, and the smallest ESS of their values and squares."""
    target = banana()
    with target.model():
        idata = pm.sample(
            N_DRAWS, tune=N_TUNE, step=step(), chains=1, random_seed=SEED, progressbar=False
        )
    draws = idata.posterior["x"].values
    return draws[0]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args(arguments)


if __name__ == "__main__":
    main()
