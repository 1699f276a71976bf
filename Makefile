# `make` prints this page. Every command sets up what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin

##@ Everyday
.PHONY: help
help: ## show the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Maintenance
.PHONY: lock
lock: .venv/.installed ## resolve the dependencies again into the hash-locked constraints files
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o constraints-dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c constraints-dev.txt pyproject.toml -o constraints.txt

.venv/.installed: constraints-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-admission needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 …")'
	@echo "setting up .venv (first run only)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r constraints-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
