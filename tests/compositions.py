"""Random compositions around a black box, as the source text of a script that builds a model.

What the text says is all there is: a composition that fails is run again by copying it.
"""

import hypothesis.strategies as st
import numpy as np

# What each script begins with. NaN passes through a `Quiet` box; `kmc.BlackBox` refuses it.
HEADER = '''\
import numpy as np, pymc as pm, pytensor.tensor as pt, pymc_kmc as kmc
from pytensor.graph.op import Op

T = np.linspace(0.0, 1.0, 6)
NOISE = np.array([0.3, -0.4, 0.1, 0.5, -0.2, -0.3])

class Quiet(Op):
    """A function of numbers without gradient, which may return NaN."""

    def __init__(self, function, n):
        self.function = function
        self.itypes, self.otypes = n * [pt.dscalar], [pt.dvector]

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.function(*map(float, inputs)))
'''

PRIORS = [
    "pm.Normal({name!r}, 0, 1)",
    "pm.Normal({name!r}, 0, 2)",
    "pm.Normal({name!r}, 1, 2)",
    "pm.Uniform({name!r}, -3, 3)",
    "pm.LogNormal({name!r}, 0, 0.5)",
    "pm.StudentT({name!r}, 5)",
]
# Outputs (6,) of one parameter, of two.
CURVES = {
    1: [
        "a + 0 * T",
        "a * (0.5 + T)",
        "2 * np.tanh(a * (0.5 + T))",
        "0.5 * (a - 0.5) ** 2 * (0.5 + T)",
        "np.abs(a) + T",
        "np.maximum(a - 1, 0) * (0.5 + T)",
        "np.sin(2 * a + T) + 0.3 * a",
        "3 * np.exp(-np.exp(np.clip(a, -20, 5)) * T)",
    ],
    2: [
        "a + b * T",
        "a * np.exp(-np.clip(b, -3, 30) * T)",
        "2 * np.tanh(a + b * T)",
        "0.5 * (a - 0.5) ** 2 + b * T",
        "np.abs(a) + b * T",
        "np.maximum(a - 0.5, 0) + b * T",
        "a * b + T * a",
        "np.sqrt(a ** 2 + b ** 2) * (1 + T)",
    ],
}
# An input before the box sees it.
BEFORE = [
    "pt.maximum({x}, 1.0)",
    "pt.maximum({x}, -0.5)",
    "pt.minimum({x}, 1.5)",
    "pt.clip({x}, -1.0, 2.0)",
    "pt.switch({x} > 0.5, {x}, 0.5)",
    "pt.switch({x} > 1.5, {x}, 0.2 * {x})",
    "pt.softplus({x})",
    "-{x}",
]
# Outputs as the box returns them become others, (n,) again. `limit` and `value` are numbers.
AFTER = [
    "pt.maximum(o, {limit})",
    "pt.minimum(o, {limit})",
    "pt.clip(o, {limit}, {limit} + 1.5)",
    "pt.switch(o > {limit}, o, {limit} + 0.3 * (o - {limit}))",
    "pt.switch(a > {limit}, o, o + 0.7)",
    "pt.switch(a > {limit}, o, {value})",
    "pt.maximum(o[:1], o[1:])",
    "pt.logaddexp(o, {value})",
    "o[:3]",
    "o[::2]",
    "o[[0, -1]]",
    "o * np.linspace(-1, 2, 6)[:o.type.shape[0]]",
    "-0.7 * o",
    "o + 0.3 * o ** 2",
    "o - o.mean() / 2",
    "pt.tanh(o)",
    "pt.cumsum(o) / 2",
]
# NaN that the model replaces.
FAILING = "np.where({where}, np.nan, {curve})"
WHERE = ["a > {limit}", "a < -{limit}", "T * a > {limit}", "abs(a) > {limit} + 0.5"]
REPLACED = [
    "pt.switch(pt.isnan(o), {value}, o)",
    "pt.switch(pt.isnan(o), a, o)",
    "pt.switch(pt.isnan(o).any(), {value} + 0 * T, o)",
]
# A box again.
AGAIN = [
    "0.5 * o + 0.5 * {second}",
    "pt.concatenate([o, {second}])[:6]",
    "pt.maximum(o, {second})",
]
OF_A_BOX = ["np.tanh(o) + 0.2 * o", "np.maximum(o, 0.3)", "0.2 * o ** 2"]
LIKELIHOODS = [
    'pm.Normal("y", mu, 0.6, observed=observed)',
    'pm.Normal("y", mu, 0.6, observed=observed)',
    'pm.Laplace("y", mu, 0.5, observed=observed)',
    'pm.StudentT("y", 3, mu=mu, sigma=0.5, observed=observed)',
    'pm.Poisson("y", pt.exp(pt.clip(mu, -4, 3)), observed=np.exp(observed.clip(-4, 3)).round())',
    'pm.CustomDist("y", mu, logp=lambda y, mu: -0.5 * ((y - mu) / 0.6) ** 2, observed=observed)',
    'pm.CustomDist("y", mu, logp=lambda y, m: -pt.log1p(((y - m) / 0.4) ** 2), observed=observed)',
    'pm.Potential("l", (-0.5 * ((observed - mu) / 0.6) ** 2).sum())',
    'pm.Potential("l", pt.maximum(-0.5 * ((observed - mu) / 0.6) ** 2, -4.0).sum())',
    'pm.Potential("l", pm.logp(pm.Normal.dist(mu, 0.6), observed).sum())',
    'pm.Potential("l", pt.logaddexp(np.log(0.8) - 0.5 * ((observed - mu) / 0.5) ** 2,'
    " np.log(0.2) - 0.5 * (observed / 3) ** 2).sum())",
    'pm.Mixture("y", [0.8, 0.2], [pm.Normal.dist(mu, 0.5), pm.Normal.dist(0.0, 3.0,'
    " shape=mu.type.shape)], observed=observed)",
    'pm.Normal("y", mu, 0.8, observed=observed); pm.Laplace("z", 0.5 * mu[0], 0.7, observed=0.4)',
]
# Of a box that returns terms (6,) of the log likelihood, and of one that returns their sum.
TERMS = [
    "l.sum()",
    "pt.maximum(l, {floor}).sum()",
    "pt.minimum(l, -0.5).sum()",
    "pt.clip(l, {floor}, -0.1).sum()",
    "l[:4].sum()",
    "l[[0, 2, 5]].sum()",
    "(l * np.linspace(0, 2, 6)).sum()",
    "(l * np.array([1, 1, -0.3, 1, 1, 1])).sum()",
    "pt.logaddexp(l, {floor}).sum()",
    "pt.logsumexp(l)",
    "pt.max(l)",
    "pt.switch(l > {floor}, l, {floor} + 0.2 * (l - {floor})).sum()",
    "pt.switch(a > {limit}, l, l - 1.0).sum()",
    "pt.switch(a > {limit}, l.sum(), {floor} + 0 * l.sum())",
    "l[0] + pt.logaddexp(l[1:], l[:1] - 2.0).sum()",
    "0.5 * l.sum()",
    "pt.minimum(l[::2], l[1::2]).sum()",
]
NUMBERS = [
    "l",
    "0.5 * l",
    "pt.maximum(l, {floor})",
    "pt.maximum(l, 3 * {floor})",
    "pt.minimum(l, -1.0)",
    "pt.logaddexp(l, {floor})",
    "pt.switch(a > {limit}, l, l - 1.0)",
    "pt.switch(l > 2 * {floor}, l, 2 * {floor} + 0.1 * (l - 2 * {floor}))",
    "-pt.sqrt(1 + l ** 2)",
    "2.0 * pt.tanh(l / 2.0)",
    "pt.logaddexp(l, second - 1.0)",
    "0.5 * (l + second)",
    "pt.maximum(l, second)",
]
# How a box's log likelihood is handed over: its negative, as a user's -2 log L, or itself.
SIGNS = [1.0, 1.0, -1.0, -0.5]


def _numbers(rng, text):
    """Fill the places that are left for numbers."""
    return text.format(
        limit=rng.choice([-1.0, 0.0, 0.5, 1.0]),
        value=rng.choice([-0.5, 0.0, 1.0]),
        floor=rng.choice([-8.0, -3.0, -1.5]),
    )


def _box(name, function, arguments, shape, is_quiet):
    """Return the text of a call of a box."""
    names = ", ".join("ab"[: len(arguments)])
    if is_quiet:
        return f"Quiet(lambda {names}: {function}, {len(arguments)})({', '.join(arguments)})"
    tail = f", shape={shape}" if shape else ""
    return f"kmc.BlackBox({name!r}, lambda {names}: {function}, {', '.join(arguments)}{tail})"


@st.composite
def compositions(draw):
    """Source text of a script that makes a model, `model`."""
    # Hypothesis varies what it has drawn before; independent choices see more in as many examples.
    rng = draw(st.randoms(use_true_random=True))
    d = rng.choice([1, 1, 2])
    names = list("ab"[:d])
    truth = rng.choice([(0.6, 0.4), (1.5, -0.7), (2.2, 1.0)])[:d]
    if d == 2 and rng.random() < 0.2:
        lines = ["ab = pm.Normal('ab', [0.0, 1.0], 1.5)", "a, b = ab[0], ab[1]"]
        at_truth = f"{{ab: {list(truth)}}}"
    else:
        lines = [f"{n} = {rng.choice(PRIORS).format(name=n)}" for n in names]
        at_truth = f"dict(zip([{', '.join(names)}], {truth}))"
    arguments = list(names)
    if rng.random() < 0.5:
        i = rng.randrange(d)
        arguments[i] = rng.choice(BEFORE).format(x=names[i])
    curve = rng.choice(CURVES[d])
    kind = rng.choice(["outputs", "outputs", "outputs", "terms", "number"])
    if kind == "outputs":
        lines += _of_outputs(rng, curve, arguments, names, at_truth)
    else:
        lines += _of_likelihood(rng, curve, arguments, truth, kind)
    body = "\n".join(f"    {line}" for line in lines)
    return f"{HEADER}\nwith pm.Model() as model:\n{body}\n"


def _of_outputs(rng, curve, arguments, names, at_truth):
    """Return lines of a box's outputs, what is done with them, and a likelihood."""
    has_failures, is_quiet = rng.choice([(False, False), (False, True), (True, True)])
    if has_failures:
        curve = FAILING.format(where=_numbers(rng, rng.choice(WHERE)), curve=curve)
    lines = [f"o = {_box('f', curve, arguments, 6, is_quiet)}"]
    if has_failures:
        lines.append(f"o = {_numbers(rng, rng.choice(REPLACED))}")
        lines.append("o = pt.specify_shape(o, 6)")
    elif is_quiet:
        lines.append("o = pt.specify_shape(o, 6)")
    elif rng.random() < 0.25:
        others = [f"0.5 * {a} + 0.3" for a in names]
        second = _box("g", curve, others, 6, False)
        lines.append(f"o = {rng.choice(AGAIN).format(second=second)}")
    for _ in range(rng.randrange(3)):
        lines.append(f"o = {_numbers(rng, rng.choice(AFTER))}")
    if not has_failures and rng.random() < 0.2:
        lines.append("n = o.type.shape[0]")
        function = rng.choice(OF_A_BOX)
        lines.append(f"o = kmc.BlackBox('h', lambda o: {function}, o, shape=n)")
    lines.append("mu = o")
    lines.append(f"observed = mu.eval({at_truth}) + 0.6 * NOISE[: mu.type.shape[0]]")
    return [*lines, rng.choice(LIKELIHOODS)]


def _of_likelihood(rng, curve, arguments, truth, kind):
    """Return lines of a box that returns a log likelihood or its terms, and a potential."""
    sign = rng.choice(SIGNS)
    lines = [f"def curve({', '.join('ab'[: len(truth)])}): return {curve}"]
    lines.append(f"y = curve{tuple(truth)} + 0.6 * NOISE")
    names = ", ".join("ab"[: len(truth)])
    likelihood = f"-0.5 * ((y - curve({names})) / 0.6) ** 2"
    if kind == "terms":
        used, shape = rng.choice(TERMS), 6
    else:
        used, shape = rng.choice(NUMBERS), None
        likelihood = f"({likelihood}).sum()"
    lines.append(
        f"l = {sign} * {_box('l', f'{1.0 / sign} * {likelihood}', arguments, shape, False)}"
    )
    if "second" in used:
        moved = [f"{a} + 1.0" for a in arguments]
        lines.append(f"second = {_box('m', likelihood, moved, shape, False)}")
    return [*lines, f'pm.Potential("p", {_numbers(rng, used)})']


def built(text):
    """Return the model that a composition's text makes."""
    namespace = {}
    with np.errstate(all="ignore"):
        exec(text, namespace)
    return namespace["model"]
