"""A software bill of materials of the image in which this program runs: CycloneDX 1.6, on standard output.

    docker run --rm --interactive --network none --entrypoint python3 IMAGE -I - NAME <inventory.py

It uses the standard library only, since it runs in images as they are. The same image gives the same text: no
time and no random number is in it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import shlex
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

_JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d.*)")
_POM = re.compile(r"META-INF/maven/(?P<group>[^/]+)/(?P<name>[^/]+)/pom\.properties")


def component(kind: str, name: str, version: str, purl: str, **more: Any) -> dict[str, Any]:
    """Return one component; `purl` is a package URL without its version."""
    base, question, qualifiers = purl.partition("?")
    whole = f"{base}@{quote(version, safe='.~')}{question}{qualifiers}"
    return {"type": kind, "bom-ref": whole, "name": name, "version": version, "purl": whole, **more}


def debian(status: str, distribution: str) -> Iterator[dict[str, Any]]:
    """Yield the installed packages of dpkg's status file.

    Args:
        status: Content of /var/lib/dpkg/status.
        distribution: E.g. `debian-12`.
    """
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            name = fields["Package"]
            purl = f"pkg:deb/debian/{name}?arch={fields['Architecture']}&distro={distribution}"
            yield component("library", name, fields["Version"], purl)


def python(found: Iterable[tuple[str, str, str | None]]) -> Iterator[dict[str, Any]]:
    """Yield the distributions of Python, of which name, version and SPDX expression are given."""
    for name, version, license_expression in found:
        normal = re.sub(r"[-_.]+", "-", name).lower()
        more = {"licenses": [{"expression": license_expression}]} if license_expression else {}
        yield component("library", normal, version, f"pkg:pypi/{normal}", **more)


def jar(name: str, content: bytes, poms: Mapping[str, str]) -> dict[str, Any]:
    """Return a jar, by its own Maven coordinates where it has them, otherwise by the name of its file.

    Args:
        name: Of the file, without `.jar`.
        content: Of the file.
        poms: Contents of its `pom.properties`, by path: a jar may also hold those of jars that are in it.
    """
    hashes = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    for path, text in sorted(poms.items()):
        found = _POM.fullmatch(path)
        version = re.search(r"^version=(\S+)", text, re.MULTILINE)
        if found and version and name == f"{found['name']}-{version[1]}":
            purl = f"pkg:maven/{found['group']}/{found['name']}"
            return component("library", found["name"], version[1], purl, group=found["group"], hashes=hashes)
    by_name = _JAR.fullmatch(name)
    title, version_text = (by_name["name"], by_name["version"]) if by_name else (name, "unknown")
    return component("library", title, version_text, f"pkg:generic/{title}", hashes=hashes)


def java(release: str) -> Iterator[dict[str, Any]]:
    """Yield the Java whose file `release` this is; nothing if it is no such file."""
    if found := re.search(r'^JAVA_VERSION="(.+)"$', release, re.MULTILINE):
        yield component("platform", "openjdk", found[1], "pkg:generic/openjdk")


def document(image: str, components: Iterable[Mapping[str, Any]]) -> str:
    """Return the document of an image, with one component on each line."""
    unique = {one["bom-ref"]: one for one in components}
    lines = ",\n".join(json.dumps(unique[ref], sort_keys=True) for ref in sorted(unique))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    subject = {"metadata": {"component": {"type": "container", "name": image}}}
    before = json.dumps({**head, **subject}).removesuffix("}")
    return f'{before}, "components": [\n{lines}\n]}}\n'


def _poms(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _POM.fullmatch(name)]
        return {name: archive.read(name).decode("utf-8", "replace") for name in names}


def _of_this_image() -> Iterator[dict[str, Any]]:
    system = dict(
        word.partition("=")[::2] for word in shlex.split(Path("/etc/os-release").read_text(encoding="utf-8"))
    )
    distribution = f"{system['ID']}-{system.get('VERSION_ID', 'unknown')}"
    status = Path("/var/lib/dpkg/status")
    if status.exists():
        yield from debian(status.read_text(encoding="utf-8"), distribution)
    yield component("platform", "python", platform.python_version(), "pkg:generic/python")
    yield from python(
        (one.metadata["Name"], one.version, (one.metadata.get_all("License-Expression") or [None])[0])
        for one in importlib.metadata.distributions()
    )
    for path in sorted(Path("/opt").rglob("*.jar")):
        yield jar(path.stem, path.read_bytes(), _poms(path))
    for path in sorted(Path("/opt").rglob("release")):
        yield from java(path.read_text(encoding="utf-8", errors="replace"))


if __name__ == "__main__":
    sys.stdout.write(document(sys.argv[1], _of_this_image()))
