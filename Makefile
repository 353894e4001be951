# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
# A fusion of XLA that computes wrongly on CPU is switched off (docs/stability.md); the import of bilevelax does it too.
RIGHT := --xla_cpu_experimental_ynn_fusion_type=

.PHONY: demo test check-docs test-slow fuzz lint bench docs clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bilevelax needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing pinned dependencies (a minute or two; 1 GB on disk)"
	@$(PIP) -e ".[all]"
	@touch $@

$(DEV): $(READY)
	@echo "Installing the tools for tests"
	@$(PIP) -e ".[all,dev]"
	@touch $@

demo: $(READY)  ## robust orders for a restaurant from real data: model, comparison table and plot in demo/
	$(BIN)/bilevelax newsvendor example

test: $(DEV)  ## the whole fast suite, and its ten slowest tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m "not slow"

check-docs: $(DEV)  ## names, links and commands of the documents, in seconds
	$(BIN)/python -m pytest -n 0 tests/test_docs.py tests/test_layers.py

test-slow: $(DEV)  ## statistical tests
	XLA_FLAGS=$(RIGHT) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m slow

fuzz: $(DEV)  ## five minutes of damaged and forged files; make fuzz FUZZ="--seed 7 --seconds 60"
	$(BIN)/python tests/fuzz/fuzz.py $(FUZZ)

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV)  ## timings, tables and JSON in benchmarks/results
	XLA_FLAGS=$(RIGHT) $(BIN)/python benchmarks/run.py

docs: $(DEV)  ## HTML pages in docs/_build/html; warnings are errors
	@$(PIP) -e ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:  ## remove what the other targets made
	rm -rf $(VENV) demo docs/_build benchmarks/results
