r"""Partial posteriors: unbiased estimates of posterior expectations from subsets of big data.

A posterior given N data costs N likelihood terms an iteration. The posteriors given a, 2a, 4a, ...
of the data cost less, and their expectations phi_0, phi_1, phi_2, ... come nearer and nearer to
that of all data. One replication draws a random level T, samples the posteriors of the nested
subsets 0 ... T of one random permutation of the data, and weighs the differences:

.. math:: \varphi^* = \sum_{t=0}^{T} \frac{\varphi_t - \varphi_{t-1}}{P(T \ge t)},
          \qquad \varphi_{-1} = 0 .

The weights make up for the differences that a replication leaves out, so that the sum telescopes in
expectation, :math:`E \varphi^* = E \varphi_{t_{max}}`. :math:`\varphi_{t_{max}}` is the result of a
run on all data. Subsets cause no bias; chains that are too short for all data do.

.. code-block:: python

    def build(subset):
        with pm.Model() as model:
            mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 10)
            pm.Normal("y", mu, sigma, observed=subset)
        return model

    result = kmc.partial_posteriors(
        build, y, ["mu", "sigma"], first_size=1000, alpha=0.7, n_replications=50
    )

References
----------
Glynn, P. W. and Rhee, C.-H. (2014). Exact estimation for Markov chain equilibrium expectations.
*Journal of Applied Probability* 51A, 377-389.

Rhee, C.-H. and Glynn, P. W. (2015). Unbiased estimation with square root convergence for SDE
models. *Operations Research* 63, 1026-1043.

Strathmann, H., Sejdinovic, D. and Girolami, M. (2015). Unbiased Bayes for big data: paths of
partial posteriors. arXiv:1501.03326.
"""

from pymc_kmc.partial.estimator import partial_posteriors
from pymc_kmc.partial.result import PartialPosteriors

__all__ = ["PartialPosteriors", "partial_posteriors"]
