"""Chosen ports are free, and remain reserved until their servers listen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import source
from tidelock import ports
from tidelock.errors import UnavailableError
from tidelock.ports import Reservations

#: A program that reserves one given port in a given file of reservations, and prints the result.
ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tidelock import ports
from tidelock.errors import UnavailableError
port = int(sys.argv[2])
ports.PORTS = range(port, port + 1)
try:
    print(ports.Reservations(Path(sys.argv[1])).free_ports(1))
except UnavailableError:
    print("none")
"""


def chosen_by_another(file: Path, port: int) -> str:
    """Let another process choose this port, and return what it prints."""
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(file), str(port)]
    done = subprocess.run(command, cwd=source.ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_ports_are_different_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Used ports are not chosen; too few free ports are an error, which leaves no reservation."""
    reservations = Reservations(tmp_path / "ports")
    with socket.socket() as used:
        used.bind((ports.HOST, 0))
        used.listen()
        port = used.getsockname()[1]
        with monkeypatch.context() as patch:
            patch.setattr(ports, "PORTS", range(port, port + 1))
            with pytest.raises(UnavailableError, match="fewer than 1 free ports"):
                reservations.free_ports(1)
    found = reservations.free_ports(20)
    assert len(set(found)) == 20
    assert all(port in ports.PORTS for port in found)


def test_a_chosen_port_is_chosen_by_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While this process runs, neither it nor another process chooses a port that it has chosen before."""
    file = tmp_path / "ports"
    reservations = Reservations(file)
    (port,) = reservations.free_ports(1)
    assert chosen_by_another(file, port) == "none"
    monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
    with pytest.raises(UnavailableError, match="fewer than 1"):
        reservations.free_ports(1)
    os.close(reservations._open())  # as at the end of the process
    assert chosen_by_another(file, port) == f"[{port}]"


def test_the_oldest_choices_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest choices are released, so a process that runs for long does not reserve all ports."""
    monkeypatch.setattr(ports, "_KEPT_MAX", 3)
    reservations = Reservations(tmp_path / "ports")
    first, *others = (reservations.free_ports(1)[0] for _ in range(4))
    assert chosen_by_another(tmp_path / "ports", first) == f"[{first}]"
    assert [chosen_by_another(tmp_path / "ports", port) for port in others] == ["none"] * 3


def test_a_wanted_port_stands_at_its_place_if_it_is_free(tmp_path: Path) -> None:
    """Each wanted port that is used or reserved is replaced, and the others stay where they are."""
    first, used, reserved, last = Reservations(tmp_path / "others").free_ports(4)
    reservations = Reservations(tmp_path / "ports")
    with socket.socket() as server:
        server.bind((ports.HOST, used))
        server.listen()
        assert ports.in_use(ports.HOST, used)
        assert reservations.free_ports(1, [reserved]) == [reserved]
        assert chosen_by_another(tmp_path / "ports", reserved) == "none"
        found = reservations.free_ports(5, [first, used, reserved, last])
    assert found[0] == first
    assert found[3] == last
    assert len({*found, used, reserved}) == 7


def test_an_address_of_another_machine_is_not_in_use_here() -> None:
    """The loopback addresses of a namespace are judged in it, not here."""
    assert not ports.in_use("192.0.2.1", 1)
