"""`python -m tidelock.cli` is `tidelock`, also if its script is not on the PATH."""

from __future__ import annotations

from tidelock.cli.app import main

if __name__ == "__main__":
    main()
