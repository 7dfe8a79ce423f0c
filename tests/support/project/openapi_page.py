"""The file docs/openapi.json: the OpenAPI document of the agents, as their table of routes gives it.

    python -m tests.support.project.openapi_page

writes that file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from tests.support.project import source
from tidelock.replica_agent.api.routes import document

PAGE: Final[Path] = source.ROOT / "docs/openapi.json"


def page() -> str:
    """Return the text of the file: the document with sorted keys, as it is the same from run to run."""
    return json.dumps(json.loads(document()), indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write the file."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
