"""A log density with its gradient, for steps in Python and for loops compiled by numba.

PyTensor's numba backend compiles a function of one tuple: the inputs, then the values of the shared
variables. (Code that PyTensor can't cache takes them one by one, and is wrapped.) A compiled loop
calls the function by its *address*, an argument. Numba therefore compiles the loop for the types of
the tuple alone, caches it, and uses it for every model with variables of these types.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytensor.tensor as pt
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from pymc.exceptions import SamplingError
from pytensor.gradient import NullTypeGradError, grad

from pymc_kmc.model.log_density import Evaluation, compile_function
from pymc_kmc.model.target import TargetDensity

# Numba type of a log density and its gradient, of any memory layout.
RESULT = types.Tuple([types.Array(types.float64, 0, "A"), types.Array(types.float64, 1, "A")])


class CompiledDensity(NamedTuple):
    """A log density with its gradient, compiled by PyTensor with numba.

    `address` is the function's in this process, `argument` the numba type of its one argument, a
    tuple. `owner` keeps the compiled code alive.
    """

    address: int
    argument: types.Type
    owner: Any

    @classmethod
    def of(cls, function, arguments):
        """Return the code of a PyTensor function for ``(position, *shared values)`` of these types.

        None if PyTensor's backend isn't numba, or its precision isn't double.
        """
        dispatcher = getattr(function.vm, "jit_fn", None)
        if not isinstance(dispatcher, Dispatcher):
            return None
        dispatcher(*arguments)
        argument = numba.typeof(arguments)
        if any(tuple(given) == tuple(argument) for given in dispatcher.overloads):
            dispatcher = _of_a_tuple(dispatcher, argument)
        for (given,), compiled in dispatcher.overloads.items():
            result = [(array.dtype, array.ndim) for array in compiled.signature.return_type]
            expected = [(array.dtype, array.ndim) for array in RESULT]
            if tuple(given) == tuple(argument) and result == expected:
                name = compiled.fndesc.llvm_func_name
                address = compiled.library.get_pointer_to_function(name)
                return cls(address, argument, dispatcher)
        return None


def _of_a_tuple(dispatcher, argument):
    @numba.njit
    def density(arguments):
        return dispatcher(*arguments)

    density.compile((argument,))
    return density


@intrinsic
def density_at(typing_context, address, position, shared):
    """Return the function of the tuple ``(position, *shared)`` at an address."""
    density = types.FunctionType(RESULT(types.Tuple.from_types([position, *shared])))

    def codegen(context, builder, signature, arguments):
        function = cgutils.create_struct_proxy(density)(context, builder)
        # Called by numba's own convention, which passes exceptions on.
        function.jit_addr = builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))
        return function._getvalue()

    return density(types.intp, position, shared), codegen


class DifferentiableTarget(TargetDensity):
    """A target with the gradient of its log density.

    If `always`, every evaluation has the gradient; otherwise :meth:`gradient` computes it. With
    `curvature`, :meth:`hessian_product` is compiled. A TypeError says that the density is
    estimated, or lacks the derivatives. The other parameters are those of :class:`LogDensity`.
    """

    def __init__(
        self, variables, model, initial_point, compile_kwargs=None, *, always=True, curvature=False
    ):
        self.always = always
        self.curvature = curvature
        self._compiled = self._compiled_for = None
        super().__init__(variables, model, initial_point, compile_kwargs)

    def _compile(self, outputs, position, compile_kwargs):
        if self.is_noisy:
            sources = [likelihood.name for likelihood in self.likelihoods]
            raise TypeError(
                f"The likelihood {', '.join(map(repr, sources)) or 'of a pm.Simulator'} is "
                "estimated and has no gradient. Use kmc.KMC() or kmc.AdaptiveMetropolis(), which "
                "need none."
            )
        log_density = outputs[0]
        gradient = self._derivative(log_density, position, "gradient")
        outputs = [log_density, gradient]
        self._gradient_function = compile_function([position], outputs, compile_kwargs)
        if not self.always:
            self._function = compile_function([position], [log_density], compile_kwargs)
        if self.curvature:
            direction = pt.vector("direction", dtype=position.dtype)
            what, along = "Hessian (needed by variant='exact')", pt.dot(gradient, direction)
            product, inputs = self._derivative(along, position, what), [position, direction]
            self._hessian_function = compile_function(inputs, [product], compile_kwargs)

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
        # Addresses have no meaning in another process.
        return self.__dict__ | {"_compiled": None, "_compiled_for": None}

    def check_start(self, point):
        """Raise a SamplingError unless log density and gradient are finite at `point`."""
        super().check_start(point)
        evaluation = self.current(point)
        gradient = evaluation.gradient
        if gradient is None:
            gradient = self.gradient(evaluation.position)
        if np.isfinite(gradient).all():
            return
        parts = self.point(point, gradient)
        wrong = [name for name in self.names if not np.isfinite(parts[name]).all()]
        values = "\n".join(f"  {name}: {parts[name]} at {point[name]}" for name in wrong)
        raise SamplingError(
            "The gradient of the log density isn't finite at the chain's starting point:\n"
            f"{values}\nGive another start, pm.sample(initvals={...})."
        )

    def evaluate(self, position, noise):
        """Return the Evaluation at a position (d,), with the gradient if `always`; counted."""
        if not self.always:
            return super().evaluate(position, noise)
        self.n_evaluations += 1
        argument = self.rounded(position)
        log_density, gradient = self._gradient_function(argument)
        position, gradient = (v.astype(np.float64, copy=False) for v in (argument, gradient))
        return Evaluation(float(log_density), 0.0, position, noise, gradient=gradient)

    def gradient(self, position):
        """Return the gradient at `position` (d,); counted as an evaluation."""
        self.n_evaluations += 1
        gradient = self._gradient_function(self.rounded(position))[1]
        return gradient.astype(np.float64, copy=False)

    def hessian_product(self, position, direction):
        arguments = [self.rounded(vector) for vector in (position, direction)]
        return self._hessian_function(*arguments)[0].astype(np.float64, copy=False)

    def density(self, arguments):
        """Return log density () and gradient (d,) at ``arguments[0]``; not counted.

        It has the signature of the function at :attr:`CompiledDensity.address`.
        """
        log_density, gradient = self._gradient_function(self.rounded(arguments[0]))
        return np.asarray(log_density, np.float64), gradient.astype(np.float64, copy=False)

    @property
    def shared_values(self):
        """Values of the shared variables that the density depends on: a tuple of arrays."""
        return tuple([storage[0] for storage in self._gradient_function.vm.inputs[1:]])

    def compiled(self):
        """Return the CompiledDensity for the present shared values, and these, a tuple of arrays.

        None and an empty tuple if PyTensor's backend isn't numba, or the model's precision isn't
        double.
        """
        if not hasattr(self._gradient_function.vm, "jit_fn") or self._dtype != "float64":
            return None, ()
        shared = self.shared_values
        # Compared by identity: a value that another step has moved is a new array.
        known = self._compiled_for
        if known is None or any(a is not b for a, b in zip(shared, known, strict=True)):
            arguments = (np.zeros(self.n_dimensions), *shared)
            if self._compiled is None or self._compiled.argument != numba.typeof(arguments):
                self._compiled = CompiledDensity.of(self._gradient_function, arguments)
            self._compiled_for = shared
        return self._compiled, shared
