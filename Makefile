# Everything needs Python 3.11 or newer, and puts what it installs into .venv.

# Debian's own comes first: it is compiled with profile-guided optimisation, which version managers leave out by default,
# and takes a quarter less time for the same work.
PYTHON ?= $(shell /usr/bin/python3.11 -c 'import ensurepip' 2>/dev/null && echo /usr/bin/python3.11 \
	|| command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
SAMPLE := etc/moorage/moorage.conf.sample
ARGS ?=
# Each worker has servers of its own. Of those with whole clouds of processes there are two: beside more of them, what is
# timed would have to wait for a processor.
WORKERS ?= 4
CLOUDS := $(if $(filter 1,$(WORKERS)),1,2)
# Of the simulation, in `make drills`.
HISTORIES ?= 10000
# So many of them an interrupted run has made already.
AFTER ?= 0
# By default the date.
SEED ?=
# What its tests have printed, in `make test`; and how they are run: in otherwise idle processor time.
SIMULATED := build/simulation.txt
IDLE := $(if $(shell command -v chrt),chrt --idle 0,nice -n 19)
# Where nothing compiled is kept, each of some hundred processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/pytest --dist worksteal -n

.PHONY: help demo test grid drills simulation breaks check style types layers docstrings packaging notes site sample clean $(SAMPLE)

help:
	@echo "make demo     a cloud of 20 fake hosts in one process"
	@echo "make test     all tests (ARGS='tests/unit -k name' for some)"
	@echo "make grid     kill every process at every failpoint, and the servers under load (an hour)"
	@echo "make drills   the long forms of what make test tries in short (an hour), then make simulation"
	@echo "make simulation   10,000 histories of a simulated cloud (three hours of a processor; HISTORIES=1000 for fewer)"
	@echo "make breaks   promises broken on purpose, each against the tests that have to notice it"
	@echo "make check    style, types, import layers, docstrings, packaging, release notes, site, sample configuration"
	@echo "make site     the documentation as a site, into build/site"
	@echo "make $(SAMPLE)    write the sample configuration again"
	@echo "make clean    remove the virtual environment and everything built"

demo: $(VENV)/.package
	$(BIN)/moorage demo --hosts 20 --cells 2 --instances 40 --fail-rate 0.2 --seed 7

test: $(VENV)/.test
	.ci/install-servers
ifeq ($(strip $(ARGS)),)
	@# Whole clouds come last. They leave the processors idle for a third of the time. The simulation has that: it has a
	@# clock of its own, and needs no servers.
	@status=0; \
	$(PYTEST) $(WORKERS) --ignore=tests/external || status=$$?; \
	mkdir -p build; \
	$(IDLE) $(PYTEST) 2 tests/external/simulation > $(SIMULATED) 2>&1 & simulation=$$!; \
	trap "kill $$simulation; exit 130" INT TERM; \
	$(PYTEST) $(CLOUDS) tests/external --ignore=tests/external/simulation || status=$$?; \
	echo "waiting for the simulation"; \
	wait $$simulation || status=$$?; \
	cat $(SIMULATED); \
	exit $$status
else
	$(PYTEST) $(WORKERS) $(ARGS)
endif

grid: $(VENV)/.test
	.ci/install-servers
	GRID=whole DRILLS=long $(BIN)/pytest tests/external/faults/test_killed_processes.py \
		tests/external/faults/test_servers_killed_under_load.py $(ARGS)

drills: $(VENV)/.test
	.ci/install-servers
	DRILLS=long MACHINE=long FUZZ=long $(PYTEST) $(WORKERS) --timeout 3600 \
		$(shell grep -lrE --include='test_*.py' '"(DRILLS|MACHINE|FUZZ)"' tests) $(ARGS)
	$(MAKE) simulation

simulation: $(VENV)/.test
	$(BIN)/python -m harness.simulation --histories $(HISTORIES) --after $(AFTER) $(SEED:%=--seed %) --jobs $(WORKERS) --most 3

breaks: $(VENV)/.test
	.ci/install-servers
	PYTHONPATH=tests $(BIN)/python -m support.breaks --jobs $(WORKERS) $(ARGS)

check: style types layers docstrings packaging notes site sample

style: $(VENV)/.check
	$(BIN)/ruff check .

types: $(VENV)/.test $(VENV)/.check
	$(BIN)/mypy

layers: $(VENV)/.check
	$(BIN)/lint-imports

docstrings: $(VENV)/.check
	$(BIN)/interrogate -q .
	$(BIN)/python .ci/docstring_first_lines.py moorage placement_store scheduler conductor compute dashboard harness \
		filters weighers tests

packaging: $(VENV)/.test
	$(BIN)/pytest -q tests/unit/project/test_packaging.py

notes: $(VENV)/.check
	$(BIN)/reno lint

site: $(VENV)/.check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

sample: $(VENV)/.package
	PATH="$(abspath $(BIN)):$$PATH" .ci/sample-config check

$(SAMPLE): $(VENV)/.package
	PATH="$(abspath $(BIN)):$$PATH" .ci/sample-config write

# Stamps, so that nothing is installed again until pyproject.toml changes.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Moorage needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@# --group came with pip 25.1, and Debian's is older.
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.package: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install -q -c etc/constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.package
	$(BIN)/python -m pip install -q -c etc/constraints.txt --group test
	@touch $@

$(VENV)/.check: $(VENV)/.package
	$(BIN)/python -m pip install -q --group check
	@touch $@

clean:
	rm -rf $(VENV) .tox build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
