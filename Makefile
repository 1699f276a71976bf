# `make` prints this page. Every command sets up what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8443
METRICS_PORT ?= 9443
READY := .venv/.installed
# In so many processes: more than cores where tests run on a real API server, since these wait most of the time; each process costs
# 3 s to collect all tests. How tests are shared out: tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --numprocesses
# Without bytecode every process that a test starts compiles all of it again.
unexport PYTHONDONTWRITEBYTECODE

##@ Everyday
.PHONY: help
help: ## show the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: $(READY) ## serve the webhook over TLS on this machine and say how to try it
	@$(BIN)/python examples/post.py --announce --url https://localhost:$(PORT)/mutate & \
	exec $(BIN)/gpu-admission serve --standalone --self-signed .run/certs --config examples/policies --drain-seconds 0 \
	  --host 127.0.0.1 --port $(PORT) --metrics-host 127.0.0.1 --metrics-port $(METRICS_PORT)

.PHONY: test
test: $(READY) control-plane oracle helm ## run the tests, on a real API server where one can be had (8 minutes)
	$(PYTEST) 6 -m "not slow"

.PHONY: test-unit
test-unit: $(READY) ## run the tests that need neither an API server nor other processes (2 minutes)
	$(PYTEST) 3 -m "not slow and not processes" --ignore tests/cluster

.PHONY: test-all
test-all: $(READY) control-plane oracle helm ## run all tests, with those that are slow by their nature (some 20 minutes)
	$(PYTEST) 4 -m "not long" --hypothesis-profile all

.PHONY: test-neighbours
test-neighbours: $(READY) control-plane helm neighbours ## run beside the controllers of other projects; only some: NEIGHBOURS="jobset kueue"
	GPU_ADMISSION_REQUIRE_CLUSTER=1 $(PYTEST) 2 --timeout 900 $(or $(patsubst %,tests/neighbours/test_%*.py,$(subst -,_,$(NEIGHBOURS))),tests/neighbours)

.PHONY: test-long
test-long: $(READY) control-plane oracle helm neighbours ## run the laws over 5,000 random worlds, and beside the controllers of others
	$(PYTEST) 2 -m long --timeout 3600

.PHONY: test-versions
test-versions: $(READY) ## run the tests on each version of Kubernetes that is supported (with three builds, 45 minutes)
	@failed=; for version in 1.37 1.36 1.35; do K8S=$$version $(MAKE) --no-print-directory test || failed+=" $$version"; done; \
	if [ "$$failed" ]; then echo "failed on Kubernetes$$failed"; exit 1; fi

.PHONY: sentences
sentences: $(READY) ## change each sentence that users read, and name those that no test of their folder misses (half an hour)
	$(BIN)/python -m tests.sentences

.PHONY: demo
demo: $(READY) ## show it on a real API server, with kubectl and fake GPU nodes
	@$(BIN)/python -m examples.demo

.PHONY: check
check: $(READY) ## check format, lint, types, import contracts, links of the docs and rendered manifests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m tests.deploy.manifests --check

.PHONY: docs
docs: $(READY) ## build the site of docs/ into dist/docs; a broken link or anchor fails
	$(BIN)/mkdocs build --strict

.PHONY: bench
bench: $(READY) control-plane ## measure what it costs, beside doing nothing, CEL policies and a ResourceQuota; a part: make bench hot; BENCH="--before COMMIT"
	@$(BIN)/python -m tests.bench $(filter $(PARTS),$(MAKECMDGOALS)) $(BENCH)

PARTS := work server api cluster quota hot queue scale
.PHONY: $(PARTS)
$(PARTS): bench ; @:

.PHONY: model
model: $(READY) ## check the quota protocol's model with spin, whole and without each of its rules
	@$(BIN)/python tests/model/run --mutants

##@ Maintenance
.PHONY: format
format: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: manifests
manifests: $(READY) ## render deploy/static from the chart, and what doctor holds installations against
	$(BIN)/python -m tests.deploy.manifests
	UPDATE_EXPECTED=1 $(BIN)/python -m pytest -q tests/webhook/tools/doctor/test_expected.py

.PHONY: plugin
plugin: $(READY) ## build `kubectl gpu-admission` as one file, with krew's manifest: make plugin ADDRESS=https://…
	$(BIN)/python -m tests.deploy.plugin "$(or $(ADDRESS),$(error ADDRESS is where the release will have the archive))"

.PHONY: release
release: $(READY) ## make all files of a release in dist/, the same bytes for the same commit: make release ADDRESS=https://…
	@$(BIN)/python -m tests.deploy.release $(ADDRESS)

.PHONY: lock
lock: $(READY) ## resolve the dependencies again into the hash-locked constraints files
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o constraints-dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c constraints-dev.txt pyproject.toml -o constraints.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c constraints-dev.txt --group fetcher -o deploy/constraints-fetcher.txt
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c constraints-dev.txt - -o deploy/constraints-build.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header tests/webhook/tools/fetch/mlflow/requirements.txt -o tests/webhook/tools/fetch/mlflow/constraints.txt
	for each in tests/neighbours/*/requirements.txt; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header $$each -o $${each%requirements.txt}constraints.txt || exit 1; \
	done

.PHONY: control-plane
control-plane: $(READY) ## build the Kubernetes control plane of the tests, once per version
	@$(BIN)/python -m tests.controlplane build || [ "$$GPU_ADMISSION_REQUIRE_CLUSTER" != 1 ]

.PHONY: oracle
oracle: $(READY) ## build the program that answers the tests as API server and scheduler do, once per version
	@$(BIN)/python -m tests.controlplane build-oracle || [ "$$GPU_ADMISSION_REQUIRE_CLUSTER" != 1 ]

.PHONY: helm
helm: $(READY) ## build Helm, which renders the chart for tests and manifests, once per version
	@$(BIN)/python -m tests.controlplane build-helm || [ "$$GPU_ADMISSION_REQUIRE_CLUSTER" != 1 ]

.PHONY: neighbours
neighbours: $(READY)
	@$(BIN)/python -m tests.neighbours build $(NEIGHBOURS) || [ "$$GPU_ADMISSION_REQUIRE_CLUSTER" != 1 ]

.PHONY: clean
clean: ## remove what the commands made in this folder
	rm -rf .venv .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage dist

$(READY): constraints-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-admission needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 …")'
	@echo "setting up .venv (first run only)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r constraints-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
