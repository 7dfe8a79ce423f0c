"""Where an agent stands that seems to hang: SIGUSR1 has it log its tasks, and the stacks of its threads.

The threads are written by C code that needs neither the event loop nor a lock, as plain text on standard
error: they show what holds up an event loop. The tasks need the event loop, and become events of the log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import Iterator
from typing import Any, Final

import structlog

_log = structlog.get_logger("stacks")

#: The signal that asks.
SIGNAL: Final = signal.SIGUSR1
#: An agent under load has ten thousand tasks, most of them at the same place; so many are logged.
_TASKS_MAX: Final = 500


def tell_on_signal() -> None:
    """Log tasks and threads of this process whenever the signal arrives; called in the event loop."""
    asyncio.get_running_loop().add_signal_handler(SIGNAL, _tell_tasks)
    # Behind the handler of the event loop, which it calls when the threads are written.
    faulthandler.register(SIGNAL, all_threads=True, chain=True)


def _tell_tasks() -> None:
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:_TASKS_MAX]:
        _log.info("task", name=task.get_name(), at=list(_places(task)))
    _log.info("tasks", count=len(tasks), left_out=max(0, len(tasks) - _TASKS_MAX))


def _places(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield where a task stands: `file:line function` of each coroutine, each awaiting the next one."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            yield type(awaited).__name__
            return
        code = frame.f_code
        yield f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
