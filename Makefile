# The commands of CONTRIBUTING.md. Each does its own set-up; README names what the machine has to have.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
NEWEST ?= .venv-newest
OLDEST ?= .venv-oldest
BIN    := $(VENV)/bin
# Files of tests side by side on two cores: three of the slow ones, which wait for Flower and processes of their own. Of the
# default ones a third costs as much in imports as it wins: 5.5 instead of 4.9 CPU-minutes, 200 instead of 225 s.
PARALLEL ?= -n 2 --dist loadfile
PARALLEL_SLOW ?= -n 3 --dist loadfile
# Files with slow tests, the longest first, for the last one runs alone. A folder beside them would undo the order.
# tests/unit/test_slow_tests.py misses none.
LONGEST := $(patsubst %,tests/integration/%.py,$(addprefix test_,session_processes residue local_deployment own_app) \
	console/test_browser test_demo)
naming = $(sort $(shell grep -lrE --include='test_*.py' '$1' tests))
SLOWEST_FIRST = --no-loadscope-reorder $(LONGEST) \
	$(filter-out $(LONGEST),$(call naming,mark\.slow|slow_but|LONG|tests\.ledgers))
# Unit tests that compute for seconds, which `make test-fast` leaves out.
LONG_UNITS := benchmarks $(addprefix unlearning/,curvature decentralised tasks verification) \
	$(addprefix strategies/test_,by_name.py sessions.py) client/test_planted_noise.py
SITE ?= html
export OMP_NUM_THREADS ?= 1
# Images of containers like to forbid bytecode. Flower starts a process for everything, and each would compile anew what
# it imports: 3.1 instead of 1.2 s of processor time for a SuperLink, 9 instead of 4 for a ServerApp.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-simulation test test-fast test-slow test-long test-hosts newest-flower oldest-libraries format lint types imports check proto docs site bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@mkdir -p $(VENV); case "$$(cd $(VENV) && pwd -P)" in *[\ ,%]*) echo "Flower's SuperLink makes no tables where the" \
		"environment's path has a space, a comma or a percent sign: clone into another directory, or name an" \
		"environment in one (make VENV=...)." >&2; exit 1;; esac
	@$(PYTHON) -c 'import sqlite3, sys; sys.exit(sqlite3.sqlite_version_info < (3, 35))' 2> /dev/null || { \
		echo "$(PYTHON) has no SQLite 3.35 or newer, which Flower's SuperLink needs: name a Python that brings its own, as" \
		"uv and conda install them (make PYTHON=...)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev,postgresql]'
	$(BIN)/python -c 'import client.app, server.app'  # compiles what is used; pip would compile all of it, for longer
	touch $@

demo: setup                 ## the main job on this machine with real processes
	$(BIN)/flower-unlearn demo

demo-simulation: setup      ## the same in Flower's Ray simulation
	$(BIN)/flower-unlearn demo --simulation

# In the order of the folders: whole federations first, and at the end, when a processor may stand idle, the short ones.
test: setup                 ## the default tests (minutes)
	$(BIN)/pytest $(PARALLEL) --no-loadscope-reorder

test-fast: setup            ## unit tests (under a minute)
	$(BIN)/pytest $(PARALLEL) tests/unit $(patsubst %,--ignore=tests/unit/%,$(LONG_UNITS))

test-slow: setup            ## the tests that start real servers and kill them
	$(BIN)/pytest -m 'slow and not hosts and not long' $(PARALLEL_SLOW) $(SLOWEST_FIRST)

test-long: setup            ## those of them that take longest and are not in the gate
	$(BIN)/pytest -m long

# Skipped where there is no root. An answer that a cut makes Flower 1.39 lose is asked for again (docs/reference-failures.md).
test-hosts: setup           ## server and clients on hosts of their own (needs root); links are cut
	$(BIN)/pytest -m 'hosts and not long' $(call naming,mark\.hosts)

# An environment of its own, 6 GB with PyTorch: some minutes the first time. The extra `dev` brings 1.39, which the newest
# then replaces; where that is newer than pyproject.toml allows, pip says so in an "ERROR" that is none. First a test that
# lists each name of Flower that is gone. Beside the tests: the demo in both forms, an app that `flower-unlearn new` writes, on real processes by messages and by sessions, and deploy/nginx-fleet.conf.
newest-flower:              ## the same code on the newest Flower that pip installs; says which that was
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST)/bin/python -m pip install --quiet --editable '.[dev,postgresql]'
	$(NEWEST)/bin/python -m pip install --quiet --upgrade 'flwr[simulation]'
	$(NEWEST)/bin/flwr --version
	$(NEWEST)/bin/pytest -m long tests/unit/strategies/test_flower_names.py
	$(NEWEST)/bin/pytest tests/acceptance tests/unit/strategies
	$(NEWEST)/bin/flower-unlearn demo --simulation
	$(NEWEST)/bin/flower-unlearn demo
	$(NEWEST)/bin/pytest -m slow -k "not simulation" tests/integration/test_own_app.py tests/integration/test_fleet_proxy.py
	@echo "All of this passed. $$($(NEWEST)/bin/flwr --version)"

oldest-libraries:           ## the default tests and the demo on the oldest libraries that pyproject.toml allows
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --editable '.[dev,postgresql]' \
		$(shell sed -n 's/.*"\([a-z][a-z0-9-]*\)\(\[binary\]\)\{0,1\}>=\([0-9.]*\).*/"\1==\3.*"/p' pyproject.toml | sort -u)
	$(OLDEST)/bin/pytest $(PARALLEL)
	$(OLDEST)/bin/flower-unlearn demo
	@echo "All of this passed."

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

proto: setup                ## generate the *_pb2*.py beside each .proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. server/service/deletion.proto \
		strategies/sessions/session.proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. client/peer/peer.proto

docs: setup                 ## the generated parts of docs/reference-*.md, pyproject.toml and strategies/
	$(BIN)/python -m benchmarks.settings_tables
	$(BIN)/python -m benchmarks.reference
	$(BIN)/python -m tests.contract.test_task_kinds
	$(BIN)/python -m tests.unit.strategies.test_by_name

# The navigation on each of 240 pages takes most of the time: `make site SITE=dummy`, as the gate does, checks pages and
# links and writes none, in 17 instead of 96 CPU-seconds.
site: setup                 ## the documentation as a site, in build/site; REPOSITORY=https://… adds links that edit a page
	REPOSITORY='$(REPOSITORY)' $(BIN)/sphinx-build -b $(SITE) -nW --keep-going --quiet -d build/site-doctrees docs build/site
	@test $(SITE) != html || echo "build/site/index.html"

bench: setup                ## speed and memory, as ratios measured in one run
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
