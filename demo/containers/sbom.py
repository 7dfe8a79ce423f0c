"""Writes docs/sbom: a software bill of materials of each image that is made here.

    python -m demo.containers.sbom

It prints the sizes of the images as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from demo import entry
from demo.containers import engine, images

FOLDER: Final = images.ROOT / "docs" / "sbom"
_TAG: Final = "demo"


def write(image: str, folder: Path) -> Path:
    """Write the bill of an image, and return the file; DemoError if the image does not run."""
    name = image.partition(":")[0]
    command = [
        "docker",
        "run",
        "--rm",
        "--interactive",
        "--network",
        "none",
        "--entrypoint",
        "python3",
        image,
    ]
    program = Path(__file__).with_name("inventory.py").read_text(encoding="utf-8")
    text = engine.run([*command, "-I", "-", name], given=program)
    path = folder / f"{name}.cdx.json"
    path.write_text(text, encoding="utf-8")
    return path


def size_mb(image: str) -> int:
    """Return the size of an image with all of its layers, in units of 1,000,000 bytes."""
    return round(int(engine.run(["docker", "image", "inspect", "--format", "{{.Size}}", image])) / 1_000_000)


def _run() -> int:
    FOLDER.mkdir(exist_ok=True)
    made = [images.build(target, _TAG) for target in ("agent", "spark", "demo")] + [images.zookeeper(_TAG)]
    for image in made:
        sys.stdout.write(f"{size_mb(image):5} MB  {write(image, FOLDER).relative_to(images.ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(entry.exit_code(_run))
