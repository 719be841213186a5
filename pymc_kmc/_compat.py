"""The few lines that differ between PyMC 5.28 and 6.x."""

import warnings

import pytensor

PYTENSOR_MAJOR = int(pytensor.__version__.split(".")[0])


def expect_numba_fallback(op_type):
    """Let numba call Ops of `op_type` in object mode without a warning at each compilation.

    Numba is the default backend from PyTensor 3 on; a user's Python function can't be compiled by
    it.

    Parameters
    ----------
    op_type : type
        Subclass of `pytensor.graph.op.Op`.
    """
    if PYTENSOR_MAJOR < 3:
        return
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

    @numba_funcify.register(op_type)
    def funcify(op, node, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            return generate_fallback_impl(op, node, **kwargs)
