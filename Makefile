# Two commands from a fresh clone: `make smoke` runs the whole pipeline on a small model, `make test` the test suite.
# Both make .venv on the first call. ARGS goes to the command: make smoke ARGS="run.name=first seed=1"
# The tests run in two processes (JOBS=0: in one, with output as it comes).

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
JOBS ?= 2
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: smoke test lint clean

smoke: $(VENV)/installed
	$(VENV)/bin/agentworld train recipe=smoke $(ARGS)

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest -n $(JOBS) --no-loadscope-reorder $(ARGS)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# torch first and by its pinned version: a resolver that is free to choose may fetch another build.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt $(TORCH)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist agentworld.egg-info .pytest_cache .ruff_cache
