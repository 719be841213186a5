"""PyTensor's compiled functions, called from other compiled functions without going through Python.

PyTensor's numba backend leaves a compiled function of one tuple: the inputs, then the values of the
shared variables. What calls it by its *address*, given at run time, is compiled for the types of
these alone: numba keeps it on disk, and it serves every model with variables of these types.
"""

from typing import Any, NamedTuple

import numba
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

__all__ = ["CompiledDensity", "density_at"]

# A log density and its gradient. Arrays of any memory layout are handed over in the same way.
RESULT = types.Tuple([types.Array(types.float64, 0, "A"), types.Array(types.float64, 1, "A")])


class CompiledDensity(NamedTuple):
    """A log density with its gradient that PyTensor has compiled with numba.

    Attributes
    ----------
    address : int
        Where the function is, in this process.
    argument : numba.types.Type
        What it is a function of: a tuple.
    owner : object
        Keeps the compiled code alive.
    """

    address: int
    argument: types.Type
    owner: Any

    @classmethod
    def of(cls, function, arguments):
        """Return what PyTensor's `function` has compiled for `arguments`, or None.

        Parameters
        ----------
        function : callable
            Result of `pytensor.function`.
        arguments : tuple of ndarray
            The position, then the values of the shared variables.

        Returns
        -------
        CompiledDensity or None
            None where PyTensor has another backend than numba, or another precision than double.
        """
        dispatcher = getattr(function.vm, "jit_fn", None)
        if not isinstance(dispatcher, Dispatcher):
            return None
        dispatcher(*arguments)
        argument = numba.typeof(arguments)
        for (given,), compiled in dispatcher.overloads.items():
            result = [(array.dtype, array.ndim) for array in compiled.signature.return_type]
            expected = [(array.dtype, array.ndim) for array in RESULT]
            if tuple(given) == tuple(argument) and result == expected:
                name = compiled.fndesc.llvm_func_name
                address = compiled.library.get_pointer_to_function(name)
                return cls(address, argument, dispatcher)
        return None


@intrinsic
def density_at(typing_context, address, position, shared):
    """Return the function at an address that takes the tuple ``(position, *shared)``."""
    density = types.FunctionType(RESULT(types.Tuple.from_types([position, *shared])))

    def codegen(context, builder, signature, arguments):
        function = cgutils.create_struct_proxy(density)(context, builder)
        # Called with numba's own convention: exceptions are passed on.
        function.jit_addr = builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))
        return function._getvalue()

    return density(types.intp, position, shared), codegen
