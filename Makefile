# Everything works from a clean clone with only Python 3.11 (with venv) and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help install demo test test-slow bench lint types contract check format clean

help:            ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## make .venv and install into it

demo: $(STAMP)   ## 80 real episodes against the bundled servers, on Ray
	$(BIN)/rayeval run configs/smoke.yaml
	$(BIN)/rayeval summarize smoke

test: $(STAMP)   ## the test suite in two processes, each with one Ray (under 8 minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)  ## chaos, soak and simulation
	$(BIN)/python -m pytest -m slow

bench: $(STAMP)  ## speed, memory, recovery beside floors of the same run, written to docs/performance.md (BENCH=--no-write)
	$(BIN)/python -m benchmarks $(BENCH)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	$(BIN)/lint-imports

check: lint types contract  ## lint, types, import contract

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove the environment and caches (never a run)
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
