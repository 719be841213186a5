"""This package's column of PyMC's progress bar: the chain's present activity.

In 80 characters PyMC's own columns leave room for seven, with the times whole. While it tunes a
chain names the activity that takes its time, of which PyMC's estimate of the time left takes no
account; afterwards it shows its acceptance rate.
"""

from rich.progress import TextColumn
from rich.table import Column

from pymc_kmc.moves.base import MoveKind
from pymc_kmc.steps.chain_warnings import STUCK_AFTER, STUCK_FROM_START


def columns(n_chains=1):
    """Return the column, and the values of its field before the first iteration of each chain."""
    column = Column("Doing", no_wrap=True, width=7)
    return [TextColumn("{task.fields[kmc_doing]}", table_column=column)], {
        "kmc_doing": [""] * n_chains
    }


def update(statistics):
    still = statistics["kmc_steps_since_accept"]
    return {
        "kmc_doing": "stuck" if still >= STUCK_FROM_START else doing(statistics),
        "failing": still >= STUCK_AFTER,
    }


def doing(statistics):
    """Return a chain's activity, in seven characters."""
    if not statistics["tune"]:
        return f"acc {statistics['kmc_recent_acceptance']:.2f}".replace("0.", ".")[:7]
    if statistics["kmc_move"] in (MoveKind.LEARNED_DRAW, MoveKind.STAY):
        return "settles"
    n_fits = statistics.get("kmc_n_fits")
    if n_fits is None:
        return "tunes"
    if n_fits:
        return f"fit {n_fits}"
    return "settles" if statistics["kmc_n_learning_evaluations"] else "arrives"
