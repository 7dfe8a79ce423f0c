"""Connect strings: the valid ones, and the error that an operator gets for an invalid one."""

from __future__ import annotations

import pytest

from tidelock.csnlog.zookeeper.connect import ConnectString
from tidelock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("zk1:2181/tidelock", ("zk1:2181",), "/tidelock"),
        ("zk1,zk2:2182/a/b", ("zk1:2181", "zk2:2182"), "/a/b"),
        (" 10.0.0.1:1 , [::1]:2/t-1_x.y/ ", ("10.0.0.1:1", "[::1]:2"), "/t-1_x.y"),
    ],
)
def test_servers_and_root_are_read(text: str, servers: tuple[str, ...], root: str) -> None:
    """The port may be left out; the root has no slash at its end."""
    assert ConnectString.parse(text) == ConnectString(servers, root)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("zk1:2181", "root ''"),
        ("zk1:2181/", "root '/'"),
        ("zk1:2181/a//b", "root"),
        ("zk1:2181/../b", "root"),
        ("zk1:2181/ä", "root"),
        ("zk1:2181/a,zk2:2181/a", "root"),
        ("zk1:2181/zookeeper/x", "belongs to"),
        ("/tidelock", "'' is not a server"),
        ("zk1:2181,/t", "'' is not a server"),
        ("zk1:0/t", "'zk1:0' is not a server"),
        ("zk1:65536/t", "'zk1:65536' is not a server"),
        ("zk1:port/t", "'zk1:port' is not a server"),
        ("zk 1:2181/t", "'zk 1:2181' is not a server"),
        ("::1/t", "'::1' is not a server"),
        ("", "root ''"),
    ],
)
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    """The message names the wrong piece and shows a right one."""
    with pytest.raises(ConfigError) as raised:
        ConnectString.parse(text)
    assert named in raised.value.message
    assert "for example zk1:2181,zk2:2181/tidelock" in raised.value.message
