"""The density that a chain samples from, with the chain's noise and its recycled evaluation.

If the model has estimated likelihoods, a chain's state is the block's position *and* their noise
(:mod:`pymc_kmc.likelihoods.noise_schemes`). A proposal has renewed noise; the accepted estimate is
recycled and never drawn again (Andrieu and Roberts, 2009). The noise is in shared variables of the
model's graph, which every step of a `CompoundStep` reads: all of them see one density on the
extended space. :mod:`pymc_kmc.model.noise_sources` tells it from that of another chain in the
process.

References
----------
Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
computations. *Annals of Statistics* 37, 697-725.
"""

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np
import pytensor
from pymc.exceptions import SamplingError

from pymc_kmc.likelihoods.noise_schemes import Noise
from pymc_kmc.model.log_density import Evaluation, LogDensity
from pymc_kmc.model.noise_sources import NoiseClaim


class NoisyTerm(NamedTuple):
    """An estimated term of the log density at one position; `name` is its potential's.

    `noise` is the Noise scheme, `n_replicates` the number of its rows, `fewest` the smallest
    possible number, None if it can't be chosen. `log_estimate` is a function of the noise alone.
    """

    name: str
    noise: Noise
    n_replicates: int
    fewest: int | None
    log_estimate: Callable


class TargetDensity(LogDensity):
    """The log density that a step samples from, with the noise and Evaluation of a chain's state.

    See :class:`LogDensity` for parameters, attributes and exceptions.
    """

    def __init__(self, variables, model, initial_point, compile_kwargs=None):
        super().__init__(variables, model, initial_point, compile_kwargs)
        self._sources = [*self.likelihoods, *self.simulators]
        self._claim = None
        if self.likelihoods:
            has_all = set(self.names) == {variable.name for variable in model.value_vars}
            self._claim = NoiseClaim(self.likelihoods[0].owner, self.names, has_all)
        self._current: Evaluation | None = None
        self._handed_over: tuple[np.ndarray | None, list] = None, []
        self._before_chain: list[tuple[int, int]] = []
        self._noise: tuple = ()

    def start_chain(self, rng):
        """Begin a new chain: draw new noise, recycle nothing, set the counters to 0."""
        self._current = None
        self._handed_over = None, []
        self.n_evaluations = 0
        self._before_chain = [(op.n_evaluations, op.n_rejected) for op in self.rejecting]
        for likelihood in self.likelihoods:
            likelihood.op.start_chain()
        if self._claim is not None:
            self._claim.begin()
        self.noise = tuple([source.scheme.draw(source.n_start, rng) for source in self._sources])

    @property
    def noise(self):
        """The noise that is in the model: a tuple with an array for each source."""
        return tuple([source.rows for source in self._sources])

    @noise.setter
    def noise(self, noise):
        self._noise = noise
        for source, rows in zip(self._sources, noise, strict=True):
            source.rows = rows

    def _chain_noise(self, point):
        """Return the noise of the chain's state, from the model if a step of the chain set it.

        A SamplingError says that another chain has replaced it, where other steps of this chain may
        have read it.
        """
        claim = self._claim
        if claim is None or claim.is_own():
            return self._noise
        if not claim.was_taken(point):
            self._noise = self.noise
        elif claim.has_all:
            self.noise = self._noise
        else:
            raise SamplingError(
                "Another sampling of this model has begun in this process while this one goes on, "
                f"and the steps of both would read one noise of {self.likelihoods[0].name!r}. "
                "Sample one after the other or in other processes, build the model once for each, "
                "or let one step have all variables: kmc.KMC() without vars."
            )
        claim.take()
        return self._noise

    def borrow(self):
        """Return the noise in the model and its owner, for :meth:`give_back`."""
        claim = self._claim
        return self.noise, None if claim is None else dict(vars(claim.owner))

    def give_back(self, borrowed):
        self.noise, owner = borrowed
        if owner is not None:
            for name, value in owner.items():
                setattr(self._claim.owner, name, value)

    @property
    def state(self) -> tuple:
        """The recycled evaluation, the noise, the number of evaluations and the others' values."""
        return self._current, self._noise, self.n_evaluations, dict(self._others)

    @state.setter
    def state(self, state):
        self._current, self.noise, self.n_evaluations, others = state
        self.follow(others)  # the evaluation is of them, whatever values other steps set since
        if self._claim is not None:
            self._claim.returned = {}  # of another chain
            self._claim.take()

    @property
    def recycled(self) -> Evaluation | None:
        return self._current

    def current(self, point) -> Evaluation:
        """Return the Evaluation of the chain's state at PyMC's `point`, recycled while it is valid.

        It is evaluated at a chain's start and, under the *same* noise, after another step has
        changed a value.
        """
        moved = self.follow(point)
        noise = self._chain_noise(point) if self.is_noisy else ()
        current = self._current
        if moved or current is None or not same_noise(current.noise, noise):
            self._current = current = self.evaluate(self.position(point), noise)
        elif not self._is_handed_over(point, current.position):
            position = self.position(point)
            if not np.array_equal(current.position, position):
                self._current = current = self.evaluate(position, noise)
        return current

    def propose(self, position, rng, after=None) -> Evaluation:
        """Return the Evaluation at a proposal (d,), the noise of `after` or the chain's renewed."""
        if not self.is_noisy:
            return self.evaluate(position, ())
        noise = self._noise
        for likelihood, rows in zip(self.likelihoods, noise, strict=False):
            likelihood.op.refresh(rows)  # for the moves of other steps
        if after is not None:
            noise = after.noise
        sources = zip(self._sources, noise, strict=True)
        return self.evaluate(position, tuple([s.scheme.renew(rows, rng) for s, rows in sources]))

    def begin_with(self, positions, point, rng) -> list[Evaluation]:
        """Return :meth:`propose_all`, evaluated together with a chain's start at PyMC's `point`."""
        self.follow(point)
        noises = [self._chain_noise(point) if self.is_noisy else ()]
        noises += [self._new_noise(rng) for _ in positions]
        self._current, *found = self.evaluate_all([self.position(point), *positions], noises)
        return found

    def propose_all(self, positions, rng):
        """Return the Evaluations at positions (d,), each under independent noise."""
        noises = [self._new_noise(rng) for _ in positions]
        return self.evaluate_all(positions, noises)

    def _new_noise(self, rng):
        pairs = zip(self._sources, self._noise, strict=True)
        return tuple([source.scheme.draw(len(rows), rng) for source, rows in pairs])

    @property
    def conditions(self):
        """The other variables' values, to compare whether two evaluations are of one density."""
        return b"".join([value.tobytes() for value in self._others.values()])

    def accept(self, evaluation):
        """Make a proposal the chain's state: keep its noise, recycle its value."""
        self._current = evaluation
        if self.is_noisy:
            self.noise = evaluation.noise

    def point(self, point, position):
        """Return a copy of PyMC's `point` with the block's variables taken from `position`."""
        point = point.copy()
        first = 0
        views: list[np.ndarray] = []
        for name in self.names:
            value = point[name]
            view = position[first : first + value.size].reshape(value.shape)
            view = view.astype(value.dtype, copy=False)
            views.append(view)
            point[name] = view
            first += value.size
        self._handed_over = position, views
        if self._claim is not None:
            self._claim.hand_over(point)
        return point

    def _is_handed_over(self, point, position):
        """Return whether `point` has the very arrays that :meth:`point` last made of `position`."""
        source, views = self._handed_over
        if source is not position:
            return False
        return all(point[name] is view for name, view in zip(self.names, views, strict=True))

    @property
    def has_independent_noise(self):
        """Whether the density is estimated, and a proposal's noise independent of the chain's."""
        return self.is_noisy and not any(source.scheme.correlation for source in self._sources)

    # Replicates of noisy likelihoods

    @property
    def n_replicates(self):
        if not self.likelihoods:
            return 0
        return sum(len(rows) for rows in self._noise[: len(self.likelihoods)])

    @property
    def chooses_n_replicates(self):
        return any(likelihood.op.is_auto for likelihood in self.likelihoods)

    def choose_n_replicates(self, point, rng):
        """Choose the numbers of replicates at the chain's state, and renew the noise.

        Return a list of likelihoods' names, numbers of replicates and variances of the log
        estimate.
        """
        parameters = self.parameters(self.current(point).position)
        chosen, noise = [], list(self._noise)
        for i, (likelihood, values) in enumerate(zip(self.likelihoods, parameters, strict=True)):
            op = likelihood.op
            if not op.is_auto:
                continue
            n_before = op.n_calls
            n, variance = op.choose_n_replicates(len(noise[i]), values, rng)
            self.n_evaluations += op.n_calls - n_before
            noise[i] = likelihood.scheme.draw(n, rng)
            chosen.append((op.name, n, variance))
        self.noise = tuple(noise)
        return chosen

    def noisy_terms(self, point):
        """Return the NoisyTerms at a point; PyMC's simulators make one, with all exact terms."""
        position = self.current(point).position
        terms, parameters = [], self.parameters(position)
        calls = zip(self.likelihoods, self._noise, parameters, strict=False)
        for likelihood, rows, values in calls:
            op = likelihood.op
            estimate = partial(log_estimate, op, values)
            terms.append(NoisyTerm(op.name, likelihood.scheme, len(rows), op.fewest, estimate))
        if self.simulators:
            first = self.simulators[0]
            log_density = partial(self._log_density_of_simulators, position)
            n = len(self.simulators)
            terms.append(NoisyTerm(first.name, first.scheme, n, None, log_density))
        return terms

    def _log_density_of_simulators(self, position, seeds):
        for simulator, rows in zip(self.simulators, seeds[:, None], strict=True):
            simulator.use(rows)
        return float(self._function(self.rounded(position))[0])

    # Messages

    def rejections(self):
        """Return this chain's (name, evaluations, rejected ones) of each black box that rejects."""
        pairs = zip(self.rejecting, self._before_chain, strict=True)
        return [(op.name, op.n_evaluations - n, op.n_rejected - k) for op, (n, k) in pairs]

    @property
    def simulations(self):
        """Records of this chain's simulations, of each likelihood that simulates."""
        records = (likelihood.op.simulations for likelihood in self.likelihoods)
        return [record for record in records if record is not None]

    @property
    def failed_share(self):
        """Share of this chain's simulations that failed; NaN without any."""
        records = self.simulations
        n = sum(record.n_simulations for record in records)
        return sum(record.n_failed for record in records) / n if n else np.nan

    def check_start(self, point):
        """Raise a SamplingError unless the chain can start at `point`.

        It can if the log density is finite, or is -inf because of a noisy estimate alone.
        """
        evaluation = self.current(point)
        log_density = evaluation.log_density
        noise_only = evaluation.log_likelihood_estimate == -np.inf
        if isfinite(log_density) or (log_density == -np.inf and noise_only):
            return
        remedy = "Give another start, pm.sample(initvals={...}), or mend the term."
        if self.simulators:
            remedy += " A pm.Simulator is to return inf, not NaN, where a simulation fails."
        values = "\n".join(f"  {name}: {np.asarray(value)}" for name, value in point.items())
        raise SamplingError(
            f"The log density of the model is {log_density} at the chain's starting point:\n"
            f"{values}\n"
            f"Terms of the log density there:\n{explain_terms(self.model, point)}\n"
            f"{remedy}"
        )


def log_estimate(op, parameters, noise):
    return op.evaluate(noise, *parameters)


def same_noise(first, second):
    pairs = zip(first, second, strict=True)
    return all(a is b or np.array_equal(a, b) for a, b in pairs)


def explain_terms(model, point):
    """Return lines "name: value" of a model's terms that aren't finite at a point, or of all."""
    inputs = list(model.value_vars)
    arguments = [point[variable.name] for variable in inputs]
    names = [v.name for v in model.free_RVs + model.observed_RVs + model.potentials]
    values = {}
    for name, term in zip(names, model.logp(sum=False), strict=True):
        options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
        values[name] = float(pytensor.function(inputs, term.sum(), **options)(*arguments))
    bad = {name: value for name, value in values.items() if not isfinite(value)}
    return "\n".join(f"  {name}: {value}" for name, value in (bad or values).items())
