"""The result of :func:`partial_posteriors`: replications, and what follows from them."""

import json
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import t as student_t

from pymc_kmc import notebook
from pymc_kmc.partial.findings import findings_of, is_suspect
from pymc_kmc.partial.schedule import Schedule, convergence_rate


class PartialPosteriors:
    """Debiased estimates from partial posteriors.

    Made by :func:`partial_posteriors`, :meth:`from_netcdf`, and ``first + second``, which joins
    replications of two seeds.

    Parameters
    ----------
    replications : xarray.Dataset
        See the attribute.

    Attributes
    ----------
    replications : xarray.Dataset
        Variables over `replication` and `level`, NaN or 0 past the end: `value` (and `element`),
        `evaluations`, `seconds`, `r_hat`, `ess`, `divergences`, `spread` (and `checked`).
    """

    def __init__(self, replications):
        self.replications = replications
        attributes = replications.attrs
        self.schedule = Schedule(
            int(attributes["n_data"]), int(attributes["first_size"]), float(attributes["alpha"])
        )
        self._shape = tuple(json.loads(attributes["shape"]))
        # Elements last, shape (replications, levels, k).
        self._values = replications["value"].transpose("replication", "level", "element").values

    # The estimate

    @property
    def labels(self):
        """Names of the functional's elements, list of str."""
        return [str(label) for label in self.replications["element"].values]

    @property
    def n_replications(self):
        """Number of replications that have ended."""
        return len(self._values)

    @property
    def levels(self):
        """Truncation levels T, ndarray of int, shape (replications,)."""
        return np.count_nonzero(self._evaluations, axis=1) - 1

    @property
    def paths(self):
        """The paths phi_0 ... phi_T, list of ndarray, shape (T + 1, ...), one a replication."""
        return [
            values[: level + 1].reshape(-1, *self._shape)
            for values, level in zip(self._values, self.levels, strict=True)
        ]

    @cached_property
    def debiased(self):
        """The estimate phi* of each replication, ndarray, shape (replications, ...)."""
        return np.stack([self.schedule.debiased(path) for path in self.paths])

    @property
    def estimate(self):
        """Mean of the replications, a float or an ndarray of the functional's shape."""
        return self.debiased.mean(axis=0)[()]

    @property
    def standard_error(self):
        """Standard error of the estimate, from the spread of the replications; NaN with one.

        It has the Monte-Carlo errors of chains, and nothing of levels that no replication reached.
        """
        if self.n_replications < 2:
            return np.full(self._shape, np.nan)[()]
        return (self.debiased.std(axis=0, ddof=1) / np.sqrt(self.n_replications))[()]

    def interval(self, probability=0.9):
        """Return a confidence interval of the full-data expectation, by Student's t.

        Parameters
        ----------
        probability : float

        Returns
        -------
        ndarray, shape (2, ...)
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be between 0 and 1, got {probability!r}.")
        quantile = student_t.ppf(0.5 + 0.5 * probability, max(1, self.n_replications - 1))
        half = quantile * self.standard_error
        return np.stack([self.estimate - half, self.estimate + half])

    @property
    def summary(self):
        """DataFrame of estimates, standard errors, 90 % intervals and rates (see :attr:`rate`)."""
        low, high = self.interval(0.9)
        return pd.DataFrame(
            {
                "estimate": np.ravel(self.estimate),
                "standard error": np.ravel(self.standard_error),
                "5 %": np.ravel(low),
                "95 %": np.ravel(high),
                "rate": self.rate.exponent,
                "rate s.e.": self.rate.standard_error,
            },
            index=self.labels,
        )

    # What it cost

    @property
    def _evaluations(self):
        return self.replications["evaluations"].transpose("replication", "level").values

    @property
    def cost(self):
        """Number of likelihood terms evaluated in all: data times evaluations of each run."""
        return int((self._evaluations @ self.schedule.sizes).sum())

    @property
    def terms_per_iteration(self):
        """Number of data in all subsets: the likelihood terms of one iteration of every run."""
        return int(((self._evaluations > 0) @ self.schedule.sizes).sum())

    @property
    def full_cost(self):
        """Likelihood terms of one run on all data with as many evaluations as these runs' mean."""
        evaluations = self._evaluations
        return int(self.schedule.n_data * evaluations.sum() / np.count_nonzero(evaluations))

    # Whether it can be trusted

    @cached_property
    def rate(self):
        """Rate beta in E(phi_t - phi_{t-1})^2 ~ n^-beta of each element, and its standard error."""
        return convergence_rate(self._values, self.schedule.sizes)

    @property
    def runs(self):
        """DataFrame with one row a run.

        Columns: `size`, `evaluations`, `cost`, `seconds`, `r_hat`, `ess`, `divergences`, and
        `suspect`, whether the chains were too short or didn't agree.
        """
        names = ["evaluations", "seconds", "r_hat", "ess", "divergences"]
        table = self.replications[names].to_dataframe().reset_index()
        table = table[table["evaluations"] > 0].set_index(["replication", "level"])[names]
        sizes = self.schedule.sizes[table.index.get_level_values("level")]
        table.insert(0, "size", sizes)
        table.insert(2, "cost", sizes * table["evaluations"])
        table["suspect"] = is_suspect(table["r_hat"], table["ess"])
        return table

    @property
    def interrupted(self):
        """Whether an interrupt prevented some replications from ending."""
        return self.n_replications < int(self.replications.attrs["n_planned"])

    @cached_property
    def findings(self):
        """Problems and their remedies, tuple of str; empty where nothing was found."""
        return tuple(findings_of(self))

    # Shown

    def _lines(self):
        schedule, reached = self.schedule, np.bincount(self.levels)
        yield (
            f"Partial posteriors of {schedule.n_data:,} data, {self.n_replications} replications, "
            f"alpha = {schedule.alpha:g}"
        )
        share = self.cost / self.full_cost
        yield (
            f"cost: {self.cost:,} likelihood terms, {self.cost / schedule.n_data:,.3g} times the "
            f"data, {f'{share:.2%}' if share < 1.0 else f'{share:,.3g} times the cost'} of one run "
            "on all data with as many iterations"
        )
        shown = ", ".join(str(np.sum(reached[t:])) for t in range(len(reached)))
        yield (
            f"subsets of {schedule.first_size:,} * 2^t data, t = 0 ... {len(schedule.sizes) - 1}; "
            f"replications that reached t = 0, 1, ...: {shown}"
        )

    def __str__(self):
        title, *others = self._lines()
        table = self.summary.to_string(float_format=lambda value: f"{value:.5g}")
        findings = "\n".join(f"- {finding}" for finding in self.findings)
        return "\n".join([title, table, *others, findings or "Nothing to complain of."])

    __repr__ = __str__

    def _repr_html_(self):
        title, *others = self._lines()
        return notebook.result(
            notebook.paragraph(title, is_title=True),
            notebook.table(self.summary, digits=5),
            *map(notebook.paragraph, others),
            notebook.sentences(self.findings, if_none="Nothing to complain of."),
        )

    def plot(self, element=0, *, reference=None, ax=None, figsize=None):
        """Draw the paths phi_t over the size of the subset, and the debiased mean.

        Parameters
        ----------
        element : int or str
            Element of the functional, or its label.
        reference : float, optional
            A value to compare with, such as that of a run on all data.
        ax : matplotlib.axes.Axes, optional
        figsize : tuple of float, optional

        Returns
        -------
        matplotlib.axes.Axes
        """
        from pymc_kmc.partial.plot import plot_paths

        return plot_paths(self, element, reference=reference, ax=ax, figsize=figsize)

    # Stored and joined

    def to_netcdf(self, path):
        """Write all replications to a file."""
        self.replications.to_netcdf(path)

    @classmethod
    def from_netcdf(cls, path):
        """Read a file that :meth:`to_netcdf` wrote."""
        with xr.open_dataset(path) as replications:
            return cls(replications.load())

    def __add__(self, other):
        if not isinstance(other, PartialPosteriors):
            return NotImplemented
        mine, its = (one.replications.attrs for one in (self, other))
        for name in ("n_data", "first_size", "alpha", "shape"):
            if mine[name] != its[name]:
                raise ValueError(
                    f"These results don't belong together: {name} is {mine[name]} and {its[name]}."
                )
        if self.labels != other.labels:
            raise ValueError(
                f"These results are of different functionals: {self.labels} and {other.labels}."
            )
        entropies = [json.loads(attributes["entropy"]) for attributes in (mine, its)]
        if set(entropies[0]) & set(entropies[1]):
            raise ValueError(
                "These results have replications of the same random_seed: they aren't independent."
            )
        parts = [
            one.replications.drop_vars("replication", errors="ignore") for one in (self, other)
        ]
        joined = xr.concat(parts, "replication", combine_attrs="override", join="override")
        joined = joined.assign_coords(replication=np.arange(joined.sizes["replication"]))
        planned = sum(int(attributes["n_planned"]) for attributes in (mine, its))
        joined.attrs = mine | {"n_planned": planned, "entropy": json.dumps(sum(entropies, []))}
        return PartialPosteriors(joined)
