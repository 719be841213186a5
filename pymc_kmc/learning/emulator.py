"""An opaque node's outputs as a function of its inputs, with their uncertainty.

A node is emulated as a function of its inputs or of the unconstrained variables above them, by the
larger marginal likelihood. Nodes of one function share a process of their inputs. A term of the log
density has one output. Outputs are transformed (:mod:`pymc_kmc.learning.outputs`).

The emulator of the node's coarse version may be the mean function of the process, its *base*. The
process is then of the difference, or of the logarithm of the ratio (Kennedy and O'Hagan, 2000, with
a factor of one). The marginal likelihood decides whether it is used.

References
----------
Kennedy, M. C. and O'Hagan, A. (2000). Predicting the output from a complex computer code when fast
approximations are available. *Biometrika* 87, 1-13.
"""

from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc_kmc.learning.outputs import Compression, of_outputs, of_term
from pymc_kmc.numerics.linear_algebra import cholesky_factor
from pymc_kmc.numerics.samples import apart, shrunk
from pymc_kmc.surrogates.covariance import EXTENSIONS, Hyperparameters
from pymc_kmc.surrogates.exact_gp import N_TRIALS, N_TRIALS_AGAIN, SIMPLEST, ExactGP
from pymc_kmc.surrogates.exact_gp_evaluation import LARGEST_LOG

# Largest depth of a noisy term's values that are fitted, in compression depths, and fewest values,
# in coefficients of a quadratic: deeper ones bend the process at draws, which noise hides. In eight
# dimensions errors at draws were .7 nats with all 1070 values, .6 with the 674 within two depths.
SHALLOW, FEWEST_FITTED = 2.0, 4
# Most successive fits, each of which corrects the deep values that the last one overrated.
MOST_FITS = 4
# Growth of the number of values after which spaces and transforms are compared again. With 1.5 a
# wrong transform was kept for 150 evaluations.
COMPETE_AGAIN = 1.2
# Most values of this comparison, or a quadratic's number of coefficients: a search for
# hyperparameters takes eight times as long with 800 values as with 400, and tells no more.
MOST_COMPARED = 400
# Number of values from which on hyperparameters are kept until the number has grown by this factor:
# a search takes some 15 times as long as a fit.
MANY_ROWS, SEARCH_AGAIN = 300, 1.15
# Fewest values for an extended covariance, and its least gain of log evidence, in nats a value;
# below .3 predictions don't improve. Functions of few coordinates gain .8 for Glass at 250 values
# and 1.0 at 1100; radial terms gain 3.7 for a Student t at 250.
FEWEST_EXTENDED, EXTENSION_GAIN = 100, 0.5
# Difference of log evidence up to which another form of the covariance may be the best one for
# three quarters of n values, in nats times an output and the root of n: single values change it by
# about a nat. One that lost by .9 sqrt(n) has won there, none of those that lost by three has.
SERIOUS = 2.0
# Most coordinates and most outputs of an extension. 2000 values in 50 coordinates take a second for
# each trial of the additive kernel's parameters. On moves each output takes a square of all its
# knots.
MOST_EXTENDED = {"additive": (20, 1), "radial": (1000, 1000)}
# Weight of the last covariance in the next, of a space's coordinates and of chains' metric.
COVARIANCE_MEMORY = 0.5
# Most values of a function's nodes that are fitted, in coefficients of a quadratic of its inputs,
# besides one a node. A hundred values in two dimensions gave errors of .05 nats, sixty .1.
MOST_ALIKE = 16
# Largest output, and reciprocal of the smallest input with a logarithm: its square is finite.
LARGEST_OUTPUT = 1e150
# Transforms of values: of outputs, and of terms (True).
TRANSFORMS = {False: ("none", "log"), True: ("compressed", "none")}


class EmulatedOutputs(NamedTuple):
    """An emulator's predictions at k points.

    `outputs` are (k, m). `variance` (k,) is the factor of the outputs' covariance, or of that of
    their logarithms. `base` is the prediction of the emulator's base, or None.
    """

    outputs: np.ndarray
    variance: np.ndarray
    prediction: Any
    emulator: Any
    base: Any = None

    @property
    def latent(self):
        """Outputs (k, m), or their logarithms, without the base's."""
        return self.prediction.mean * self.emulator.scales + self.emulator.offset

    def scale(self, by_outputs):
        """Return factors (k,) from variances to the log density's, and its slopes (k, m).

        `by_outputs` are the log density's derivatives by all nodes' outputs, slopes those by the
        process's.
        """
        own = by_outputs[:, self.emulator.outputs].reshape(self.outputs.shape)
        slopes = self.emulator.slopes(own, self.outputs)
        spread = slopes @ self.emulator.process.output_factor_.T
        return np.einsum("ij,ij->i", spread, spread), slopes

    def sampled(self, rng):
        """Return one draw of the outputs (k, m)."""
        factor = self.emulator.process.output_factor_
        errors = rng.standard_normal((len(self.variance), len(factor))) @ factor
        spread = np.sqrt(np.maximum(self.variance, 0.0))[:, None]
        base = 0.0 if self.base is None else self.base.latent
        return self.emulator.outputs_of(self.prediction.mean + spread * errors, base)


class ProcessState(NamedTuple):
    """The arrays of a fitted process, from which it can be restored.

    They are `centre` (k,) and `whitening` (k, k) of its coordinates, data `Z` (n, k), `Y` (n, m)
    and `noise` (n,), and packed hyperparameters of the covariance, whose `extension` may be None.
    """

    centre: np.ndarray
    whitening: np.ndarray
    Z: np.ndarray
    Y: np.ndarray
    noise: np.ndarray
    parameters: np.ndarray
    extension: str | None

    @classmethod
    def of(cls, p):
        parameters = p.hyperparameters_.packed
        return cls(p.centre, p.whitening, p.Z_, p.Y_, p.noise_, parameters, p.extension)

    def process(self, deterministic):
        process = ExactGP(self.whitening, self.centre, deterministic)
        parameters = Hyperparameters.unpacked(self.parameters, len(self.centre), self.extension)
        return process.given(self.Z, self.Y, self.noise, parameters)


class EmulatorState(NamedTuple):
    """The arrays of a fitted emulator, from which it can be restored.

    `space` is the kind of its points, `varying` are the indices of inputs that vary. The outputs
    have a `transform`, `offset` (m,) and `scales` (m,). `base` is the base's EmulatorState or None.
    """

    space: str
    transform: str
    varying: np.ndarray
    offset: np.ndarray
    scales: np.ndarray
    process: ProcessState
    base: Any


class NodeEmulator:
    """Emulator of one OpaqueNode, fitted to the values of all nodes of its function, `alike`.

    With `grows` each fit is to the last values and more: coordinates keep a part of the last
    covariance, and hyperparameters of many values are kept for some fits. `base` is the emulator of
    the node's coarse version or None; the fit may leave it out.
    """

    base = None

    def __init__(self, node, grows=False, alike=()):
        self.node, self.grows, self.alike = node, grows, alike or (node,)
        self.nodes = (node,)
        self.space = self.process = self.usable = None
        self.n_competed = self.n_searched = 0
        self._covariances, self._recalled = {}, np.zeros(0, dtype=bool)
        # Processes of the forms that compared with the best one, by space and extension, and the
        # pairs of a space and a process that are all the fit considers, if any.
        self._rivals, self._starts = {}, ()

    @property
    def state(self):
        arrays = self.varying, self.offset, self.scales
        base = self.base.state if self.is_corrected else None
        return EmulatorState(*self.space[:2], *arrays, ProcessState.of(self.process), base)

    @classmethod
    def restored(cls, node, state):
        """Return the emulator of a node, for predictions, from its EmulatorState."""
        emulator = cls(node)
        emulator.base = state.base and cls.restored(node, state.base)
        emulator.space = state.space, state.transform, state.base is not None
        _, _, emulator.varying, emulator.offset, emulator.scales, process, _ = state
        emulator.process = process.process(not node.is_noisy)
        return emulator

    def fit(self, evaluations, draws, draws_inputs, top=None, averages=False, firm=False):
        """Fit to evaluations, for predictions around `draws` (n', d) with inputs (n', k).

        The best log density is the highest, or that of evaluation `top` if finite, for a search
        below other maxima. With `averages` deep values of a noisy term are left out unless the fit
        overrates them. Deep values have errors except for the mask `firm` (n,).
        """
        node, n = self.node, len(self.alike)
        X, inputs, log_densities = evaluations.X, evaluations.inputs, evaluations.log_densities
        U, of_draws = self._rows(inputs), self._rows(draws_inputs)
        Y = np.hstack([each.emulated(evaluations.outputs) for each in self.alike])
        X, log_densities = np.repeat(X, n, axis=0), np.repeat(log_densities, n)
        Y = Y.reshape(len(X), -1)
        spaces = {
            "variables": (X[:, node.moves_with], draws[:, node.moves_with]),
            "inputs": (U, of_draws),
        }
        if (U > 0).all() and (of_draws > 0).all():
            spaces["log inputs"] = np.log(U), np.log(of_draws)
        heights = Y[:, 0] if node.is_term else log_densities
        # A search may begin where an estimate fails.
        highest = np.inf if top is None or not np.isfinite(heights[top]) else heights[top]
        # A search has no region besides: it is kept from where its emulator is deep.
        usable = (np.isfinite(Y) if self.grows else Y < np.inf).all(axis=1)
        if not node.is_term:
            usable = (np.abs(Y) < LARGEST_OUTPUT).all(axis=1)
        base = None if self.base is None else self._base_rows(evaluations)
        firm = np.repeat(np.broadcast_to(firm, len(evaluations.X)), n)
        data = Y, log_densities, highest, base, firm
        if n > 1:
            P, of_draws = list(spaces.values())[-1]
            most = n + MOST_ALIKE * (P.shape[1] + 1) * (P.shape[1] + 2) // 2
            usable = apart(P, usable, of_draws.std(axis=0), most)
        if not (averages and node.is_term and node.is_noisy and usable.any()):
            return self._fit_to(usable, spaces, *data)
        floor = self._floor(heights[usable])
        recalled = np.append(self._recalled, np.zeros(len(X) - len(self._recalled), dtype=bool))
        for _ in range(MOST_FITS):
            used = usable & ((heights >= floor) | recalled)
            n_competed = self.n_competed
            self._fit_to(used, spaces, *data)
            if self.n_competed > n_competed:
                recalled &= False
            left = np.flatnonzero(usable & ~used)
            overrated = left[self.predict(X[left], inputs[left]).outputs[:, 0] >= floor]
            if not len(overrated):
                break
            recalled[overrated] = True
        self._recalled = recalled
        return self

    def _rows(self, inputs):
        return _stacked([inputs[:, each.inputs] for each in self.alike])

    def _base_rows(self, evaluations):
        X, inputs = evaluations.X, evaluations.inputs
        return _stacked([self.base.shared(each).predict(X, inputs).latent for each in self.alike])

    def for_some(self):
        """Return an unfitted emulator for some of the values, which considers only rivals.

        These are forms that had about the log evidence of the best one. Searches start from their
        parameters.
        """
        other = NodeEmulator(self.node, self.grows, self.alike)
        other.base, other.varying = self.base, self.varying
        other._covariances = dict(self._covariances)
        if self._rivals:
            own = {(self.space, self.process.extension): self.process}
            other._starts = [(key[0], process) for key, process in (self._rivals | own).items()]
        return other

    def shared(self, node, *more):
        """Return the emulator of another node of the function, or of successive ones at once."""
        other = copy(self)
        other.node, other.nodes = node, (node, *more)
        other.base = self.base and self.base.shared(node, *more)
        return other

    @property
    def outputs(self):
        return slice(self.nodes[0].outputs.start, self.nodes[-1].outputs.stop)

    def _floor(self, heights):
        """Return the height below which a noisy term's values (n,) are left out."""
        d = len(self.node.moves_with)
        compression, n_coefficients = Compression.of(heights, d), (d + 1) * (d + 2) // 2
        n = min(FEWEST_FITTED * n_coefficients, len(heights))
        return min(compression.best - SHALLOW * compression.depth, np.sort(heights)[-n])

    @np.errstate(over="ignore", invalid="ignore")
    def _fit_to(self, usable, spaces, Y, log_densities, highest, base, firm):
        first = Y[np.argmax(usable)], spaces
        Y, log_densities, firm = Y[usable], log_densities[usable], firm[usable]
        base = None if base is None else base[usable]
        if not np.isfinite(Y).any() or not np.isfinite(log_densities).any():
            return self._kept(usable, *first)
        spaces = {name: (P[usable], draws) for name, (P, draws) in spaces.items()}
        competes = self.space is None or len(Y) > COMPETE_AGAIN * self.n_competed
        competes |= self.space is not None and self.space[0] not in spaces
        if not competes and self.is_log:
            competes = not np.all(Y > 0)  # they all were before
        keeps = self.grows and not competes and MANY_ROWS < len(Y) < SEARCH_AGAIN * self.n_searched
        last = None if self.process is None else self.process.extension

        def fits(candidates, extension, rows=slice(None), n_trials=N_TRIALS_AGAIN):
            if self.process is not None and extension == last and self.space[0] in spaces:
                candidates = [*candidates, (self.space, self.process)]
            if not np.all(Y > 0):
                candidates = [each for each in candidates if each[0][1] != "log"]
            some_base = None if base is None else base[rows]
            data = Y[rows], log_densities[rows], highest, some_base, firm[rows]
            some = {name: (P[rows], draws) for name, (P, draws) in spaces.items()}
            settings = keeps, extension, n_trials
            return [
                (space, self._fit_in(space, some[space[0]], *data, process, *settings))
                for space, process in candidates
            ]

        if competes:
            starts = [start for start in self._starts if start[0][0] in spaces]
            d, candidates = len(self.node.moves_with), partial(self._candidates, spaces)
            compared = _compared(fits, starts, candidates, log_densities, d, self.grows)
            found, self._rivals = compared
        else:
            found = max(fits([], last), key=_score)
        if found[1][1] is None:
            return self._kept(usable, *first)
        self.space, (_, self.process, self.offset, self.scales, covariance) = found
        self._covariances[self.space[0]] = covariance
        self.usable, self._base = usable, base if self.is_corrected else 0.0
        self.n_competed = len(Y) if competes else self.n_competed
        self.n_searched = self.n_searched if keeps else len(Y)
        return self

    def _kept(self, usable, outputs, spaces):
        """Keep the last fit, or predict the outputs (m,) everywhere if there is none."""
        if self.process is not None:
            self.usable = np.pad(self.usable, (0, max(len(usable) - len(self.usable), 0)))
            return self
        name, m = "variables" if len(self.alike) == 1 else "inputs", len(outputs)
        draws = spaces[name][1]
        process = process_about(draws, shrunk(draws), not self.node.is_noisy)
        parameters = Hyperparameters.start(SIMPLEST, d := draws.shape[1])
        self.process = process.given(np.zeros((1, d)), np.zeros((1, m)), np.zeros(1), parameters)
        self.space, self.varying, self._base = (name, "none", False), np.arange(d), 0.0
        self.offset, self.scales = np.where(np.isfinite(outputs), outputs, 0.0), np.ones(m)
        self.usable = np.arange(len(usable)) == np.argmax(usable)
        return self

    def _candidates(self, spaces):
        node, names = self.node, ["variables"]
        (X, _), (inputs, _), *positive = spaces.values()
        varies = np.ptp(inputs, axis=0) > 0
        self.varying = np.flatnonzero(varies)
        same = inputs.shape[1] == len(node.moves_with) and np.array_equal(inputs, X)
        if not same and 0 < varies.sum() <= 2 * len(node.moves_with):
            # Those of which there are fewer than variables above are scales, as in a hierarchy.
            are_scales = positive and varies.sum() < len(node.moves_with)
            names.append("log inputs" if are_scales else "inputs")
        if len(self.alike) > 1:
            names = ["log inputs" if positive else "inputs"]
        kinds = [(transform, False) for transform in TRANSFORMS[node.is_term]]
        if self.base is not None:
            kinds.append((self.base.space[1], True))
        return [(name, *kind) for name in names for kind in kinds]

    def _fit_in(self, space, points, Y, log_densities, highest, base, firm, last, *settings):
        keeps, *settings = settings
        (name, transform, is_corrected), (P, draws) = space, points
        if name != "variables":
            P, draws = P[:, self.varying], draws[:, self.varying]
        d = P.shape[1]
        covariance = shrunk(draws)
        last_covariance = self._covariances.get(name) if self.grows else None
        if last_covariance is not None and last_covariance.shape == covariance.shape:
            covariance = COVARIANCE_MEMORY * last_covariance + (1 - COVARIANCE_MEMORY) * covariance
        of, base = of_term if self.node.is_term else of_outputs, base if is_corrected else None
        targets, noise, offset, scales, jacobian = of(Y, log_densities, highest, d, transform, base)
        noise = np.where(firm, 0.0, noise)
        try:
            if keeps:
                process = ExactGP(last.whitening, last.centre, last.deterministic)
                process.given(process.coordinates(P), targets, noise, last.hyperparameters_)
            else:
                process = process_about(draws, covariance, not self.node.is_noisy)
                process.fit(P, targets, noise, last, *settings)
        except np.linalg.LinAlgError:
            return -np.inf, None, None, None, covariance
        return process.log_evidence_ + jacobian, process, offset, scales, covariance

    @property
    def noise(self):
        """Variance of the noise, in the process's units."""
        return np.exp(self.process.hyperparameters_.log_noise)

    @property
    def is_log(self):
        return self.space[1] == "log"

    @property
    def is_corrected(self):
        return self.space is not None and self.space[2]

    @property
    def uses_inputs(self):
        return self.space[0] != "variables" or (self.is_corrected and self.base.uses_inputs)

    def predict(self, X, U, with_variance=True):
        """Return :class:`EmulatedOutputs` at X (k, d) with opaque inputs U."""
        prediction = self.process.predict(self._points(X, U), with_variance)
        base = self.base.predict(X, U, with_variance) if self.is_corrected else None
        outputs = self.outputs_of(prediction.mean, 0.0 if base is None else base.latent)
        return EmulatedOutputs(outputs, prediction.variance, prediction, self, base)

    def outputs_of(self, mean, base):
        outputs = mean * self.scales + self.offset + base
        return np.exp(np.minimum(outputs, LARGEST_LOG)) if self.is_log else outputs

    def leave_one_out(self, evaluations=None):
        """Return leave-one-out predictions (n, m) and variance factors (n,), NaN if unusable.

        Values that a fit of nodes alike has left out are predicted at the `evaluations`.
        """
        mean, factors = self.process.leave_one_out()
        outputs = np.full((len(self.usable), mean.shape[1]), np.nan)
        variance = np.full(len(self.usable), np.nan)
        outputs[self.usable], variance[self.usable] = self.outputs_of(mean, self._base), factors
        if (n := len(self.alike)) > 1:
            i = [node.outputs for node in self.alike].index(self.node.outputs)
            outputs, variance = outputs[i::n], variance[i::n]
            left = np.isnan(variance) & np.isfinite(evaluations.log_densities)
            found = self.predict(evaluations.X[left], evaluations.inputs[left])
            outputs[left], variance[left] = found.outputs, found.variance
        return outputs, variance

    def standard_deviations(self, outputs, variance):
        factors = np.outer(variance, np.sum(self.process.output_factor_**2, axis=0))
        return np.sqrt(factors) * self.slopes(np.ones_like(outputs), np.abs(outputs))

    def covariance(self, X, U):
        return self.process.covariance(self._points(X, U))

    def slopes(self, by_outputs, outputs):
        return by_outputs * self.scales * (outputs if self.is_log else 1.0)

    def _points(self, X, U):
        if self.space[0] == "variables":
            return _stacked([X[:, node.moves_with] for node in self.nodes])
        own = _stacked([U[:, node.inputs] for node in self.nodes])[:, self.varying]
        return own if self.space[0] == "inputs" else np.log(np.maximum(own, 1.0 / LARGEST_OUTPUT))

    @property
    def packable(self):
        """The arguments of :func:`~pymc_kmc.surrogates.exact_gp_evaluation.packed`."""
        return self.process, self.scales, self.offset, self.is_log

    def points(self, x, inputs):
        """Return the graph of the c nodes' points (c, q), given `x` (d,) and inputs (c, k)."""
        if self.space[0] == "variables":
            return x[np.array([node.moves_with for node in self.nodes])]
        own = inputs[:, self.varying]
        return own if self.space[0] == "inputs" else pt.log(pt.maximum(own, 1.0 / LARGEST_OUTPUT))

    def add_pull(self, gradient, by_inputs, pulled, inputs):
        """Add derivatives by the emulator's space, in place, to those by variables or inputs."""
        pulled = pulled.reshape(len(gradient), len(self.nodes), -1)
        for i, node in enumerate(self.nodes):
            if self.space[0] == "variables":
                gradient[:, node.moves_with] += pulled[:, i]
                continue
            columns = np.arange(node.inputs.start, node.inputs.stop)[self.varying]
            own = pulled[:, i]
            if self.space[0] == "log inputs":
                own = own / np.maximum(inputs[:, columns], 1.0 / LARGEST_OUTPUT)
            by_inputs[:, columns] += own


def process_about(draws, covariance, deterministic):
    """Return an unfitted ExactGP in coordinates that whiten draws (n, d) of this covariance."""
    whitening = np.linalg.inv(cholesky_factor(covariance))
    return ExactGP(whitening, draws.mean(axis=0), deterministic)


def _stacked(arrays):
    """Return the rows (n * k, q) of k arrays (n, q), interleaved."""
    if len(arrays) == 1:
        return arrays[0]
    return np.stack(arrays, axis=1).reshape(len(arrays) * len(arrays[0]), -1)


def noise_of(emulators):
    """Return the standard deviation of the noise of a sum of emulators."""
    return float(np.sqrt(sum(emulator.noise for emulator in emulators if emulator.node.is_noisy)))


def at_all_heights(heights, n):
    """Return n row indices, evenly spaced in the order of heights."""
    every = np.linspace(0, len(heights) - 1, n).astype(int)
    return np.argsort(-heights, kind="stable")[every]


def _compared(fits, starts, candidates, log_densities, d, grows):
    """Return the best space and fit, and its rivals, from `starts` or else of all `candidates()`.

    `fits(pairs of a space and a process, extension, rows, n_trials)` are pairs of a space and its
    fit. The node has log densities (n,) and d variables. Fits that grow may be extended.
    """
    n, most = len(log_densities), max(MOST_COMPARED, (d + 1) * (d + 2) // 2)
    is_large = n > most and len(starts) != 1
    few = at_all_heights(log_densities, most) if is_large else slice(None)
    # With 24 iterations in place of 60 a log sd's standard error was half of what it is.
    n_trials = N_TRIALS_AGAIN if n > most else N_TRIALS
    tried = []
    for space, process in starts:
        tried += fits([(space, process)], process.extension, few, n_trials)
    if not tried:
        # From the search's own start too: the last parameters may be a local maximum.
        tried = fits([(space, None) for space in candidates()], None, few)
        space, (_, process, *_) = max(tried, key=_score)
        if grows and n >= FEWEST_EXTENDED and process is not None:
            for extension in _extensions(process):
                tried += fits([(space, None)], extension, few)
    found = space, (_, process, *_) = max(tried, key=_score)
    if is_large and process is not None:
        found = max(fits([(space, process)], process.extension), key=_score)
    return found, _rivals(tried)


def _score(found):
    """Return a fit's log evidence, less the gain that an extension must have; `found` is a pair."""
    _, (evidence, process, *_) = found
    if process is None or process.extension is None:
        return evidence
    return evidence - EXTENSION_GAIN * process.Y_.size


def _extensions(process):
    sizes = process.Z_.shape[1], process.Y_.shape[1]
    return [name for name in EXTENSIONS if all(np.less_equal(sizes, MOST_EXTENDED[name]))]


def _rivals(tried):
    """Return processes of the forms that may be the best for some of the values.

    Keys are a space and an extension, values the best process of each.
    """
    tried, rivals = sorted(tried, key=_score), {}
    for found in tried:
        space, (_, process, *_) = found
        if process is None:
            continue
        n, m = process.Y_.shape
        if _score(found) >= _score(tried[-1]) - SERIOUS * m * np.sqrt(n):
            rivals[space, process.extension] = process
    return rivals
