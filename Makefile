# Two commands do everything on a fresh machine with Python 3.11 or later and git: `make lab` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# Workers for the tests: one a core, at most 8 (each loads TVM and torch).
JOBS   ?= logical

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
STAMP  := $(VENV)/.neptune_lab-is-set-up
# torch goes in first, alone and by its exact version: the build the machine offers for it is the one to keep.
TORCH  := $(shell sed -n 's/^ *"\(torch==[^"]*\)",*$$/\1/p' pyproject.toml)
# Jupyter refuses root without being told so.
ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root)

export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help setup system lab notebooks student docs test check lint format clean distclean

help:  ## show this list
	@echo "neptune_lab:"
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install the pinned dependencies (skipped when up to date)

# An existing .venv is used as it is; whatever it lacks is installed into it.
$(STAMP): pyproject.toml scripts/jupyterlab.json
	@test -n "$(TORCH)" || { echo "error: no line \"torch==…\" in pyproject.toml" >&2; exit 1; }
	@test -x $(BIN)/python || { \
	  command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) found: install Python 3.11 or later, or say make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is `$(PYTHON) --version 2>&1`: neptune_lab needs Python 3.11 or later (make PYTHON=/path/to/python3.11)" >&2; exit 1; }; \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: could not make $(VENV); on Debian and Ubuntu the package python3-venv is needed" >&2; exit 1; }; \
	}
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(VENV) holds `$(BIN)/python --version 2>&1`: neptune_lab needs Python 3.11 or later; remove $(VENV) and try again" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	$(PIP) install "$(TORCH)"
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/torch-constraint.txt
	$(PIP) install --constraint $(VENV)/torch-constraint.txt --editable ".[widgets,tune,dev,docs]"
	@mkdir -p $(VENV)/share/jupyter/lab/settings && cp scripts/jupyterlab.json $(VENV)/share/jupyter/lab/settings/overrides.json
	@touch $(STAMP)

system:  ## install graphviz and Chromium where apt-get may (the tests skip what they lack)
	@bash scripts/system_packages.sh

lab: setup  ## open the tour in JupyterLab (ARGS=--no-browser prints the address)
	$(BIN)/jupyter lab $(ROOT) --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.default_url=/lab/tree/notebooks/00_tour.ipynb $(ARGS)

notebooks: setup  ## run every notebook and keep its output
	$(BIN)/python -m pytest tests/notebooks --update-golden $(ARGS)

student: setup  ## write the notebooks without their answers to build/student
	$(BIN)/python -m neptune_widgets.course.student notebooks build/student

docs: setup  ## build the documentation to build/docs/index.html (offline; warnings are errors)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs $(ARGS)
	@echo "build/docs/index.html"

test: setup system check  ## everything CI runs: check, then pytest (ARGS="-k name" picks tests)
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile $(ARGS)

check: lint  ## lint, plus formatting, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

lint: setup  ## ruff's rules only
	$(BIN)/ruff check .

format: setup  ## format the code and fix what ruff can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:  ## remove caches and build outputs (the environment stays)
	rm -rf build dist docs/course docs/generated .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find neptune_lab widgets tests notebooks -name node_modules -prune -o \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environment too
	rm -rf $(VENV)
