"""The demo in containers, without an engine: orders and results, labels of owners, the search for compose."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo.cluster import DemoCluster
from demo.containers import driver, engine, orders, project, run
from demo.containers.driver import Machine
from demo.containers.orders import Fault, Order, Place, Result, Setup
from demo.containers.project import Project
from demo.containers.remote_cluster import RemoteCluster
from demo.failure import DemoError, Findings
from demo.narrator import Narrator
from tests.unit.demo.test_report import a_report
from tidelock import processes
from tidelock.cluster import LocalCluster
from tidelock.errors import ConfigError
from tidelock.testing.owners import owner_of, ownerless

PLACES = [Place("r1", "r1.localhost", 8801, 8901), Place("r2", "r2.localhost", 8802, 8902)]
SETUP = Setup(PLACES, 0.01, 5.0, {"spark.master": "spark://m:7077"}, "/data/demo", 12.5, ["look there"])


@pytest.fixture(autouse=True)
def _temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of projects go to a folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def through_json(values: Any) -> Any:
    """Values as they arrive at the other side."""
    return json.loads(json.dumps(values))


def test_what_is_sent_arrives_as_it_was() -> None:
    """Settings, orders and results are the same on both sides."""
    result = Result("a table", {"checks": 3}, ["order 7 is not whole"])
    assert Setup.of_json(through_json(SETUP.as_json())) == SETUP
    assert orders.of_driver(through_json(result.as_json())) == result
    for fault in Fault:
        order = Order(fault, "r2")
        assert orders.of_driver(through_json(order.as_json())) == order


@pytest.mark.parametrize("values", [{}, {"fault": "burn", "replica": "r1"}, {"result": {"text": ""}}])
def test_anything_else_is_no_order(values: dict[str, Any]) -> None:
    """The machine carries out what it knows, and nothing else."""
    with pytest.raises((KeyError, ValueError, TypeError)):
        orders.of_driver(values)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.KILL, ["kill", "--signal", "KILL", "c1"]),
        (Fault.FREEZE, ["pause", "c1"]),
        (Fault.THAW, ["unpause", "c1"]),
        (Fault.START, ["start", "c1"]),
    ],
)
def test_a_fault_is_a_command_of_the_engine(fault: Fault, words: list[str]) -> None:
    """A freeze is a pause of the whole container: its first process hands no SIGSTOP on."""
    assert Order(fault, "r1").engine_words("c1") == words


def test_the_scenario_meets_containers_by_their_names() -> None:
    """Addresses are those of the places, and faults become orders."""
    given: list[Order] = []
    remote: DemoCluster = RemoteCluster(PLACES, "hush", given.append)
    assert remote.replicas == ["r1", "r2"]
    assert remote.urls == ["http://r1.localhost:8801", "http://r2.localhost:8802"]
    assert remote.data_address("r2") == "r2.localhost:8902"
    for signum in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
        assert remote.kill("r1", signum)
    remote.start("r1", timeout_s=1.0)
    assert given == [Order(fault, "r1") for fault in (Fault.KILL, Fault.FREEZE, Fault.THAW, Fault.START)]


def test_a_local_cluster_is_one_of_the_demo(tmp_path: Path) -> None:
    """The processes of this machine have the same addresses and faults (the rest is for mypy)."""
    cluster: DemoCluster = LocalCluster.create(tmp_path, replicas=2)
    assert cluster.replicas == ["r1", "r2"]
    assert cluster.url("r1") != f"http://{cluster.data_address('r1')}"
    assert cluster.data_address("r1").startswith("127.0.0.1:")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Machine, io.StringIO]]:
    """A machine that sends these lines, and what it receives."""

    def made(*lines: Any) -> tuple[Machine, io.StringIO]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{json.dumps(line)}\n" for line in lines)))
        heard = io.StringIO()
        return Machine(heard), heard

    return made


def test_an_order_ends_when_the_machine_has_answered(
    machine: Callable[..., tuple[Machine, io.StringIO]],
) -> None:
    """The settings come first; then each order is one line there and one back."""
    outside, heard = machine(SETUP.as_json(), {}, {})
    assert outside.setup() == SETUP
    outside.give(Order(Fault.KILL, "r1"))
    outside.give(Order(Fault.START, "r1"))
    outside.tell(driver.result_of(a_report(Findings()), ["look there"]))
    lines = [orders.of_driver(json.loads(line)) for line in heard.getvalue().splitlines()]
    assert lines[:2] == [Order(Fault.KILL, "r1"), Order(Fault.START, "r1")]
    assert isinstance(lines[2], Result)
    assert "What the demo has shown" in lines[2].text
    assert "look there" in lines[2].text
    assert lines[2].violations == []


@pytest.mark.parametrize(
    ("answers", "said"),
    [([], "nobody outside of the container does"), ([{"error": "no such container"}], "no such container")],
)
def test_an_order_that_fails_is_an_error_of_the_demo(
    machine: Callable[..., tuple[Machine, io.StringIO]], answers: list[Any], said: str
) -> None:
    """A machine that has gone, or cannot do it, ends the demo instead of spoiling its result."""
    outside, _ = machine(*answers)
    with pytest.raises(DemoError, match=said):
        outside.give(Order(Fault.KILL, "r1"))


def test_the_time_goes_on_in_the_driver() -> None:
    """Lines of the driver count from the beginning of the whole demo."""
    assert Narrator(Console(file=io.StringIO()), elapsed_s=100.0).elapsed_s >= 100.0


def test_the_report_says_how_to_end_what_was_kept() -> None:
    """Kept containers are ended by one line; otherwise the way to keep them is shown."""
    services = Project("demo", ["docker-compose"], {})
    kept = run.next_steps(services, kept=True)
    assert re.search(
        rf"docker-compose --file \S+ --project-name {services.name} down --volumes && rm -r \S+:", kept[-1]
    )
    assert any("--keep" in step for step in run.next_steps(services, kept=False))


# -- compose -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("works", "words"),
    [
        ({"docker compose", "docker-compose"}, ["docker", "compose"]),
        ({"docker-compose"}, ["docker-compose"]),
    ],
)
def test_either_compose_will_do(monkeypatch: pytest.MonkeyPatch, works: set[str], words: list[str]) -> None:
    """The engine's plugin is preferred to the program of its own, which is the older one."""
    monkeypatch.setattr(
        engine,
        "answers_yes",
        lambda command: " ".join(command).removesuffix(" version") in works | {"docker"},
    )
    assert engine.compose() == words


@pytest.mark.parametrize(
    ("works", "said"), [(set(), "a container engine is needed"), ({"docker version"}, "compose is needed")]
)
def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, works: set[str], said: str
) -> None:
    """The error says what is needed and where it is had."""
    monkeypatch.setattr(engine, "answers_yes", lambda command: " ".join(command) in works)
    with pytest.raises(ConfigError, match=rf"{said}.*apt-get install"):
        engine.compose()


def test_a_command_that_fails_is_told_with_its_output() -> None:
    """The error has the exit code and the end of what was printed, on both outputs."""
    with pytest.raises(DemoError, match=r"exit code 3:\nout\nwhy"):
        engine.run(["sh", "-c", "echo out; echo why >&2; exit 3"])
    assert engine.run(["cat"], given="as given") == "as given"


def test_a_project_has_ports_a_secret_and_a_label_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose gets them as variables; the secret is in a file, in a folder for its owner only."""
    seen: list[dict[str, str]] = []

    def run_compose(_command: list[str], *, env: dict[str, str], timeout_s: float) -> str:
        assert timeout_s > 0
        seen.append(env)
        return ""

    monkeypatch.setattr(engine, "run", run_compose)
    services = Project("test", ["compose"], {"TIDELOCK_IMAGE": "an-image"})
    services.up()
    [env] = seen
    file = Path(env["TIDELOCK_SECRET_FILE"])
    assert file.read_text().strip() == services.secret
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o444)
    assert services.secret not in {value for name, value in env.items() if name.startswith("TIDELOCK")}
    assert (env["COMPOSE_PROJECT_NAME"], env["TIDELOCK_IMAGE"]) == (services.name, "an-image")
    assert env[project.OWNER_VARIABLE] == owner_of(processes.me())
    ports = [
        env[f"TIDELOCK_{place.id.upper()}_{kind}_PORT"]
        for place in services.places
        for kind in ("API", "DATA")
    ]
    assert len(set(ports)) == 6


class Services(Project):
    """Services that start as they are told, and count their ends."""

    def __init__(self, fails: BaseException | None = None) -> None:
        super().__init__("test", ["compose"], {})
        self.fails = fails
        self.downs = 0

    def up(self, *services: str) -> None:
        """Fail, or do nothing."""
        assert services == ()
        if self.fails is not None:
            raise self.fails

    def down(self) -> None:
        """Count."""
        self.downs += 1

    def save_output(self) -> Path:
        """Return a path."""
        return Path("all.log")


@pytest.mark.parametrize("keep", [False, True])
def test_services_end_with_the_block_unless_they_are_kept(keep: bool) -> None:
    """With --keep they stay, and are nobody's leftovers."""
    services = Services()
    with project.running(services, keep=keep):
        assert services.downs == 0
    assert services.downs == (0 if keep else 1)


@pytest.mark.parametrize(("keep", "note"), [(False, "services is in all.log"), (True, "still run")])
def test_an_error_says_where_to_look(keep: bool, note: str) -> None:
    """An error ends the services after their output was saved; with --keep they stay."""
    services = Services(fails=DemoError("no start"))
    with pytest.raises(DemoError) as caught, project.running(services, keep=keep):
        pass
    assert services.downs == (0 if keep else 1)
    assert note in caught.value.__notes__[0]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_leaves_nothing_in_any_case(keep: bool, error: BaseException) -> None:
    """Ctrl-C and SIGTERM end the services, kept or not, while they start as well."""
    services = Services(fails=error)
    with pytest.raises(type(error)), project.running(services, keep=keep):
        pass
    assert services.downs == 1


def test_what_is_kept_has_no_owner_that_could_end() -> None:
    """After --keep no later run takes the containers for leftovers."""
    services = Project("test", ["compose"], {})
    services.keep()
    assert services.owner == services.name
    assert not ownerless(services.owner)
