"""A log density with its gradient, for steps in Python and for compiled loops.

PyTensor's numba backend leaves a compiled function of one tuple: the inputs, then the values of the
shared variables. A loop that calls it by its *address*, given at run time, is compiled for the
types of these alone: numba keeps it on disk, and it serves every model with variables of these
types. Nothing goes through Python.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytensor.tensor as pt
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from pymc.exceptions import SamplingError
from pytensor.compile.mode import get_mode
from pytensor.gradient import NullTypeGradError, grad

from pymc_kmc.model.target import Evaluation, TargetDensity, compile_function

__all__ = ["CompiledDensity", "DifferentiableTarget", "density_at"]

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


class DifferentiableTarget(TargetDensity):
    """A log density whose evaluations come with the gradient.

    Parameters
    ----------
    variables, model, initial_point, compile_kwargs
        As of :class:`TargetDensity`.
    always : bool
        Whether every evaluation has the gradient, or :meth:`gradient` is asked for it.
    curvature : bool
        Whether :meth:`hessian_product` is to be had.

    Raises
    ------
    TypeError
        If the density is estimated, or has no gradient, or with `curvature` no second derivatives.
    """

    def __init__(
        self,
        variables,
        model,
        initial_point,
        compile_kwargs=None,
        *,
        always=True,
        curvature=False,
    ):
        self.always = always
        self.curvature = curvature
        self._compiled = self._compiled_for = None
        super().__init__(variables, model, initial_point, compile_kwargs)

    def _compile_outputs(self, outputs, position, compile_kwargs):
        if self.is_noisy:
            sources = [likelihood.name for likelihood in self._likelihoods]
            raise TypeError(
                f"The likelihood {', '.join(map(repr, sources)) or 'of a pm.Simulator'} is "
                "estimated and has no gradient. Use kmc.KMC() or kmc.AdaptiveMetropolis(), which "
                "need none."
            )
        log_density = outputs[0]
        gradient = self._derivative(log_density, position, "gradient")
        if "mode" not in compile_kwargs:
            # As pm.compile does: -inf where a parameter is impossible, in place of an exception.
            mode = get_mode(None).including("local_check_parameter_to_ninf_switch")
            compile_kwargs = compile_kwargs | {"mode": mode}
        self._gradient_function = compile_function(
            [position], [log_density, gradient], compile_kwargs
        )
        if not self.always:
            self._function = compile_function([position], [log_density], compile_kwargs)
        if self.curvature:
            direction = pt.vector("direction", dtype=position.dtype)
            product = self._derivative(
                pt.dot(gradient, direction), position, "Hessian (needed by variant='exact')"
            )
            self._hessian_function = compile_function(
                [position, direction], [product], compile_kwargs
            )

    def _derivative(self, value, position, what):
        try:
            return grad(value, position, disconnected_inputs="ignore")
        except (NotImplementedError, NullTypeGradError) as error:
            raise TypeError(
                f"The model's log density has no {what} in {', '.join(map(repr, self.names))}: "
                f"{error}. Give that Op one, or sample the variables that it depends on with a "
                "step that needs no gradient: kmc.KMC(), kmc.AdaptiveMetropolis()."
            ) from error

    def __getstate__(self):
        # An address means nothing in another process.
        return self.__dict__ | {"_compiled": None, "_compiled_for": None}

    def check_start(self, point):
        """As of :class:`TargetDensity`; every element of the gradient must be finite too."""
        super().check_start(point)
        evaluation = self.current(point)
        gradient = evaluation.gradient
        if gradient is None:
            gradient = self.gradient(evaluation.position)
        if np.isfinite(gradient).all():
            return
        parts = self.point(point, gradient)
        values = "\n".join(
            f"  {name}: {parts[name]} at {point[name]}"
            for name in self.names
            if not np.isfinite(parts[name]).all()
        )
        raise SamplingError(
            "The gradient of the log density isn't finite at the chain's starting point:\n"
            f"{values}\nGive another start, pm.sample(initvals={...})."
        )

    def _evaluate(self, position, noise):
        if not self.always:
            return super()._evaluate(position, noise)
        self.n_evaluations += 1
        log_density, gradient = self._gradient_function(position.astype(self._dtype, copy=False))
        return Evaluation(float(log_density), 0.0, position, noise, gradient=gradient)

    def gradient(self, position):
        """Return the gradient at `position` (d,); counts as an evaluation."""
        self.n_evaluations += 1
        return self._gradient_function(position.astype(self._dtype, copy=False))[1]

    def hessian_product(self, position, direction):
        """Return the Hessian at `position` (d,) times `direction` (d,)."""
        arguments = [vector.astype(self._dtype, copy=False) for vector in (position, direction)]
        return self._hessian_function(*arguments)[0]

    def density(self, arguments):
        """Return log density, of shape (), and gradient at ``arguments[0]``; does not count."""
        position = arguments[0].astype(self._dtype, copy=False)
        log_density, gradient = self._gradient_function(position)
        return np.asarray(log_density), gradient

    @property
    def shared_values(self):
        """What the density depends on besides the position: a tuple of arrays."""
        return tuple([storage[0] for storage in self._gradient_function.vm.inputs[1:]])

    def compiled(self):
        """Return the density for calls from compiled code, with its shared values.

        Returns
        -------
        density : CompiledDensity or None
            For shared values of the types that they have now; None where PyTensor compiles with
            something else than numba.
        shared : tuple of ndarray
            As :attr:`shared_values`.
        """
        if not hasattr(self._gradient_function.vm, "jit_fn"):
            return None, ()
        shared = self.shared_values
        # By identity: a value that another step has moved is a new array.
        known = self._compiled_for
        if known is None or any(a is not b for a, b in zip(shared, known, strict=True)):
            arguments = (np.zeros(self.n_dimensions), *shared)
            if self._compiled is None or self._compiled.argument != numba.typeof(arguments):
                self._compiled = CompiledDensity.of(self._gradient_function, arguments)
            self._compiled_for = shared
        return self._compiled, shared
