# Every verb works from a fresh clone on a machine with Python >= 3.11 and a package registry:
# it makes its own virtual environment (.venv) first and installs again when pyproject.toml changes.
#
#   make demo                                              the whole path on a synthesised corpus, in minutes
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu    where plain `pip install torch` would bring CUDA
#   make demo VENV=~/envs/mine                             your environment with your torch, which is left as it is

VENV ?= .venv
OURS := $(filter file,$(origin VENV))# empty when the user chose an environment: theirs is never made or deleted by us
BIN  := $(VENV)/bin

# The first interpreter that runs and is new enough (a name on PATH may be a stub that only prints an error).
PYTHON ?= $(or $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done),python3)

# Installed first and alone, so that what pip prefers for this machine is taken and `torch>=2.11` is already satisfied
# when the rest comes. One exact release, so that two clones compute the same numbers.
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=
TORCH_STAMP := $(VENV)/.roundelay-torch-$(shell printf '%s' '$(TORCH) $(TORCH_INDEX)' | tr -c 'A-Za-z0-9.' _)

ARGS ?=

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# pip may not replace the torch that is there, ours or the user's, whatever a dependency asks for.
KEEP_TORCH = $(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
	> $(VENV)/.roundelay-torch.txt && $(PIP) --constraint $(VENV)/.roundelay-torch.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo models test check bench bench-hosts format clean help test-gpu bench-gpu gpu docs dist

demo: $(VENV)/.roundelay-demo ## synthesise a corpus, train two learners, one slowed, with and without waiting; write the page
	$(BIN)/roundelay demo

# Small packs, in models/, each with its card. SOURCE: a folder with AN4 (without it, digits alone); DIGITS: one with the
# digits, which are else downloaded. What is done is not done again.
SOURCE ?=
DIGITS ?=
models: export PATH := $(abspath $(BIN)):$(PATH)
models: $(VENV)/.roundelay-demo ## small packed models: spoken digits; with SOURCE=DIR also AN4's letters, numbers, commands
	recipes/fsdd/run.sh $(if $(DIGITS),'$(DIGITS)')
	$(if $(SOURCE),recipes/an4/packed.sh '$(SOURCE)')

# Most tests wait for processes of their own, so five at a time are sooner done on two cores. All of a file are run by one,
# in the order of tests/conftest.py. Those in tests/faults kill, cut and count only what they have started themselves. One
# thread a process: there are enough of them. They keep their bytecode, whatever is set: else each compiles the package.
test: export OMP_NUM_THREADS := 1
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.roundelay-dev ## all tests (ARGS="-k staleness" to choose)
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=5
else
	$(BIN)/python -m pytest $(ARGS)
endif

check: $(VENV)/.roundelay-dev ## lint, format, types, who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.roundelay-bench ## what talking costs, with torch DDP beside it; how long learners wait for data
	$(BIN)/python benchmarks/talk.py $(ARGS)
	$(BIN)/python benchmarks/data_scale.py --hours 2 --order shuffle

# All of these run on a processor too, small, with DEVICE=cpu: whether they do, nothing else.
DEVICE ?= cuda

test-gpu: $(VENV)/.roundelay-dev ## the tests that need a GPU (VENV=path: an environment whose torch sees it)
	ROUNDELAY_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest -m gpu --timeout 330 --durations=5 $(ARGS)

bench-gpu: $(VENV)/.roundelay-bench ## what training through Roundelay costs on a GPU, into gpu-results/
	$(BIN)/python benchmarks/gpu_all.py --device $(DEVICE) --only rows speed share profile data $(ARGS)

gpu: $(VENV)/.roundelay-dev ## tests, speeds, profiles, trainings on a GPU, step by step, into gpu-results/; goes on
	$(BIN)/python benchmarks/gpu_all.py --device $(DEVICE) $(ARGS)

bench-hosts: $(VENV)/.roundelay-bench ## what a slow network costs: two hosts made of network namespaces
	$(BIN)/python benchmarks/two_hosts.py $(ARGS)

docs: $(VENV)/.roundelay-docs ## the pages as a site, in site/; a warning is an error, and so is what axe finds in a browser
	RUN_NOTEBOOKS=true NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/site/look.py site

dist: $(VENV)/.roundelay-dev ## packages for an index, links made absolute (URL=https://HOST/OWNER/roundelay)
	$(BIN)/python docs/site/publish.py $(URL)

format: $(VENV)/.roundelay-dev ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## delete caches, builds and our own .venv (never data/, exp/ or demo/)
	rm -rf build dist site src/*.egg-info speech/build speech/src/*.egg-info lab/build lab/src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src speech lab tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +
	$(if $(OURS),rm -rf $(VENV))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# One stamp for each set of packages, inside the environment, so that deleting the environment forgets them too.
# Another torch is another stamp and drops the rest, since their packages were chosen beside the old one.

$(VENV)/.roundelay-demo: pyproject.toml speech/pyproject.toml $(TORCH_STAMP)
	$(KEEP_TORCH) --editable '.[demo]' --editable ./speech
	@touch $@

$(VENV)/.roundelay-dev: pyproject.toml speech/pyproject.toml lab/pyproject.toml $(TORCH_STAMP)
	$(KEEP_TORCH) --editable '.[demo,dev]' --editable ./speech --editable ./lab
	@touch $@

$(VENV)/.roundelay-docs: pyproject.toml speech/pyproject.toml lab/pyproject.toml $(TORCH_STAMP)
	$(KEEP_TORCH) --editable '.[docs]' --editable ./speech --editable ./lab
	@touch $@

$(VENV)/.roundelay-bench: pyproject.toml speech/pyproject.toml lab/pyproject.toml $(TORCH_STAMP)
	$(KEEP_TORCH) --editable '.[demo,bench]' --editable ./speech --editable ./lab
	@touch $@

ifneq ($(OURS),)

$(TORCH_STAMP): $(BIN)/python
	@echo "installing $(TORCH): the largest package, once"
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	@rm -f $(VENV)/.roundelay-* && touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	"Roundelay needs Python 3.11 or newer, and $(PYTHON) is not: install it, or say which: make PYTHON=/path/to/python3.11"; \
	exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

else

$(TORCH_STAMP): $(BIN)/python
	@$(BIN)/python -c 'import sys; from importlib.metadata import version; \
	sys.exit(sys.version_info < (3, 11) or [int(n) for n in version("torch").split(".")[:2]] < [2, 11])' 2>/dev/null \
	|| { echo >&2 "$(VENV): needs Python 3.11 or newer with torch 2.11 or newer installed; it was left as it is."; exit 1; }
	@touch $@

$(BIN)/python:
	@echo >&2 "$(VENV) is not a virtual environment (no bin/python in it). Leave VENV out and one is made for you."; exit 1

endif
