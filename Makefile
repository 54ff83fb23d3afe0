# The commands of CONTRIBUTING.md. Each does its own set-up: Python 3.11 or newer and make are enough.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo demo-simulation test test-slow format lint types imports check proto bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,postgresql]'
	touch $@

demo: setup                 ## the main job on this machine with real processes
	$(BIN)/flower-unlearn demo

demo-simulation: setup      ## the same in Flower's Ray simulation
	$(BIN)/flower-unlearn demo --simulation

test: setup                 ## the default tests (minutes)
	$(BIN)/pytest

test-slow: setup            ## the tests that start real servers and kill them
	$(BIN)/pytest -m slow

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

check: lint types imports test

proto: setup                ## generate server/api/deletion_pb2*.py from the .proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
		server/api/deletion.proto

bench: setup                ## speed and memory, as ratios measured in one run
	$(BIN)/python benchmarks/rounds.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
