"""Names below `.localhost`: the loopback address where the system does not know them, else what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support import names
from tidelock import loopback_names
from tidelock.client.agents.transport import Timeouts, Transport
from tidelock.errors import NoConnectionError
from tidelock.loopback_names import UNKNOWN_S, LoopbackNames, as_reached


@dataclass
class System:
    """A resolver and a clock."""

    known: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    now: float = 100.0

    def knows(self, name: str) -> bool:
        """Return whether a name is known."""
        self.asked.append(name)
        return name in self.known

    def now_s(self) -> float:
        """Return the time."""
        return self.now

    @property
    def names(self) -> LoopbackNames:
        """The names on this system."""
        return LoopbackNames(self.knows, self.now_s)


@pytest.mark.parametrize("host", ["r2.localhost", "R2.LocalHost", "r2.localhost.", "a.b.localhost"])
def test_an_unknown_name_is_this_machine(host: str) -> None:
    """Names below .localhost are not case-sensitive, and may end with the dot of the root."""
    assert System().names.reachable(f"{host}:8802") == "127.0.0.1:8802"


@pytest.mark.parametrize("address", ["r2.example.org:8802", "localhost:8802", "127.0.0.1:8802", "[::1]:8802"])
def test_other_names_are_left_to_the_system(address: str) -> None:
    """Nothing but names below .localhost is looked at, known or not."""
    system = System()
    assert system.names.reachable(address) == address
    assert system.asked == []


def test_a_known_name_is_never_replaced() -> None:
    """In a container the name of a replica that has died is unknown, and this machine is not it."""
    system = System(known={"r2.localhost"})
    asked = system.names
    assert asked.reachable("r2.localhost:8802") == "r2.localhost:8802"
    system.known.clear()
    system.now += 10 * UNKNOWN_S
    assert asked.reachable("r2.localhost:8802") == "r2.localhost:8802"
    assert system.asked == ["r2.localhost"]


def test_an_unknown_name_is_asked_for_again() -> None:
    """A replica may come up later; meanwhile the system is not asked at every request."""
    system = System()
    asked = system.names
    for _ in range(3):
        assert asked.reachable("r2.localhost:8802") == "127.0.0.1:8802"
    assert system.asked == ["r2.localhost"]
    system.known.add("r2.localhost")
    system.now += UNKNOWN_S
    assert asked.reachable("r2.localhost:8802") == "r2.localhost:8802"


@pytest.mark.parametrize(
    ("host", "location", "expected"),
    [
        (
            "127.0.0.1:8901",
            "http://r3.localhost:8803/webhdfs/v1/a%20b%2F?op=CREATE&data=true",
            "http://127.0.0.1:8803/webhdfs/v1/a%20b%2F?op=CREATE&data=true",
        ),
        ("127.0.0.1:8901", "http://r3.localhost/a", "http://127.0.0.1/a"),
        ("127.0.0.1:8901", "http://r3.example.org:8803/a", "http://r3.example.org:8803/a"),
        ("r1.localhost:8901", "http://r3.localhost:8803/a", "http://r3.localhost:8803/a"),
    ],
)
def test_a_client_is_sent_on_by_the_address_it_has_come_by(host: str, location: str, expected: str) -> None:
    """Only a client of the loopback address is sent there, and only from names that may be unknown to it."""
    assert as_reached(host, location) == expected


def test_a_client_connects_where_the_system_knows_no_such_name() -> None:
    """The client's requests go to the loopback address; the error still has the name of the agent."""
    transport = Transport(scheme="http", token=None, timeouts=Timeouts(connect_s=5.0))
    with names.unknown(), pytest.raises(NoConnectionError, match=r"r2\.localhost:1 \(.*refused") as caught:
        transport.call("r2.localhost:1", "GET", "/status", answer=dict)
    transport.close()
    assert caught.value.details["address"] == "r2.localhost:1"


def test_the_system_is_asked_about_names() -> None:
    """The resolver of this machine knows `localhost`; its failure is a name that is not known."""
    assert loopback_names.system_knows("localhost")
    with names.unknown():
        assert not loopback_names.system_knows("r2.localhost")
