"""Results of both Ops: a memory of the last few, and parameters in messages."""

import numpy as np

# Results remembered. A Metropolis step of another variable asks for two in turn; Slice and NUTS
# come back to their starting point after a few more, and one graph may be compiled for two steps.
CACHE_SIZE = 8


class Cache:
    """The last few results by their arguments; the one used last is forgotten last.

    Chains in other threads may use it too.
    """

    def __init__(self):
        self._results = {}

    def find(self, key, evaluate):
        """Return the result of `key`, from ``evaluate()`` where it isn't remembered."""
        result = self._results.pop(key, None)
        if result is None:
            result = evaluate()
            for oldest in list(self._results)[: max(0, len(self._results) - CACHE_SIZE + 1)]:
                self._results.pop(oldest, None)
        self._results[key] = result
        return result

    def refresh(self, is_current):
        """Make results the last used whose keys are current."""
        for key in filter(is_current, list(self._results)):
            result = self._results.pop(key, None)
            if result is not None:
                self._results[key] = result

    def clear(self):
        self._results.clear()


def with_values(names, values):
    """Return parameters as ``"rate=0.3, size=[1., 2.]"``, with the digits that reproduce them.

    Names beyond the values are left out.
    """
    form = {"separator": ", ", "floatmode": "unique", "max_line_width": np.inf}
    return ", ".join(
        f"{name}={np.array2string(np.asarray(value), **form)}"
        for name, value in zip(names, values, strict=False)
    )
