"""A log density at many places at once: black boxes and estimates run on an executor.

The graph of the log density is cut at its black boxes. A function for each, in the order in which
they feed each other, returns its arguments at a place, given the outputs of those before it. All
places' calls go to the executor together. The rest of the graph is evaluated place by place.
"""

import numpy as np
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort

from pymc_kmc.likelihoods.black_box_op import BlackBoxOp


class AtOnce:
    """Outputs of a graph of `position` (d,), at many positions at once.

    ``compile(inputs, outputs)`` returns a compiled function. `executor`, a LazyExecutor or None, is
    for black boxes and likelihoods that have none of their own.
    """

    def __init__(self, outputs, position, compile, executor):
        self.executor = executor
        self._boxes, known = [], {}
        nodes = io_toposort([position], outputs)
        for node in [node for node in nodes if isinstance(node.op, BlackBoxOp)]:
            arguments = graph_replace(node.inputs, known, strict=False)
            self._boxes.append((node.op, compile([position, *known.values()], arguments)))
            known |= {output: output.type() for output in node.outputs}
        outputs = graph_replace(outputs, known, strict=False)
        self._rest = compile([position, *known.values()], outputs)

    def begin(self, position):
        """Let the executor begin with a position (d,) of the next batch, as far as it can."""
        if not self._boxes:
            return
        op, function = self._boxes[0]
        if op.runs_ahead(self.executor):
            op.begin([np.stack([value]) for value in function(position)], self.executor)

    def abandon(self, most=0):
        """End what the executor has begun and nobody has asked for, if it is more than `most`."""
        for op, _ in self._boxes[:1]:
            op.abandon(self.executor, most)

    def __call__(self, positions):
        """Return a list of the outputs at each of some positions (d,)."""
        known = [[position] for position in positions]
        for op, function in self._boxes:
            rows = [function(*values) for values in known]
            inputs = [np.stack(values) for values in zip(*rows, strict=True)]
            for values, new in zip(known, op.values_of_node(inputs, self.executor), strict=True):
                values += new
        return [self._rest(*values) for values in known]
