# Two commands do everything on a fresh machine with Python 3.11 to 3.13 and git: `make lab` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# Cases and seed of `make fuzz`; SEED is of `make nightly` too, where it says whose turn it is (none: the day does).
N      ?= 2000
SEED   ?=
# Workers for the tests: one per core (tests/conftest.py), at most 8 (each loads TVM and torch).
JOBS   ?= logical

ifneq ($(words $(VENV)),1)
$(error VENV="$(VENV)": expected one folder without spaces in its name, as in make VENV=.venv)
endif

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
STAMP  := $(VENV)/.neptune_lab-is-set-up
# torch goes in first, alone and by its exact version: the build the machine offers for it is the one to keep.
TORCH  := $(shell sed -n '/^torch==/p' constraints.txt)
# Jupyter refuses root without being told so.
ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root)

export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help setup system lab notebooks student grade slides docs test suite fuzz nightly check style types lint format clean distclean

help:  ## show this list
	@echo "neptune_lab:"
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install the pinned dependencies (skipped when up to date)

# An existing .venv is used as it is; whatever it lacks is installed into it.
$(STAMP): pyproject.toml constraints.txt scripts/jupyterlab.json
	@test -n "$(TORCH)" || { echo "error: no line \"torch==…\" in constraints.txt" >&2; exit 1; }
	@VENV="$(VENV)" PYTHON="$(PYTHON)" bash scripts/environment.sh create
	@$(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "error: $(VENV) holds `$(BIN)/python --version 2>&1`: neptune_lab needs Python 3.11 to 3.13; give another folder (make VENV=.venv311), or remove $(VENV) yourself" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	$(PIP) install --no-compile "$(TORCH)"
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/torch-constraint.txt
	$(PIP) install --no-compile --constraint $(VENV)/torch-constraint.txt --constraint constraints.txt --editable ".[widgets,tune,dev,docs]"
	@VENV="$(VENV)" bash scripts/environment.sh bytecode
	@VENV="$(VENV)" bash scripts/environment.sh settings
	@touch $(STAMP)

system:  ## install graphviz and Chromium where apt-get may (the tests skip what they lack)
	@bash scripts/system_packages.sh

lab: setup  ## open the tour in JupyterLab (ARGS=--no-browser prints the address)
	$(BIN)/jupyter lab $(ROOT) --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.default_url=/lab/tree/notebooks/00_tour.ipynb $(ARGS)

notebooks: setup  ## run every notebook and keep its output
	$(BIN)/python -m pytest tests/notebooks -m "nightly or not nightly" --update-golden $(ARGS)

student: setup  ## write the notebooks without their answers to build/student
	$(BIN)/python -m neptune_widgets.course.student notebooks build/student

grade: setup  ## grade the answered notebooks in FOLDER; the table is in build/grades (make grade FOLDER=handed-in)
	@test -n "$(FOLDER)" || { echo "error: no FOLDER; as in make grade FOLDER=handed-in" >&2; exit 1; }
	$(BIN)/python -m neptune_widgets.course.grade "$(FOLDER)" $(ARGS)

slides: setup  ## write the lecture's slides to build/slides/index.html (offline)
	$(BIN)/python -m neptune_widgets.course.slides notebooks build/slides

# The gallery's live page needs Pyodide from npm, once; without it the gallery says that the page is left out.
docs: setup  ## build the documentation to build/docs/index.html, and the gallery (offline; warnings are errors)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs $(ARGS)
	$(BIN)/python -m neptune_widgets.gallery build/docs/gallery
	@echo "build/docs/index.html"

# Types are checked before a change is submitted (`make check`) and at night: they take a fifth of the CPU of the tests.
test: setup system  ## what CI runs, but for types: style and, beside it, pytest (ARGS="-k name" picks tests)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going style suite

# Tests start dozens of processes, each of which would compile the package anew if Python were told to keep no bytecode.
suite nightly fuzz: export PYTHONDONTWRITEBYTECODE =
suite: setup  ## pytest alone (ARGS as for test)
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

fuzz: setup  ## N random programs through every stage (N=2000 SEED=0); resumes a run that was interrupted
	$(BIN)/python scripts/long_run.py fuzz --cases $(N) $(addprefix --seed ,$(SEED)) $(ARGS)

nightly: setup  ## types, a third of the tests too slow for `make test`, then 2,500 fuzz cases; resumes likewise
	$(BIN)/python scripts/long_run.py nightly $(addprefix --seed ,$(SEED)) $(ARGS)

check: style types  ## style and types; run it before you submit a change

style: lint  ## lint, plus formatting and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

# Node collects garbage less often in a larger young space, which takes a tenth of the time of type checking.
types: setup  ## pyright alone, which CI and `make nightly` run too
	NODE_OPTIONS="$$NODE_OPTIONS --max-semi-space-size=128" $(BIN)/pyright --pythonpath $(BIN)/python

lint: setup  ## ruff's rules only
	$(BIN)/ruff check .

format: setup  ## format the code and fix what ruff can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Removes what the targets above made, by name: build/ and dist/ may hold files of yours too.
clean:  ## remove caches and the built docs (the environment, build/student and results of long runs stay)
	rm -rf build/docs build/doctrees build/browser-failures docs/course docs/generated
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find neptune_lab widgets tests notebooks docs scripts -name node_modules -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environment too, if `make setup` made it
	@VENV="$(VENV)" bash scripts/environment.sh remove
