"""The containers of agents, ZooKeepers and Spark, as options of the container engine.

docker/compose.yaml says the same of the same images; tests/unit/project/test_testing_services.py holds them
equal. Two things differ on purpose: ZooKeeper's ticks are shorter, so that sessions end soon, and nothing
comes back by itself after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelock.testing.clock import PROGRAM
from tidelock.testing.spark_master import MASTER

_GIB: Final = 1 << 30
_NANO_CPUS: Final = 1_000_000_000
#: Ports of all containers; each has an address of its own.
API_PORT, DATA_PORT, ZOOKEEPER_PORT, MASTER_PORT, WORKER_PORT, PAGE_PORT = 8801, 8901, 2181, 7077, 7078, 8080
#: Where agents and ZooKeepers keep their data.
DATA: Final = "/data"
#: Where an agent finds the file of its clock.
CLOCK_FOLDER: Final = "/tidelock-testing"
#: Number of the agents' user, in the agents' image.
AGENT_USER: Final = 10001

#: No container runs as root, or gets rights.
CONFINED: Final[Mapping[str, Any]] = {
    "init": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}
#: The container that holds the network namespace of a node, so that it outlives the node. It only sleeps.
HOLDER: Final[Mapping[str, Any]] = {
    **CONFINED,
    "entrypoint": ["sleep", "infinity"],
    "read_only": True,
    "user": "nobody",
    "healthcheck": {"test": ["NONE"]},
    "mem_limit": _GIB // 16,
    "pids_limit": 16,
}
AGENT: Final[Mapping[str, Any]] = {
    **CONFINED,
    "entrypoint": ["python3", "-m", PROGRAM],
    "read_only": True,
    "tmpfs": {"/tmp": ""},  # noqa: S108 - in the container
    "mem_limit": 4 * _GIB,
    "nano_cpus": 2 * _NANO_CPUS,
    "pids_limit": 512,
}
ZOOKEEPER: Final[Mapping[str, Any]] = {
    **CONFINED,
    "user": "zookeeper",
    "mem_limit": 2 * _GIB,
    "nano_cpus": _NANO_CPUS,
    "pids_limit": 256,
}
SPARK: Final[Mapping[str, Any]] = {
    **CONFINED,
    "read_only": True,
    "tmpfs": {"/tmp": "exec"},  # noqa: S108 - in the container
    "nano_cpus": 2 * _NANO_CPUS,
    "pids_limit": 1024,
}
SPARK_MEMORY: Final[Mapping[bool, int]] = {True: _GIB, False: 3 * _GIB}
ZOOKEEPER_SETTINGS: Final[Mapping[str, str]] = {
    "ZOO_DATA_LOG_DIR": DATA,
    "ZOO_AUTOPURGE_PURGEINTERVAL": "1",
    "ZOO_AUTOPURGE_SNAPRETAINCOUNT": "3",
    "ZOO_MAX_CLIENT_CNXNS": "1000",
    "ZOO_ADMINSERVER_ENABLED": "false",
    "ZOO_4LW_COMMANDS_WHITELIST": "ruok,srvr,mntr",
    "ZOO_CFG_EXTRA": "forceSync=yes maxSessionTimeout=60000",
    "ZK_SERVER_HEAP": "1536",
}
#: Milliseconds. Sessions down to one second, elections in less.
_TICK_TIME: Final = {"ZOO_TICK_TIME": "500", "ZOO_INIT_LIMIT": "20", "ZOO_SYNC_LIMIT": "10"}
SPARK_FOLDERS: Final[Mapping[str, str]] = {"SPARK_LOCAL_DIRS": f"{DATA}/local"}


def zookeeper_environment(addresses: Sequence[str], number: int) -> dict[str, str]:
    """Return the variables of a ZooKeeper.

    Args:
        addresses: Of all servers.
        number: Of this one, from 1.
    """
    servers = [
        f"server.{one}={address}:2888:3888;{ZOOKEEPER_PORT}" for one, address in enumerate(addresses, 1)
    ]
    alone = str(len(addresses) == 1).lower()
    return {
        **ZOOKEEPER_SETTINGS,
        **_TICK_TIME,
        "ZOO_MY_ID": str(number),
        "ZOO_SERVERS": " ".join(servers),
        "ZOO_STANDALONE_ENABLED": alone,
    }


def agent_environment(
    replica: str, address: str, *, zk: str, founders: Sequence[str], copies: int, epoch_limit: int | None
) -> dict[str, str]:
    """Return the variables that say who an agent is; one that is no founder joins the cluster."""
    made = {"TIDELOCK_BOOTSTRAP": ",".join(founders)} if replica in founders else {"TIDELOCK_JOIN": "true"}
    limit = {} if epoch_limit is None else {"TIDELOCK_EPOCH_LIMIT": str(epoch_limit)}
    return {
        **made,
        **limit,
        "TIDELOCK_REPLICA": replica,
        "TIDELOCK_ADVERTISE": address,
        "TIDELOCK_ZK": zk,
        "TIDELOCK_COPIES": str(copies),
        "TIDELOCK_API_PORT": str(API_PORT),
        "TIDELOCK_DATA_PORT": str(DATA_PORT),
    }


def spark_command(name: str, address: str, master: str) -> list[str]:
    """Return the program of Spark's master or of a worker."""
    deploy = "org.apache.spark.deploy"
    here = ["--host", address, "--webui-port", str(PAGE_PORT)]
    if name == MASTER:
        return ["spark-class", f"{deploy}.master.Master", *here, "--port", str(MASTER_PORT)]
    size = ["--cores", "1", "--memory", "2g", "--work-dir", f"{DATA}/work"]
    return ["spark-class", f"{deploy}.worker.Worker", *here, *size, "--port", str(WORKER_PORT), master]
