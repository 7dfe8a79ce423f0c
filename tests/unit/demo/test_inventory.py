"""Bills of materials: what an image holds becomes components, and the ones of docs/sbom fit the lock file."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from demo.containers import inventory, sbom
from tests.support.project.source import ROOT

STATUS = """\
Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b7
Description: a shell
 Version: 9 of something else

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1:2.0
"""
POM = "META-INF/maven/{}/pom.properties"


def test_installed_packages_of_debian_are_components() -> None:
    """A package that was removed and left its settings behind is not in the image."""
    [bash] = inventory.debian(STATUS, "debian-12")
    assert (bash["name"], bash["version"]) == ("bash", "5.2.15-2+b7")
    assert bash["purl"] == "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64&distro=debian-12"


def test_distributions_of_python_are_components() -> None:
    """Names are those of the index, and a licence is taken where it is an SPDX expression."""
    one, other = inventory.python([("Typing_Extensions", "4.1", "PSF-2.0"), ("py4j", "0.10.9.9", None)])
    assert one["purl"] == "pkg:pypi/typing-extensions@4.1"
    assert one["licenses"] == [{"expression": "PSF-2.0"}]
    assert other["purl"] == "pkg:pypi/py4j@0.10.9.9"
    assert "licenses" not in other


def test_a_jar_has_its_own_coordinates() -> None:
    """A jar that holds other jars is not taken for one of them; without coordinates its name decides."""
    poms = {
        POM.format("com.example/shaded"): "version=1.0\n",
        POM.format("org.apache.zookeeper/zookeeper"): "#made\nversion=3.9.5\ngroupId=x\n",
    }
    found = inventory.jar("zookeeper-3.9.5", b"bytes", poms)
    assert found["purl"] == "pkg:maven/org.apache.zookeeper/zookeeper@3.9.5"
    assert len(found["hashes"][0]["content"]) == 64
    assert inventory.jar("netty-all-4.2.13.Final", b"", {})["purl"] == "pkg:generic/netty-all@4.2.13.Final"
    assert inventory.jar("odd", b"", {})["purl"] == "pkg:generic/odd@unknown"


def test_a_java_is_a_component() -> None:
    """Its file `release` says which; other files of that name say nothing."""
    assert [one["purl"] for one in inventory.java('IMPLEMENTOR="x"\nJAVA_VERSION="25.0.2"\n')] == [
        "pkg:generic/openjdk@25.0.2"
    ]
    assert list(inventory.java("something else")) == []


def test_the_same_components_give_the_same_document() -> None:
    """The order in which they are found, and finding one twice, make no difference."""
    components = [*inventory.debian(STATUS, "debian-12"), *inventory.python([("py4j", "1", None)])]
    text = inventory.document("image", components)
    assert text == inventory.document("image", [*reversed(components), components[0]])
    values = json.loads(text)
    assert (values["bomFormat"], values["specVersion"]) == ("CycloneDX", "1.6")
    assert values["metadata"]["component"]["name"] == "image"
    assert [one["name"] for one in values["components"]] == ["bash", "py4j"]


BILLS = sorted(sbom.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", BILLS, ids=lambda path: path.name)
def test_a_bill_of_the_docs_fits_the_lock_file(path: Any) -> None:
    """Its distributions of Python have the versions of requirements.lock: `make sbom` after `make lock`."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked.add((project["name"], project["version"]))
    components = json.loads(path.read_text(encoding="utf-8"))["components"]
    found = {(one["name"], one["version"]) for one in components if one["purl"].startswith("pkg:pypi/")}
    assert found <= locked


def test_every_image_has_a_bill() -> None:
    """The images that are made here are in docs/sbom, and Java is in those of Spark and ZooKeeper only."""
    holds_java = {
        path.name.removesuffix(".cdx.json"): "pkg:generic/openjdk@" in path.read_text(encoding="utf-8")
        for path in BILLS
    }
    assert holds_java == {
        "tidelock-agent": False,
        "tidelock-demo": True,
        "tidelock-spark": True,
        "tidelock-zookeeper": True,
    }
