"""The protocol's structs, exceptions and service, made from `hive.thrift` when this module is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import thriftpy2

#: A module with a class for each struct and exception.
hive: Final[Any] = thriftpy2.load(
    str(Path(__file__).with_name("hive.thrift")), module_name="tidelock_hive_metastore_thrift"
)
