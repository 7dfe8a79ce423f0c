"""The connect string of a cluster: ``host[:port][,host[:port]...]/root``.

Pure. The root is part of the address: everything of one shard is below it (rule tree), and two shards on one
ensemble differ in nothing else.
"""

from __future__ import annotations

import re

import msgspec

from tidelock.errors import ConfigError

DEFAULT_PORT = 2181
_PORT_MAX = 65535

#: A name, an IPv4 address, or an IPv6 address in brackets; then maybe a port.
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", re.ASCII)
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+", re.ASCII)


class ConnectString(msgspec.Struct, frozen=True):
    """Servers as ``host:port``, and the root as an absolute path without a slash at its end."""

    servers: tuple[str, ...]
    root: str

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Parse a connect string; ConfigError says which piece is wrong and shows a correct one."""
        hosts, slash, path = text.strip().partition("/")
        segments = path.strip("/").split("/")
        if not slash or not all(_SEGMENT.fullmatch(segment) for segment in segments):
            raise _error(
                text,
                f"its root {slash + path!r} is not a path of names out of letters, digits, '.', '_', '-'",
            )
        if segments[0] == "zookeeper":
            raise _error(text, "/zookeeper belongs to the ZooKeeper servers themselves")
        return cls(tuple(_server(text, host.strip()) for host in hosts.split(",")), "/" + "/".join(segments))


def _server(text: str, host: str) -> str:
    match = _HOST.fullmatch(host)
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= _PORT_MAX:
        raise _error(text, f"{host!r} is not a server")
    return f"{match[1]}:{port}"


def _error(text: str, problem: str) -> ConfigError:
    return ConfigError(
        f"the ZooKeeper connect string {text!r} cannot be used: {problem}; "
        "expected host:port[,host:port...]/root, for example zk1:2181,zk2:2181/tidelock"
    )
