"""The settings that say who an agent is, where it is reached, and which shard it makes or joins.

They are a part of :class:`tidelock.replica_agent.config.settings.AgentSettings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from tidelock import secret_file
from tidelock.csnlog.core.ids import replica_id
from tidelock.errors import ConfigError

Positive = Annotated[float, Field(gt=0)]
Bytes = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1)]

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class IdentitySettings(BaseModel):
    """Identity, addresses, and the shard. The rules that they keep together are checked here."""

    # -- identity and addresses ------------------------------------------------------------------------------
    replica: str = Field(description="Id of this replica: `[a-z][a-z0-9_]{0,31}`.")
    data_dir: Path = Field(description="Folder of the catalog and the parts; one agent at a time.")
    zk: str = Field(
        description="ZooKeeper connect string with the cluster's root, e.g. `zk1:2181,zk2:2181/tidelock`."
    )
    bind: str = Field("127.0.0.1", description="Address that both servers bind.")
    api_port: int = Field(0, ge=0, le=65535, description="Port of the protocol API; 0 = any free port.")
    data_port: int = Field(
        0, ge=0, le=65535, description="Port of the snapshot file system; 0 = any free port."
    )
    advertise: str = Field("localhost", description="Host name under which others reach this replica.")
    advertise_api_port: int = Field(
        0, ge=0, le=65535, description="Published API port if it differs from api_port; 0 = same."
    )
    advertise_data_port: int = Field(
        0, ge=0, le=65535, description="Published data port if it differs from data_port; 0 = same."
    )
    rack: str = Field("", description="Where the replica stands; shown in status.")
    secret: str = Field(
        "", repr=False, description="Shared secret of the shard; needed when bind is not a loopback address."
    )
    secret_file: Path | None = Field(
        None,
        description=(
            "File with the shared secret, in place of secret; white space at its ends does not count. The "
            "environment of a process is shown to its user and by container engines, a file need not be."
        ),
    )
    insecure: bool = Field(False, description="Allow a non-loopback bind without a secret.")

    # -- shard, used only when this agent makes the cluster --------------------------------------------------
    bootstrap: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Replica ids to register if the cluster does not exist yet; empty = never make one.",
    )
    join: bool = Field(
        False,
        description=(
            "The cluster at this root exists, and this empty data folder joins it; without it a start with "
            "bootstrap is refused where others made the cluster."
        ),
    )
    replace_disk: bool = Field(
        False,
        description=(
            "Take this id over with an empty data folder, since the former one is lost. Without it an empty "
            "folder does not start under an id that exists; a folder that had the id before and has lost it "
            "to another one never gets it back."
        ),
    )
    copies: Count = Field(
        2,
        description=(
            "Durable copies a commit needs, the home's among them. Kept in ZooKeeper at the bootstrap."
        ),
    )
    epoch_limit: int = Field(
        1_000_000_000,
        ge=10,
        le=2_000_000_000,
        description="Records of an epoch before the log rolls over. Kept at the bootstrap.",
    )

    @model_validator(mode="before")
    @classmethod
    def _secret_of_file(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("secret_file"):
            return values
        if values.get("secret"):
            msg = "secret and secret_file are both set; set one of them"
            raise ValueError(msg)
        try:
            return {**values, "secret": secret_file.read(Path(values["secret_file"]))}
        except ConfigError as error:
            # With all other errors of the settings, in one message.
            raise ValueError(error.message) from error

    @field_validator("replica")
    @classmethod
    def _replica_form(cls, value: str) -> str:
        return replica_id(value)

    @field_validator("secret")
    @classmethod
    def _fits_a_header(cls, value: str) -> str:
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            msg = "the secret travels in an HTTP header: use printable ASCII characters, no space at its ends"
            raise ValueError(msg)
        return value

    @field_validator("bootstrap", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        )

    @field_validator("bootstrap")
    @classmethod
    def _bootstrap_form(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            msg = f"bootstrap names a replica twice: {value}"
            raise ValueError(msg)
        return [replica_id(item) for item in value]

    @model_validator(mode="after")
    def _secure(self) -> IdentitySettings:
        if self.bind not in _LOOPBACK and not self.secret and not self.insecure:
            msg = (
                f"bind={self.bind} is not a loopback address: set a shared secret "
                "(TIDELOCK_SECRET_FILE or TIDELOCK_SECRET), or allow it with --insecure"
            )
            raise ValueError(msg)
        if self.bootstrap and not self.join and self.replica not in self.bootstrap:
            msg = f"bootstrap={self.bootstrap} does not name this replica ({self.replica})"
            raise ValueError(msg)
        if self.bootstrap and self.copies > len(self.bootstrap):
            msg = f"copies={self.copies} cannot be reached with {len(self.bootstrap)} replicas"
            raise ValueError(msg)
        if self.bootstrap and self.copies == 1 and len(self.bootstrap) > 1:
            msg = "copies=1 is allowed only where a single replica is registered"
            raise ValueError(msg)
        return self
