"""The API pages, one a topic, written into docs/api/ before Sphinx looks for pages.

tests/examples/test_docs.py holds TOPICS to the package: every public name belongs to one topic.
"""

import importlib
import inspect
import shutil
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple


class Topic(NamedTuple):
    """A page of the API.

    Attributes
    ----------
    page, title, text : str
        Name of the page's file, its heading and what stands above its table.
    module : str
        Module that has the names.
    names : tuple of str or None
        The names, in this order, as far as the package has them; None for all of the module.
    """

    page: str
    title: str
    text: str
    module: str = "pymc_kmc"
    names: tuple[str, ...] | None = None


TOPICS = (
    Topic(
        "samplers",
        "Samplers",
        "Step methods for `pm.sample(step=...)`. [Choose a sampler](../choose.md) says which, and "
        "[How it works](../how_it_works.md) what they do. `AdaptiveStep` has the arguments that "
        "all of them take.",
        names=(
            "KMC",
            "KMCLite",
            "KMCFinite",
            "KAMH",
            "AdaptiveMetropolis",
            "GadMALA",
            "GadRWM",
            "steps.base.AdaptiveStep",
        ),
    ),
    Topic(
        "likelihoods",
        "Likelihoods",
        "What makes an estimator, a simulator or a plain function a part of a PyMC model. See "
        "[Noisy likelihoods](../noisy_likelihoods.md), [Simulators](../simulators.md), "
        "[Servers and programs](../external_simulators.md) and "
        "[Keep every evaluation](../stores.md).",
        names=(
            "BlackBox",
            "black_boxes",
            "BlackBoxError",
            "umbridge",
            "command",
            "PseudoMarginalPotential",
            "ABCPotential",
            "SyntheticLikelihoodPotential",
            "EstimatorError",
            "EvaluationStore",
            "FunctionEvaluations",
        ),
    ),
    Topic(
        "learning",
        "Learning before sampling",
        "What is opaque in a model, learned once for all chains. See [Learn once](../learning.md).",
        names=("learn", "LearnedPosterior", "Evaluations", "LearnedMode", "Round", "LogEvidence"),
    ),
    Topic(
        "before_and_after",
        "Before and after sampling",
        "How noisy a likelihood is, what limits a run's chains, what was kept with its draws, "
        "averages, the evidence, and how near draws are to a reference.",
        names=(
            "estimate_noise",
            "NoiseEstimate",
            "diagnose",
            "Diagnosis",
            "EvaluationCounts",
            "extras",
            "with_extras",
            "sample_posterior_predictive",
            "compute_log_likelihood",
            "summary",
            "log_evidence",
            "mmd",
            "MMD",
        ),
    ),
    Topic(
        "plots",
        "Plots",
        "Pictures of what a sampler did and learned.",
        module="pymc_kmc.plots",
    ),
    Topic(
        "partial_posteriors",
        "Big data",
        "Expectations from random subsets of the data. See "
        "[Partial posteriors](../partial_posteriors.md).",
        names=("partial_posteriors", "PartialPosteriors"),
    ),
    Topic(
        "surrogates",
        "Surrogates",
        "Functions with a gradient, fitted to draws or to values of a log density; usable without "
        "PyMC. See [Surrogates on their own](../surrogates.md).",
        module="pymc_kmc.surrogates",
        names=(
            "LogDensityGP",
            "KernelExpLite",
            "KernelExpFinite",
            "select",
            "SelectionResult",
            "unique_states",
            "Surrogate",
            "log_density_at",
            "gradient_at",
            "LogDensityGPParameters",
            "LiteParameters",
            "FiniteParameters",
            "NotFittedError",
        ),
    ),
    Topic("datasets", "Data sets", "Data of the examples.", module="pymc_kmc.datasets"),
)

PAGE = """# {title}

{target}{text}

```{{eval-rst}}
.. currentmodule:: {module}

.. autosummary::
   :toctree: generated
   :nosignatures:

{names}
```
"""
INDEX = """# API

Every public name, by topic. `import pymc_kmc as kmc` is how the examples write them.

```{{toctree}}
:maxdepth: 2

{pages}
```
"""


def is_there(module, name):
    try:
        attrgetter(name)(module)
    except AttributeError:
        return False
    return True


def names_of(topic):
    """Return a topic's names that are there; none where its module isn't."""
    try:
        module = importlib.import_module(topic.module)
    except ModuleNotFoundError:
        return []
    return [name for name in topic.names or module.__all__ if is_there(module, name)]


def write_api(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages = []
    for topic in TOPICS:
        names = names_of(topic)
        if names:
            lines = "\n".join(f"   {name}" for name in names)
            # A module with a page of its own can be referred to by its name.
            own = topic.module != "pymc_kmc"
            target = f"```{{py:module}} {topic.module}\n```\n\n" if own else ""
            text = PAGE.format(**topic._asdict() | {"names": lines, "target": target})
            (folder / f"{topic.page}.md").write_text(text, encoding="utf-8")
            pages.append(topic.page)
    (folder / "index.md").write_text(INDEX.format(pages="\n".join(pages)), encoding="utf-8")


def constructor_signature(app, what, name, value, options, signature, returns):
    """Show a class's constructor where `__new__` takes anything and hands it on."""
    if what == "class" and signature == "(*args, **kwargs)" and "__init__" in vars(value):
        first, *others = inspect.signature(value.__init__).parameters.values()
        signature = str(inspect.Signature(others))
    return signature, returns


def setup(app):
    app.connect("autodoc-process-signature", constructor_signature)
    app.connect("config-inited", lambda app, config: write_api(Path(app.srcdir) / "api"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
