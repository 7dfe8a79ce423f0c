# Targets for users (demo) and developers. `make help` lists them. The environment is made once, in .venv, from
# requirements.lock: by uv when it is on the PATH, otherwise by venv and pip.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SF ?= 0.1
PYTEST_ARGS ?=
BENCH_ARGS ?=
# `make chaos`: the seed of faults and clients (default: the time), how long faults come, and further options.
SEED ?=
MINUTES ?= 3
CHAOS_ARGS ?=
# A folder of tests/unit, e.g. csnlog or replica_agent/storage.
PART ?=
# What `make coverage` runs: a folder of tests, or all of them.
COVERED ?= tests/unit
VENV := .venv
PYTHON := $(VENV)/bin/python
# A peer of the benchmark that needs another DuckDB than the environment (bench/ducklake.in).
DUCKLAKE := $(VENV)/ducklake
# An older Spark for the long runs, and for the benchmark's peers, beside the environment's (tests/spark35.in).
SPARK35 := $(VENV)/spark35
STAMP := $(VENV)/stamp
# A checker of histories that others have written, for the long runs (tests/checkers/outside.py).
ADYA := $(VENV)/adya
# Spark's classes, ready to be mapped: each of the many sessions of the tests starts in half of the time.
CLASSES := $(VENV)/spark-classes/stamp
# Most tests wait for processes more than they compute; a file stays with one worker, since it shares its cluster.
# Files are taken in the order in which they are collected, long ones first (tests/conftest.py). A worker that ends
# in a test (tests/support/runs/last_limit.py) ends the run: one in its place might never be given what is left.
PYTEST_WORKERS ?= 4
PYTEST := $(PYTHON) -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Spark's Python workers must be the environment's Python: they need pyarrow and this project.
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON)
# An agent is several processes and tests start hundreds: to compile all modules each time doubles their start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo compose-demo sbom test test-all check lint types unit coverage docs bench chaos lock clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## the product on real data: a cluster, writers, Spark, a replica killed (SF=0.1)
	@$(PYTHON) -m demo --scale-factor $(SF)

compose-demo: $(STAMP) ## the same in containers: docker/compose.yaml, with a Spark cluster (SF=0.1)
	@$(PYTHON) -m demo.containers --scale-factor $(SF)

test: $(CLASSES) ## all tests except the long runs (PYTEST_ARGS="-k name" for more options)
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(CLASSES) $(SPARK35)/stamp $(ADYA)/stamp ## all tests, the long runs too
	@$(PYTEST) $(PYTEST_ARGS)

check: lint types unit ## format, lint, types, unit tests: the next three targets

lint: $(STAMP) ## format and lint
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/ruff check

types: $(STAMP) ## static types
	@$(VENV)/bin/mypy

unit: $(STAMP) ## unit tests, of one component with PART=csnlog or PART=replica_agent/storage
	@$(PYTEST) -q tests/unit$(if $(PART),/$(PART)) $(PYTEST_ARGS)

coverage: $(STAMP) ## lines and branches that the unit tests run (COVERED=tests for all tests)
	@$(PYTEST) -q -m "not slow" $(COVERED) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

docs: $(STAMP) ## the documentation as a site in site/; a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

bench: $(STAMP) $(DUCKLAKE)/stamp $(SPARK35)/stamp ## benchmarks against peers and physical limits (BENCH_ARGS="commits spark --quick")
	@$(PYTHON) -m bench $(BENCH_ARGS)

chaos: $(CLASSES) ## a cluster under load and faults drawn from a seed, judged (SEED=7 MINUTES=3 CHAOS_ARGS="--containers")
	@$(PYTHON) -m chaos $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES) $(CHAOS_ARGS)

sbom: $(STAMP) ## what the images hold, anew: docs/sbom/*.json (needs a container engine)
	@$(PYTHON) -m demo.containers.sbom

LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-header --no-annotate
lock: ## requirements.lock anew, from pyproject.toml (needs uv)
	@$(LOCK) pyproject.toml --all-extras --output-file requirements.lock
	@$(LOCK) bench/ducklake.in --output-file bench/ducklake.lock
	@$(LOCK) tests/spark35.in --output-file tests/spark35.lock

clean: ## remove caches and build results; the environment stays (rm -r .venv removes it)
	@rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# One recipe line, so that a failure in the middle leaves no stamp. An environment that exists is brought up to the
# lock file, not thrown away; ensurepip is for one that uv made without pip.
$(STAMP): requirements.lock pyproject.toml
	@if command -v uv >/dev/null; then \
	    [ -x $(PYTHON) ] || uv venv --quiet --python '>=3.11' $(VENV); \
	    uv pip install --quiet --compile-bytecode --python $(PYTHON) --require-hashes -r requirements.lock; \
	    uv pip install --quiet --python $(PYTHON) --no-deps --editable .; \
	else \
	    if [ ! -x $(PYTHON) ]; then \
	        for python in python3 python3.14 python3.13 python3.12 python3.11 ''; do \
	            [ -n "$$python" ] || { echo "make: Python >= 3.11 is needed, found $$(python3 --version 2>&1)" >&2; exit 1; }; \
	            "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	        done; \
	        "$$python" -m venv $(VENV) >/dev/null || \
	            { rm -rf $(VENV); echo "make: $$python -m venv failed; Debian has it in python3-venv" >&2; exit 1; }; \
	    fi; \
	    $(PYTHON) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m ensurepip >/dev/null; \
	    $(PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --require-hashes -r requirements.lock; \
	    $(PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --editable .; \
	fi
	@touch $@

# Packages in a folder of their own, by their lock file: recipe of the stamps below. They are other versions than those
# of the environment on purpose, which pip would report as errors of its resolver.
define install_beside
	@rm -rf $(@D)
	@if command -v uv >/dev/null; then \
	    uv pip install --quiet --compile-bytecode --python $(PYTHON) --target $(@D) --require-hashes -r $<; \
	else \
	    $(PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --no-warn-conflicts --target $(@D) --require-hashes -r $<; \
	fi
	@touch $@
endef

$(DUCKLAKE)/stamp: bench/ducklake.lock | $(STAMP)
	$(install_beside)

$(SPARK35)/stamp: tests/spark35.lock | $(STAMP)
	$(install_beside)

# Without a cargo its tests say that they are left out.
$(ADYA)/stamp: | $(STAMP)
	@if command -v cargo >/dev/null; then \
	    cargo install adya --version 0.1.0 --locked --no-default-features --quiet --root $(@D) && touch $@; \
	else \
	    echo "make: no cargo (apt-get install cargo), so the checker adya is not installed and its tests are left out" >&2; \
	fi

$(CLASSES): $(STAMP) tests/support/spark/class_archive.py
	@$(PYTHON) -m tests.support.spark.class_archive
	@touch $@
