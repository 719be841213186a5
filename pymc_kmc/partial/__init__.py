r"""Partial posteriors: unbiased estimates of posterior expectations from subsets of big data.

A posterior given N data costs N likelihood terms an iteration. The posteriors given a, 2a, 4a, ...
of the data cost less, and their expectations phi_0, phi_1, phi_2, ... approach that of all data.
One replication draws a random level T, samples the posteriors of the nested subsets 0 ... T of one
random permutation of the data, and weighs the differences:

.. math:: \varphi^* = \sum_{t=0}^{T} \frac{\varphi_t - \varphi_{t-1}}{P(T \ge t)},
          \qquad \varphi_{-1} = 0 .

The weights make the sum telescope in expectation, :math:`E \varphi^* = E \varphi_{t_{max}}`, the
result of a run on all data. Subsets cause no bias; chains that are too short for all data do.
:func:`partial_posteriors` has an example.

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
