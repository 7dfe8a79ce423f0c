"""The process of `forked.py`: it loads the agent once, and each child that it forks is an agent."""

from __future__ import annotations

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # as the agent's own process begins
    lean_start.leave_out_packages()
    lean_start.import_aiohttp()

import gc
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from tests.chaos.launcher import be_supervised
from tests.support.clusters.forked_workers import fork_workers_here
from tidelock.csnlog import faults
from tidelock.replica_agent.config.loading import flags
from tidelock.replica_agent.main import main
from tidelock.testing.clock import PROGRAM, replace_clock

#: Largest request: the environment of the tests is part of it.
_REQUEST_BYTES = 1 << 20


def serve(channel: socket.socket) -> None:
    """Fork an agent for every request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    flags()  # made once for all children
    gc.freeze()  # loaded modules stay, in shared memory
    while request := channel.recv(_REQUEST_BYTES):
        pid = os.fork()
        if pid == 0:
            channel.close()
            become_agent(json.loads(request))
        channel.send(str(pid).encode())


def become_agent(request: Mapping[str, Any]) -> NoReturn:
    """Do what the kernel and Python do at an exec, and run the agent.

    System calls wait for the answers of the ``supervisor`` at that address (tests/chaos/supervisor.py); a
    ``program`` is a module that is run in place of the agent's.
    """
    code = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        with open(request["log"], "ab", buffering=0) as log:  # noqa: PTH123 - descriptors are what counts
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fork_workers_here()
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]
        faults.arm_from(os.environ)  # done when the module is loaded
        replace_clock()
        if "supervisor" in request:
            be_supervised(request["supervisor"])
        if "program" in request:
            runpy.run_module(request["program"], run_name="__main__")
        code = main(program=PROGRAM)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # as the interpreter does at its top level
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
