"""The kernel's user notification: chosen system calls of a process wait for the answer of another process.

The filter is inherited by threads, children and over exec, so one that is installed before the agent's
program is loaded sees every call of the agent. A call that waits has not begun: a process that is killed then
was killed before the call. No compiler, tracer or privilege is needed (Linux 5.5, seccomp_unotify(2)).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The system calls of each kind of the issue; a test that names the kind means all of them.
KINDS: Final = {
    "openat": ("open", "creat", "openat", "openat2"),
    "write": ("write", "writev", "pwrite64", "pwritev"),
    "fsync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "ftruncate": ("ftruncate",),
    "sendto": ("sendto", "sendmsg"),
}

#: Numbers of the calls (asm/unistd.h); a machine lacks calls that newer ones have replaced.
# fmt: off
_NUMBERS: Final = {
    "x86_64": {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendto": 44, "sendmsg": 46, "fsync": 74,
        "fdatasync": 75, "ftruncate": 77, "rename": 82, "creat": 85, "unlink": 87, "openat": 257,
        "unlinkat": 263, "renameat": 264, "pwritev": 296, "renameat2": 316, "openat2": 437,
    },
    "aarch64": {
        "unlinkat": 35, "renameat": 38, "ftruncate": 46, "openat": 56, "write": 64, "writev": 66,
        "pwrite64": 68, "pwritev": 70, "fsync": 82, "fdatasync": 83, "sendto": 206, "sendmsg": 211,
        "renameat2": 276, "openat2": 437,
    },
}
#: The number of the argument that is the path; all other calls have a descriptor first.
_PATHS: Final = {
    "open": 0, "creat": 0, "openat": 1, "openat2": 1,
    "rename": 0, "renameat": 1, "renameat2": 1, "unlink": 0, "unlinkat": 1,
}
# fmt: on
#: linux/audit.h, and the number of seccomp(2).
_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_MACHINE: Final = platform.machine()
_NAMES: Final = {number: name for name, number in _NUMBERS.get(_MACHINE, {}).items()}

#: linux/seccomp.h, linux/prctl.h, linux/bpf_common.h.
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_RET_ALLOW, _RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
_PR_SET_NO_NEW_PRIVS = 38
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH = 0, 4
_CONTINUE = 1

#: struct seccomp_notif: id, pid, flags, then nr, arch, instruction pointer and six arguments of the call.
_NOTIFICATION = struct.Struct("=QII iIQ 6Q")
#: struct seccomp_notif_resp: id, value, error, flags.
_RESPONSE = struct.Struct("=QqiI")
_RECV: Final = 3 << 30 | _NOTIFICATION.size << 16 | ord("!") << 8 | 0
_SEND: Final = 3 << 30 | _RESPONSE.size << 16 | ord("!") << 8 | 1


@dataclass(frozen=True, slots=True)
class Notification:
    """A call that waits.

    Attributes:
        thread: The thread that makes the call.
        name: The name of the call.
    """

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]


def unable() -> str:
    """Return why calls cannot be made to wait here; "" = they can."""
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists() or "user_notif" not in actions.read_text(encoding="ascii").split():
        return "this kernel lets no process supervise another's system calls (seccomp_unotify)"
    if _MACHINE not in _NUMBERS:
        return f"the numbers of {_MACHINE}'s system calls are not known"
    return ""


def names() -> list[str]:
    """Return the calls of KINDS that this machine has."""
    return sorted(_NUMBERS[_MACHINE])


def install() -> int:
    """Let the calls of this thread and of its children wait; return the listener's descriptor.

    OSError where the kernel or a sandbox refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    program = _program(sorted(_NUMBERS[_MACHINE].values()))
    code = ctypes.create_string_buffer(b"".join(program), len(program) * 8)
    pointer = struct.pack("@HP", len(program), ctypes.addressof(code))
    # A handled signal would repeat a waiting call, and it would count twice (Linux 5.19).
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener = int(libc.syscall(_SECCOMP[_MACHINE], _SET_MODE_FILTER, flags, pointer))
        if listener >= 0:
            return listener
    raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER)")


def _program(numbers: list[int]) -> list[bytes]:
    """Return the filter, in the kernel's classic BPF: notify for these calls, allow all others."""
    checks = [_instruction(_JUMP_IF_EQUAL, number, len(numbers) - at) for at, number in enumerate(numbers)]
    return [
        _instruction(_LOAD_WORD, _OFFSET_ARCH),
        _instruction(_JUMP_IF_EQUAL, _ARCH[_MACHINE], 1),
        _instruction(_RETURN, _RET_ALLOW),
        _instruction(_LOAD_WORD, _OFFSET_NUMBER),
        *checks,
        _instruction(_RETURN, _RET_ALLOW),
        _instruction(_RETURN, _RET_USER_NOTIF),
    ]


def _instruction(code: int, value: int, jump_if_true: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_if_true, 0, value)


def receive(listener: int) -> Notification:
    """Take the next call that waits; OSError (ENOENT) when its thread was killed meanwhile."""
    buffer = bytearray(_NOTIFICATION.size)
    fcntl.ioctl(listener, _RECV, buffer)
    id_, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(buffer)
    return Notification(id_, thread, _NAMES[number], tuple(arguments))


def let_go(listener: int, call: Notification) -> None:
    """Let the kernel carry the call out."""
    _send(listener, call, 0, 0, _CONTINUE)


def answer(listener: int, call: Notification, *, error: int = 0) -> None:
    """End the call without carrying it out: with an errno, or with 0 as if it were done."""
    _send(listener, call, 0, -error, 0)


def _send(listener: int, call: Notification, value: int, error: int, flags: int) -> None:
    try:
        fcntl.ioctl(listener, _SEND, bytearray(_RESPONSE.pack(call.id, value, error, flags)))
    except FileNotFoundError:
        return  # killed meanwhile


def subject(call: Notification, process: int) -> str:
    """Return the object of a call: a path, or its descriptor's (``socket:[7]``); "" if it is not known."""
    try:
        if (place := _PATHS.get(call.name)) is not None:
            return _text(process, call.arguments[place])
        return str(Path(f"/proc/{process}/fd/{call.arguments[0]}").readlink())
    except OSError:
        return ""


def _text(process: int, address: int) -> str:
    memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
    try:
        page_end = -address % os.sysconf("SC_PAGE_SIZE") or os.sysconf("SC_PAGE_SIZE")
        data = os.pread(memory, page_end, address)
        if b"\0" not in data:
            data += os.pread(memory, os.sysconf("SC_PAGE_SIZE"), address + page_end)
    finally:
        os.close(memory)
    return os.fsdecode(data.partition(b"\0")[0])
