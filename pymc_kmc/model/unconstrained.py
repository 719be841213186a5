"""A model as a function of one vector, its variables on their unconstrained scale."""

import warnings
from functools import cached_property

import numpy as np
from pymc.distributions.transforms import CircularTransform
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.replace import clone_replace

from pymc_kmc.model.log_density import check_continuous, check_proper
from pymc_kmc.model.rows import Columns, of_rows


class UnconstrainedModel:
    """A model's continuous value variables as a vector of length `n_dimensions`.

    `others` maps the model's other value variables to the shared variables in their place. `names`
    has the names of the vector's variables.
    """

    def __init__(self, variables, model, others):
        check_continuous(variables)
        check_proper(variables, model)
        self.model, self.variables = model, list(variables)
        self.names = tuple(variable.name for variable in variables)
        self.initial_point = model.initial_point(0)
        shapes = [np.shape(self.initial_point[v.name]) for v in variables]
        self._columns = Columns(shapes, [v.dtype for v in variables])
        self.n_dimensions = sum(self._columns.sizes)
        self._others, self._has_told_invalid = others, False

    @property
    def random_variables(self):
        model = self.model
        return [v for v in model.free_RVs if model.rvs_to_values[v] in self.variables]

    @property
    def others(self):
        return {variable.name: shared.get_value() for variable, shared in self._others.items()}

    def follow(self, point):
        """Take the other variables' values from a point, a dict of arrays by name."""
        for variable, shared in self._others.items():
            # A copy: in worker processes PyMC writes the next point into the same memory.
            shared.set_value(np.array(point[variable.name]), borrow=True)

    @cached_property
    def periods(self):
        """Period (d,) of each unconstrained value, infinite unless it is an angle."""
        periods = []
        for variable, size in zip(self.variables, self._columns.sizes, strict=True):
            transform = self.model.rvs_to_transforms[self.model.values_to_rvs[variable]]
            is_angle = isinstance(transform, CircularTransform)
            periods += size * [2.0 * np.pi if is_angle else np.inf]
        return np.array(periods)

    def nearest_copy(self, x, to):
        """Return x (d,) with its angles turned by full periods to be nearest to those of `to`."""
        x, angles = np.array(x), np.isfinite(self.periods)
        turn = self.periods[angles]
        x[angles] -= turn * np.round((x - to)[angles] / turn)
        return x

    def _pieces(self, x):
        columns = self._columns
        parts = zip(self.variables, columns.ends[:-1], columns.sizes, columns.shapes, strict=True)
        pieces = {}
        for variable, begin, size, shape in parts:
            piece = x[begin : begin + size].reshape(shape).astype(variable.dtype)
            pieces[variable] = variable.type.filter_variable(piece)
        return pieces

    @cached_property
    def _natural(self):
        values = self.model.replace_rvs_by_values(self.random_variables)
        return of_rows(self.variables, clone_replace(values, self._others))

    def natural(self, X):
        """Return the free variables on their natural scale at X (n, d), a dict of arrays."""
        arrays = self._natural(*self._columns.split(X))
        free = self.random_variables
        return {variable.name: array for variable, array in zip(free, arrays, strict=True)}

    def unconstrained(self, natural, n):
        """Return X (n, d) of free variables on their natural scale: the inverse of :meth:`natural`.

        `natural` is a dict of arrays (n, ...); variables that it lacks have their initial values.
        """
        model, free = self.model, self.random_variables
        values = []
        for variable in self.variables:
            rv = model.values_to_rvs[variable]
            transform = model.rvs_to_transforms[rv]
            values.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        inputs = [rv.type() for rv in free]
        values = clone_replace(values, dict(zip(free, inputs, strict=True)))
        values = clone_replace(model.replace_rvs_by_values(values), self._others)
        held = self.natural(self._columns.join([self.initial_point[v][None] for v in self.names]))
        arrays = held | natural
        rows = [np.broadcast_to(arrays[v.name], (n, *held[v.name].shape[1:])) for v in free]
        rows = [row.astype(v.dtype) for row, v in zip(rows, free, strict=True)]
        return self._columns.join(of_rows(inputs, values)(*rows))

    def prior_points(self, n, rng):
        """Return n draws of the prior (n, d); None if PyMC can't draw from it."""
        try:
            overrides = dict.fromkeys(self.random_variables, "prior")
            rows = self._drawn(n, rng, overrides=overrides)
        except (NotImplementedError, ValueError, TypeError):
            return None
        return rows if np.isfinite(rows).all() else None

    def jittered_points(self, n, rng):
        """Return n of PyMC's jittered initial points, (n, d).

        Every second one is its predecessor reflected at the initial point, which has the same
        distribution: mirrored modes both have a point nearby.
        """
        jittered = self._drawn((n + 1) // 2, rng, jitter_rvs=set(self.random_variables))
        points = np.repeat(jittered, 2, axis=0)[:n]
        points[1::2] = 2.0 * self._vector(self.initial_point) - points[1::2]
        return points

    def _drawn(self, n, rng, **options):
        draw = make_initial_point_fn(model=self.model, return_transformed=True, **options)
        return np.array([self._vector(draw(int(rng.integers(2**30)))) for _ in range(n)])

    def _vector(self, point):
        return np.concatenate([np.ravel(point[name]).astype(float) for name in self.names])

    def tell_invalid(self, x, log_density):
        """Warn, once, that the log density is NaN or +inf at an evaluated position (d,)."""
        if self._has_told_invalid:
            return
        self._has_told_invalid = True
        natural = self.natural(x[None]).items()
        place = ", ".join(f"{name}={value[0]}" for name, value in natural)
        warnings.warn(
            f"The log density was {log_density} where it was evaluated ({place}), which is taken "
            "for impossible; this warning is given once. Return -inf from the likelihood where a "
            "parameter is impossible.",
            UserWarning,
            stacklevel=2,
        )
