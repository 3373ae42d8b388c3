# SPDX-License-Identifier: Apache-2.0
# What people and CI run. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard bpf/*.c bpf/*.h bpf/CMakeLists.txt cupti/*.c cupti/*.h) CMakeLists.txt pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help setup run test demo bench lint generate web wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(VENV)/.built ## system packages, virtual environment, our build; leaves .venv/bin/gpustrobe

$(VENV)/.system: tools/install-system-packages
	tools/install-system-packages
	@mkdir -p $(VENV) && touch $@

$(VENV)/.python: pyproject.toml $(VENV)/.system
	@test -n "$(PYTHON)" || { echo "gpustrobe needs Python 3.10 or newer; none found. Install python3 (Debian 12, Ubuntu 22.04 or newer have it)." >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet 'scikit-build-core>=1.0' --group dev
	@touch $@

$(VENV)/.built: $(VENV)/.python $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-build-isolation --config-settings=build-dir=build/editable -e .
	@touch $@

run: setup ## start agent, store and page on this machine
	@exec $(BIN)/gpustrobe up $(ARGS)

test: setup ## everything this machine can test; ARGS goes to pytest
	$(BIN)/python -m pytest $(ARGS)

demo: setup ## a simulated two-GPU node with a stalling training loop, and the page: no GPU needed
	@exec tools/demo $(ARGS)

bench: setup ## our own cost and speed, as a table, beside the budgets
	$(BIN)/python -m bench $(ARGS)

lint: setup ## ruff, and what is generated is up to date
	$(BIN)/ruff check .
	$(BIN)/python tools/generate.py --check

generate: setup ## write generated files: bpf/drops.py, proto/*_pb2.py, docs/settings.md
	$(BIN)/python tools/generate.py

web: ## build the page into store/web/dist (needs Node 20; the result is checked in)
	cd store/web && npm ci --no-audit --no-fund && npm run build

wheel: setup ## a wheel that brings its own libbpf, libelf and zlib, in wheelhouse/
	tools/build-wheel

clean: ## remove what was built
	rm -rf build $(VENV) wheelhouse store/web/node_modules
