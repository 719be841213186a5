"""The emulators' predictions as arrays: at evaluations that were left out, and at draws."""

from typing import NamedTuple

import numpy as np

# Draws at which outputs and the covariance of errors are kept.
N_DRAWS = 256
# Outputs of a node that are kept, evenly spaced: what a picture can show.
MOST_OUTPUTS = 400


class EmulatedNode(NamedTuple):
    """An emulated node and the predictions of its outputs; their `shape` is () for a term.

    `columns` (m,) are the raveled outputs that are kept. `evaluated` (n, m) are their values,
    `held_out` and `held_out_sd` (n, m) the prediction of each from all others and its standard
    deviation, NaN where the evaluation failed; a term's depths are compressed as in the emulator.
    `outputs` and `sd` (k, m) are the prediction at the first k draws and its standard deviation.
    """

    name: str
    shape: tuple
    is_term: bool
    columns: np.ndarray
    evaluated: np.ndarray
    held_out: np.ndarray
    held_out_sd: np.ndarray
    outputs: np.ndarray
    sd: np.ndarray


class Emulated(NamedTuple):
    """The emulators' predictions, with one EmulatedNode a node.

    `held_out` and `held_out_sd` (n,) are the log density at each evaluation, predicted from all
    others, and its standard deviation; `covariance` (k, k) is that of its errors at the first k
    draws.
    """

    nodes: tuple
    held_out: np.ndarray
    held_out_sd: np.ndarray
    covariance: np.ndarray


def emulated(composite, evaluations, draws) -> Emulated:
    """Return a fitted composite's predictions at its evaluations and at draws (k, d)."""
    model, emulators = composite.model, composite.emulators
    inputs = model.inputs(draws)
    predictions = [emulator.predict(draws, inputs) for emulator in emulators]
    left_out = [emulator.leave_one_out(evaluations) for emulator in emulators]
    _, _, by_outputs = model.log_density(draws, np.hstack([p.outputs for p in predictions]))
    with np.errstate(all="ignore"):
        held_out, _, by_held_out = model.log_density(
            evaluations.X, np.hstack([outputs for outputs, _ in left_out])
        )
    covariance = np.zeros((len(draws), len(draws)))
    held_out_variance = np.zeros(len(held_out))
    nodes = []
    for emulator, prediction, (outputs, variance) in zip(
        emulators, predictions, left_out, strict=True
    ):
        node, factor = emulator.node, emulator.process.output_factor_
        spread = emulator.slopes(by_outputs[:, node.outputs], prediction.outputs) @ factor.T
        covariance += emulator.covariance(draws, inputs) * (spread @ spread.T)
        with np.errstate(all="ignore"):  # as far away as a first design is, outputs overflow
            spread = emulator.slopes(by_held_out[:, node.outputs], outputs) @ factor.T
            held_out_variance += variance * np.einsum("ij,ij->i", spread, spread)
        columns = _columns(node.n_outputs)
        parts = (
            node.emulated(evaluations.outputs),
            outputs,
            emulator.standard_deviations(outputs, variance),
            prediction.outputs,
            emulator.standard_deviations(prediction.outputs, prediction.variance),
        )
        nodes.append(
            EmulatedNode(
                node.name, node.shape, node.is_term, columns, *(part[:, columns] for part in parts)
            )
        )
    return Emulated(tuple(nodes), held_out, np.sqrt(held_out_variance), covariance)


def _columns(n):
    return np.unique(np.linspace(0, n - 1, min(n, MOST_OUTPUTS)).round().astype(int))
