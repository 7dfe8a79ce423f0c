"""`tidelock admin replica ...` and `tidelock admin copies`: requests, output, exit codes and refusals."""

from __future__ import annotations

import json
import threading
from typing import Any, Final

import msgspec
import pytest
from typer.testing import CliRunner, Result

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.client.agents import members as client_members
from tidelock.errors import MembershipError, TidelockError, UnavailableError
from tidelock.exits import Exit
from tidelock.wire.members import MembersRequest

CHANGE: Final = "POST /admin/members"
#: The refusals of the rules, as an agent words them: what was expected, what was found, the next step.
TOO_FEW: Final = (
    "expected at least copies=2 replicas that are well without r3, found 1 (r1): add a replica and wait "
    "until it serves, or lower copies"
)
USED_BEFORE: Final = "expected a new id, found r4, which is removed: ids are never used again"
#: The commands, each with what it asks of an agent and what it says when that is done.
COMMANDS: Final[dict[str, tuple[MembersRequest, str]]] = {
    "replica add r4": (MembersRequest(change="add", replica="r4"), "r4 is registered"),
    "replica add r4 --rack b": (
        MembersRequest(change="add", replica="r4", rack="b"),
        "r4 is registered",
    ),
    "replica remove r3": (MembersRequest(change="remove", replica="r3"), "r3 is removed"),
    "replica replace r3 r4": (
        MembersRequest(change="replace", replica="r3", new="r4"),
        "r3 is removed, r4 is registered",
    ),
    "replica replace r3 r4 --rack b": (
        MembersRequest(change="replace", replica="r3", new="r4", rack="b"),
        "r3 is removed, r4 is registered",
    ),
    "replica drain r3": (
        MembersRequest(change="drain", replica="r3"),
        "r3 is drained: it can be stopped",
    ),
    "replica strike r3": (MembersRequest(change="strike", replica="r3"), "r3 is struck"),
    "copies 3": (MembersRequest(change="copies", copies=3), "a commit needs 3 copies"),
    "copies 3 --racks": (
        MembersRequest(change="copies", copies=3, racks=True),
        "a commit needs 3 copies",
    ),
}


def run(cluster: FakeCluster, command: str, *more: str) -> Result:
    """Run a command below `admin` with the address of r1; any replica may carry it out."""
    arguments = ["admin", *command.split(), *more, "--url", cluster["r1"].url]
    return CliRunner().invoke(cli.app, arguments, env={"NO_COLOR": "1"})


def asked(cluster: FakeCluster) -> list[tuple[str, MembersRequest]]:
    """Return who was asked for which change, read as an agent reads it."""
    return [
        (agent.id, msgspec.json.decode(request.body, type=MembersRequest))
        for agent in cluster.agents.values()
        for request in agent.requests
        if f"{request.method} {request.path}" == CHANGE
    ]


def changes(cluster: FakeCluster) -> int:
    """Return how many requests were no GET."""
    return sum(agent.count("(POST|DELETE) .*") for agent in cluster.agents.values())


def complaint(result: Result, code: Exit) -> str:
    """Return the one error line of a command that failed with this exit code and showed no result."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("tidelock: ")
    return line.removeprefix("tidelock: ")


# -- what is sent and shown


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_sends_one_change_and_says_what_is_so_now(fake_cluster: FakeCluster, command: str) -> None:
    """One POST to one agent; the result on standard output, the members beside it on standard error."""
    request, said = COMMANDS[command]
    result = run(fake_cluster, command)
    assert result.exit_code == Exit.OK, result.output
    assert asked(fake_cluster) == [("r1", request)]
    assert changes(fake_cluster) == 1
    assert result.stdout == f"{said}\n"
    assert result.stderr.startswith("members: r1 serving, r2 serving, r3 ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_repeated_says_that_it_was_so_before(
    fake_cluster: FakeCluster, command: str
) -> None:
    """After a lost answer the same command may be given again; it succeeds, and tells the difference."""
    first, second = run(fake_cluster, command), run(fake_cluster, command)
    assert (first.exit_code, second.exit_code) == (Exit.OK, Exit.OK), second.output
    assert second.stdout == first.stdout.rstrip("\n") + " (it was so before)\n"
    assert second.stderr == first.stderr
    assert json.loads(run(fake_cluster, command, "--json").stdout)["changed"] is False


@pytest.mark.parametrize(
    ("command", "members"),
    [
        ("replica add r4", {"states": {"r3": "serving", "r4": "stopped"}}),
        ("replica remove r3", {"states": {"r3": "removed"}}),
        ("replica replace r3 r4", {"states": {"r3": "removed", "r4": "stopped"}}),
        ("replica drain r3", {"draining": ["r3"]}),
        ("replica strike r3", {"states": {"r3": "struck"}}),
        ("copies 3 --racks", {"copies": 3, "racks": True}),
    ],
)
def test_programs_get_the_members_as_json(
    fake_cluster: FakeCluster, command: str, members: dict[str, Any]
) -> None:
    """With --json the whole answer is on standard output, and nothing beside it."""
    result = run(fake_cluster, command, "--json")
    assert result.exit_code == Exit.OK, result.output
    states = {"r1": "serving", "r2": "serving", "r3": "serving"} | members.get("states", {})
    quiet = {"changed": True, "copies": 2, "racks": False, "draining": []}
    assert json.loads(result.stdout) == {**quiet, **members, "states": states}
    assert result.stderr == ""


def test_people_see_states_copies_racks_and_who_drains(fake_cluster: FakeCluster) -> None:
    """The line beside a result names all members, and drains and racks where there are any."""
    assert run(fake_cluster, "replica add r4").stderr == (
        "members: r1 serving, r2 serving, r3 serving, r4 stopped; copies: 2\n"
    )
    run(fake_cluster, "replica drain r3")
    assert run(fake_cluster, "copies 2 --racks").stderr == (
        "members: r1 serving, r2 serving, r3 serving, r4 stopped; copies: 2, one per rack; draining: r3\n"
    )


def test_one_copy_is_no_plural(fake_cluster: FakeCluster) -> None:
    """A cluster of one replica has commits of one copy."""
    assert run(fake_cluster, "copies 1").stdout == "a commit needs 1 copy\n"


def test_racks_are_switched_on_kept_and_switched_off(fake_cluster: FakeCluster) -> None:
    """Without the option racks count as before; --no-racks reaches the agent as false, not as nothing."""
    counted = []
    for option in ("--racks", "", "--no-racks", ""):
        told = json.loads(run(fake_cluster, f"copies 2 {option}", "--json").stdout)
        counted.append((told["racks"], told["changed"]))
    assert counted == [(True, True), (True, False), (False, True), (False, False)]
    assert [request.racks for _, request in asked(fake_cluster)] == [True, None, False, None]


def test_a_program_switches_racks_off(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A call of a program reaches the agent as the command does: false is sent, nothing is left out."""
    fake_cluster.members.racks = True
    assert fake_db.membership.set_copies(2)["racks"] is True
    assert fake_db.membership.set_copies(2, racks=False)["racks"] is False


# -- refusals and other errors


@pytest.mark.parametrize(
    "command",
    [
        "replica add",
        "replica add r4 r5",
        "replica remove",
        "replica replace r3",
        "replica drain",
        "replica drain r3 --limit -1",
        "replica drain r3 --limit soon",
        "replica strike",
        "replica strike r3 --undo",
        "replica nonsense r3",
        "copies",
        "copies 0",
        "copies two",
        "copies 2 --racks 3",
    ],
)
def test_a_wrong_command_line_sends_nothing(fake_cluster: FakeCluster, command: str) -> None:
    """Arguments that lack or are none are wrong usage; no agent is asked for anything."""
    result = run(fake_cluster, command)
    assert result.exit_code == Exit.USAGE, result.output
    assert result.stdout == ""
    assert "Usage:" in result.stderr
    assert all(agent.requests == [] for agent in fake_cluster.agents.values())


@pytest.mark.parametrize(
    "command", ["remove r9", "replace r9 r4", "drain r9", "drain r9 --undo", "strike r9"]
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_unknown_replica_is_refused_by_name(
    fake_cluster: FakeCluster, command: str, form: tuple[str, ...]
) -> None:
    """The line names what is registered; with --json, too, standard output stays empty."""
    said = complaint(run(fake_cluster, f"replica {command}", *form), Exit.REFUSED)
    assert said == "expected a registered replica, found r9: the cluster has r1, r2, r3"
    assert len(asked(fake_cluster)) == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("replica add r4", USED_BEFORE),
        ("replica remove r3", TOO_FEW),
        ("replica replace r3 r4", TOO_FEW),
        ("replica drain r3", TOO_FEW),
        ("replica strike r3", TOO_FEW),
        ("copies 4", "expected at least 4 replicas that are well, found 3: add replicas, then raise copies"),
    ],
)
def test_a_refusal_is_one_line_with_its_next_step(fake_cluster: FakeCluster, command: str, why: str) -> None:
    """The agent's own words, exit code 1; no other replica is asked, since the first one has decided."""
    fake_cluster["r1"].plan(CHANGE, MembershipError(why))
    assert complaint(run(fake_cluster, command), Exit.REFUSED) == why
    assert [replica for replica, _ in asked(fake_cluster)] == ["r1"]
    assert json.loads(run(fake_cluster, command, "--json").stdout)["changed"] is True


@pytest.mark.parametrize("trouble", [UnavailableError("r1 cannot take itself out"), Fault.LOST_REQUEST])
def test_another_replica_is_asked_where_the_first_one_cannot(
    fake_cluster: FakeCluster, trouble: TidelockError | Fault
) -> None:
    """A replica cannot take itself out, and one that is dead takes nobody out: the next one does it."""
    fake_cluster["r1"].plan(CHANGE, trouble)
    result = run(fake_cluster, "replica remove r1")
    assert (result.exit_code, result.stdout) == (Exit.OK, "r1 is removed\n"), result.output
    assert [replica for replica, _ in asked(fake_cluster)] == ["r1", "r2"]


def test_an_answer_that_was_lost_is_asked_for_again(fake_cluster: FakeCluster) -> None:
    """The change was made by then; the command succeeds and says so."""
    fake_cluster["r1"].plan(CHANGE, Fault.LOST_ANSWER)
    result = run(fake_cluster, "replica strike r3")
    assert (result.exit_code, result.stdout) == (Exit.OK, "r3 is struck (it was so before)\n")


def test_nobody_can_make_the_change(fake_cluster: FakeCluster) -> None:
    """Exit code 3, with the reason of each replica; the command may be repeated."""
    for agent in fake_cluster.agents.values():
        agent.plan(CHANGE, UnavailableError(f"{agent.id} is without ZooKeeper; try again"))
    said = complaint(run(fake_cluster, "replica remove r3"), Exit.UNAVAILABLE)
    assert all(f"{replica} is without ZooKeeper; try again" in said for replica in fake_cluster.agents)


def test_a_wrong_secret_changes_nothing(fake_cluster: FakeCluster) -> None:
    """A change of the members needs the secret of the shard."""
    for agent in fake_cluster.agents.values():
        agent.secret = "right"
    result = run(fake_cluster, "replica remove r3", "--token", "wrong")
    assert "the shared secret is missing or wrong" in complaint(result, Exit.REFUSED)
    assert fake_cluster.members.states["r3"] == "serving"


def test_a_refusal_that_takes_long_is_waited_for(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent waits for those that stay before it refuses a removal, for longer than any read waits."""
    monkeypatch.setattr(client_members, "ANSWER_MARGIN_S", 0.05)
    fake_cluster["r1"].wait_bound_s = 0.05
    fake_cluster["r1"].delays[CHANGE] = 0.6
    fake_cluster["r1"].plan(CHANGE, MembershipError(TOO_FEW))
    assert complaint(run(fake_cluster, "replica remove r3"), Exit.REFUSED) == TOO_FEW
    assert [replica for replica, _ in asked(fake_cluster)] == ["r1"]


# -- drain


def test_undo_takes_a_drain_back_and_waits_for_nothing(fake_cluster: FakeCluster) -> None:
    """With --undo the replica serves again at once, although it has an open transaction."""
    run(fake_cluster, "replica drain r3")
    fake_cluster["r3"].begin()
    result = run(fake_cluster, "replica drain r3 --undo --limit 0")
    assert (result.exit_code, result.stdout) == (Exit.OK, "r3 serves again\n"), result.output
    assert asked(fake_cluster)[-1] == ("r1", MembersRequest(change="drain", replica="r3", undo=True))
    assert "draining" not in result.stderr
    again = run(fake_cluster, "replica drain r3 --undo")
    assert again.stdout == "r3 serves again (it was so before)\n"


def test_a_drain_returns_when_the_last_transaction_has_ended(fake_cluster: FakeCluster) -> None:
    """It looks at the replica that drains until nothing is open there."""
    tid = fake_cluster["r3"].begin()

    def end_it() -> None:
        eventually(lambda: fake_cluster["r3"].count("GET /status") >= 2, what="a second look")
        fake_cluster["r3"].transactions[tid].state = "rolled_back"

    ending = threading.Thread(target=end_it)
    ending.start()
    result = run(fake_cluster, "replica drain r3")
    ending.join()
    assert (result.exit_code, result.stdout) == (Exit.OK, "r3 is drained: it can be stopped\n")
    assert fake_cluster["r3"].count("GET /status") >= 3


def test_a_drain_waits_for_what_had_landed_when_it_began(fake_cluster: FakeCluster) -> None:
    """Later landings do not count its copies; those of before may have no other copy."""
    agent = fake_cluster["r3"]
    agent.landed = ["1-r1-1-1"]

    def go_on() -> None:
        eventually(lambda: agent.count("GET /status") >= 2, what="a second look")
        agent.landed = ["1-r1-1-2"]

    going = threading.Thread(target=go_on)
    going.start()
    result = run(fake_cluster, "replica drain r3")
    going.join()
    assert (result.exit_code, result.stdout) == (Exit.OK, "r3 is drained: it can be stopped\n"), result.output
    agent.landed = ["1-r1-1-3"]
    assert "1 landings" in complaint(run(fake_cluster, "replica drain r3 --limit 0"), Exit.UNAVAILABLE)


@pytest.mark.parametrize("trouble", [Fault.LOST_REQUEST, UnavailableError("it is suspended")])
def test_a_drain_goes_on_after_a_look_that_failed(fake_cluster: FakeCluster, trouble: Any) -> None:
    """The connection broke, or the replica was suspended for a moment: it is looked at again."""
    fake_cluster["r3"].plan("GET /status", trouble)
    result = run(fake_cluster, "replica drain r3")
    assert (result.exit_code, result.stdout) == (Exit.OK, "r3 is drained: it can be stopped\n"), result.output


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_drain_that_lasts_too_long_says_what_is_open(
    fake_cluster: FakeCluster, form: tuple[str, ...]
) -> None:
    """After --limit: exit code 3 with what was found; the drain stays, and the command may be repeated."""
    fake_cluster["r3"].begin()
    said = complaint(run(fake_cluster, "replica drain r3 --limit 0", *form), Exit.UNAVAILABLE)
    assert said == (
        "expected r3 to be drained within 0 s, found it draining with 1 open transactions, 0 landings that "
        "are not committed, and 0 replicas too few with all that it has (r3 goes on draining: run the "
        "command again, or with --undo)"
    )
    assert fake_cluster.members.draining == ["r3"]


@pytest.mark.parametrize(
    ("behind", "struck", "missing"), [(("r1",), (), 1), (("r1", "r2"), (), 2), ((), ("r2",), 1), ((), (), 0)]
)
def test_a_drain_waits_for_copies_of_all_that_the_replica_has(
    fake_cluster: FakeCluster, behind: tuple[str, ...], struck: tuple[str, ...], missing: int
) -> None:
    """Only members that serve and are not behind it count."""
    for replica in behind:
        fake_cluster[replica].lag = 1
    for replica in struck:
        fake_cluster.members.states[replica] = "struck"
    result = run(fake_cluster, "replica drain r3 --limit 0")
    if missing:
        assert f"and {missing} replicas too few" in complaint(result, Exit.UNAVAILABLE)
    else:
        assert result.exit_code == Exit.OK, result.output


def test_a_drain_counts_the_copies_of_one_rack_once() -> None:
    """Where racks count, two others in one rack are one copy: a third one, elsewhere, has to have it all."""
    with FakeCluster("r1", "r2", "r3", "r4") as cluster:
        cluster.csn += 1
        cluster.members.racks = True
        cluster.members.racks_of |= {"r1": "a", "r2": "a", "r3": "b", "r4": "c"}
        cluster["r4"].lag = 1
        said = complaint(run(cluster, "replica drain r3 --limit 0"), Exit.UNAVAILABLE)
        assert "and 1 racks too few" in said
        cluster["r4"].lag = 0
        assert run(cluster, "replica drain r3 --limit 0").exit_code == Exit.OK


def test_a_drain_by_one_named_replica_is_refused_before_it_is_made(fake_cluster: FakeCluster) -> None:
    """With --replica only that one is spoken to, and whether r3 is drained is known to r3 alone."""
    said = complaint(run(fake_cluster, "replica drain r3 --replica r1"), Exit.USAGE)
    assert said.endswith("leave it out, or give --replica r3")
    assert asked(fake_cluster) == []
    assert run(fake_cluster, "replica drain r3 --replica r3").exit_code == Exit.OK
    assert run(fake_cluster, "replica drain r3 --replica r1 --undo").exit_code == Exit.OK
    assert fake_cluster.members.draining == []


def test_a_drain_of_a_replica_that_does_not_answer_says_that_it_goes_on(fake_cluster: FakeCluster) -> None:
    """After --limit it is not known whether it can be stopped: exit code 3, and both are said."""
    fake_cluster["r3"].plan("GET /status", *[Fault.LOST_REQUEST] * 5)
    said = complaint(run(fake_cluster, "replica drain r3 --limit 0"), Exit.UNAVAILABLE)
    assert fake_cluster["r3"].address in said
    assert said.endswith("(r3 goes on draining: run the command again, or with --undo)")
    assert fake_cluster.members.draining == ["r3"]


# -- help


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("replica", ("add", "remove", "replace", "drain", "strike")),
        ("replica add", ("REPLICA", "--rack", "--json")),
        ("replica drain", ("--undo", "--limit", "--json")),
        ("copies", ("--racks", "--no-racks", "--json")),
    ],
)
def test_help_names_every_option(command: str, words: tuple[str, ...]) -> None:
    """Help needs no cluster."""
    arguments = ["admin", *command.split(), "--help"]
    result = CliRunner().invoke(cli.app, arguments, env={"NO_COLOR": "1", "COLUMNS": "120"})
    assert result.exit_code == Exit.OK
    for word in words:
        assert word in result.stdout
