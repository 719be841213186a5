"""The record of evaluations: none is lost, or made twice."""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from pymc_kmc.likelihoods.checks import check_model
from pymc_kmc.model.structure import given_others
from pymc_kmc.model.unconstrained import UnconstrainedModel


@dataclass(frozen=True, eq=False, repr=False)
class Evaluations:
    """Evaluations of a model's opaque nodes, in the order in which they were made.

    They are the attribute `evaluations` of :func:`learn`'s results and exceptions and of ``KMC()``;
    :func:`learn` can start from them.

    Attributes
    ----------
    names : tuple of str
        Names of the value variables, in the order of the unconstrained vector.
    X : ndarray, shape (n, d)
        Unconstrained positions; :meth:`variables` has them on the variables' natural scale.
    inputs : ndarray, shape (n, k)
        Inputs of the opaque nodes.
    outputs : ndarray, shape (n, m)
        All values that they returned; NaN where a black box has rejected the place.
    log_densities : ndarray, shape (n,)
        Log densities of the model; -inf where a chain would reject the place.
    seconds : ndarray, shape (n,)
        Seconds that an evaluation took; of a batch that ran at once, the mean.
    is_whole : bool
        Whether the log density was opaque as a whole: `inputs` are `X`, and `outputs` log
        densities, which hold for the same prior and data alone.
    """

    names: tuple
    X: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    log_densities: np.ndarray
    seconds: np.ndarray = field(repr=False)
    is_whole: bool = False

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"Evaluations({len(self)}, {self.outputs.shape[1]} outputs each: {names})"

    def __getitem__(self, rows) -> "Evaluations":
        """Return the evaluations of some rows: a slice, a mask or indices."""
        return Evaluations(self.names, *[c[rows] for c in self._columns], is_whole=self.is_whole)

    @classmethod
    def none(cls, names, n_dimensions, n_inputs, n_outputs, is_whole=False) -> "Evaluations":
        X, inputs, outputs = (np.zeros((0, n)) for n in (n_dimensions, n_inputs, n_outputs))
        return cls(tuple(names), X, inputs, outputs, np.zeros(0), np.zeros(0), is_whole)

    @property
    def _columns(self):
        return [getattr(self, each.name) for each in fields(self)[1:-1]]

    def joined(self, other) -> "Evaluations":
        pairs = zip(self._columns, other._columns, strict=True)
        columns = [np.concatenate(pair) for pair in pairs]
        return Evaluations(self.names, *columns, is_whole=self.is_whole)

    def as_whole(self) -> "Evaluations":
        """Return the evaluations of the log density, opaque as a whole."""
        outputs = self.log_densities[:, None]
        return replace(self, inputs=self.X, outputs=outputs, is_whole=True)

    def rows(self, X) -> np.ndarray:
        """Return the last row of each place of X (n, d), shape (n,); -1 where there is none."""
        found = {x.tobytes(): i for i, x in enumerate(self.X)}
        return np.array([found.get(x.tobytes(), -1) for x in X], dtype=int)

    def variables(self, model=None) -> dict:
        """Return the places on the natural scale of the model's variables.

        Parameters
        ----------
        model : pymc.Model, optional
            The one that was evaluated; by default that of the context.

        Returns
        -------
        dict of str to ndarray, shape (n, ...)
            By the names of the free variables.
        """
        model = check_model(model)
        known = {variable.name: variable for variable in model.value_vars}
        if missing := set(self.names) - set(known):
            raise ValueError(f"model has no {sorted(missing)}: pass the one that was evaluated.")
        variables = [known[name] for name in self.names]
        _, others = given_others(model, variables)
        return UnconstrainedModel(variables, model, others).natural(self.X)
