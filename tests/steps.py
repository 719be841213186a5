"""Every step class, with surrogates of a size that keeps tests short."""

from functools import partial

import pymc_kmc as kmc

STEPS = {
    "AdaptiveMetropolis": kmc.AdaptiveMetropolis,
    "KAMH": kmc.KAMH,
    "GadMALA": kmc.GadMALA,
    "GadRWM": kmc.GadRWM,
    "KMC": partial(kmc.KMC, n_landmarks=60, learn=False),
    "KMCLite": partial(kmc.KMCLite, n_points=100),
    "KMCFinite": partial(kmc.KMCFinite, n_features=60),
}
# They need gradients, which a likelihood that is estimated does not have.
GRADIENT_STEPS = ("GadMALA", "GadRWM")
NOISY_STEPS = tuple(name for name in STEPS if name not in GRADIENT_STEPS)
