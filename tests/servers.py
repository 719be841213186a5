"""Models behind UM-Bridge servers on the loopback interface, each in a process of its own.

As a script, with a port: a server of the models that tests of the package ask for.
"""

import multiprocessing
import socket
import sys
import time
from contextlib import closing
from functools import partial

PATIENCE = 30.0  # seconds until a server must have begun; importing aiohttp takes one


def free_port():
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_open(port):
    with closing(socket.socket()) as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def wait_for(port, is_alive):
    deadline = time.monotonic() + PATIENCE
    while not is_open(port):
        assert is_alive() and time.monotonic() < deadline, "the server doesn't begin"
        time.sleep(0.02)


def serve(models, port):
    """Serve models of umbridge on the loopback interface alone, without an end."""
    import umbridge.um as um

    um.web.run_app = partial(um.web.run_app, host="127.0.0.1", print=None)
    um.serve_models(models, port, max_workers=2)


def begin(models, port):
    """Serve models until this process ends."""
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=serve, args=(models, port), daemon=True)
    process.start()
    wait_for(port, process.is_alive)


def models():
    """Return the models of tests: of one function, with the ways in which a model misbehaves."""
    import umbridge

    class Line(umbridge.Model):
        """Two blocks in, two out: (a, b), (c,) to (a + b c, a), (c, 2 c, ... of config n)."""

        def get_input_sizes(self, config):
            return [2, 1]

        def get_output_sizes(self, config):
            return [2, config.get("n", 2)]

        def __call__(self, parameters, config):
            (a, b), (c,) = parameters
            rest = [c * (i + 1) for i in range(config.get("n", 2))]
            return [[a + b * c, a], rest]

        def supports_evaluate(self):
            return True

    class Moody(Line):
        """Does what its first value says."""

        def __call__(self, parameters, config):
            mood = parameters[0][0]
            if mood == 1:
                return [[float("nan"), 0.0], [1.0, -float("inf")]]
            if mood == 2:
                return [[0.0], [0.0]]  # an error of umbridge's
            if mood == 3:
                raise RuntimeError("the mesh is tangled")
            if mood == 4:
                time.sleep(2.0)
            if mood == 5:
                return [[0.0, 1.0], [1.0, -float("inf")]]
            return super().__call__(parameters, config)

    return [Line("line"), Moody("moody")]


if __name__ == "__main__":
    serve(models(), int(sys.argv[1]))
