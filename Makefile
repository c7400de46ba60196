# Everything runs in .venv; its two stamps say which dependencies it holds (.runtime, and .dev or .docs on top of it).
# `make test-floor` runs `make test` in .venv-floor, where what hongtu depends on is as old as pyproject.toml allows, and
# `make test-newest` in .venv-newest, where it is as new as pip finds.

PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
FLOOR := .venv-floor
NEWEST := .venv-newest
BIN := $(VENV)/bin
WORKERS ?= 2
GRAPH ?=
RANKS ?=
ANY_PYTHON = $(if $(wildcard $(VENV)/.runtime),$(BIN)/python,$(PYTHON))

REQUIREMENTS := $(CONSTRAINTS) setup.py pyproject.toml
TESTS = $(BIN)/python -m pytest -n $(WORKERS) --doctest-modules tests hongtu --ignore=tests/gpu --ignore=hongtu/bench/dgl.py --ignore=hongtu/bench/sar.py
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

BOUNDS := tests/kernels/test_kernels.py tests/nn/test_dropout.py tests/train/test_run_directory.py tests/graph/test_artifact.py \
	tests/kernels/test_bounds.py tests/kernels/test_plain_forms.py tests/plan/test_plain_forms.py tests/graph/test_neighbour_sets.py tests/preprocess/test_clean.py tests/preprocess/test_csc.py tests/preprocess/test_fuzz.py tests/preprocess/test_order.py \
	tests/preprocess/test_partition.py tests/preprocess/test_reorganize.py tests/graph/test_topology.py \
	tests/plan/test_transfer_plan.py tests/preprocess/test_volume.py tests/pyg/test_draw.py

SPARSE := tests/device/test_torch_sparse.py tests/nn/test_block.py tests/preprocess tests/bench tests/pyg

.DEFAULT_GOAL := help
.PHONY: help demo package test test-all test-dev test-floor test-newest torch-sparse bounds bench gpu-check gpu-more docs lint format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.runtime  ## preprocess and train a small graph (GRAPH=DIR: your own; RANKS=K: in K processes)
	$(BIN)/python -m experiments.demo $(if $(GRAPH),--graph "$(GRAPH)") $(if $(RANKS),--ranks $(RANKS))

test: $(VENV)/.dev  ## run tests of everything that needs no GPU, a few cases of each, and doctests (WORKERS=N processes)
	$(TESTS) --sample

test-all: $(VENV)/.dev  ## run every case of every test that needs no GPU (REST=1: those that `make test` leaves out)
	$(TESTS) $(if $(REST),--rest)

test-dev: $(VENV)/.dev  ## `make test` in Python's development mode, where a warning of this repository's code is an error
	PYTHONDEVMODE=1 $(TESTS) --sample -o 'filterwarnings=error:::(hongtu|tests|experiments)(\.|$$)' \
	    -W 'ignore:Sparse:UserWarning'  # torch's notices that sparse tensors are young, and not checked

test-floor: $(FLOOR).txt  ## `make test` with the lowest versions that pyproject.toml names, in an environment of its own
	$(MAKE) test VENV=$(FLOOR) CONSTRAINTS=$(FLOOR).txt

test-newest: $(NEWEST).txt  ## `make test` with the newest versions that pip finds, in an environment of its own
	$(MAKE) test VENV=$(NEWEST) CONSTRAINTS=$(NEWEST).txt

torch-sparse: $(VENV)/.dev  ## build torch-sparse, a quarter of an hour, and run the tests that use it
	$(INSTALL) --no-build-isolation torch-scatter torch-sparse
	$(BIN)/python -m pytest -n $(WORKERS) $(SPARSE) -k "sparse or form or sampled or accuracy"

bench: $(VENV)/.dev  ## time everything that the README claims, and write report.html (OUT=DIR)
	$(BIN)/python -m experiments.bench --out "$(or $(OUT),bench-results)" $(BENCH)

gpu-check:  ## on a machine with a GPU, five minutes: kernels, training, links, epochs against torch_geometric (OUT=DIR)
	$(ANY_PYTHON) -m experiments.gpu_check --out "$(or $(OUT),gpu-check)" $(CHECK)

gpu-more:  ## after gpu-check, six more: what failed, again; a larger graph, counters of kernels, memory checks (OUT=DIR)
	$(ANY_PYTHON) -m experiments.gpu_check --more --out "$(or $(OUT),gpu-check)" $(CHECK)

bounds: $(VENV)/.dev  ## run the tests of compiled code with bounds checks on (minutes)
	HONGTU_COMPILE=always NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds $(BIN)/python -m pytest -q -n $(WORKERS) $(BOUNDS)

docs: $(VENV)/.docs  ## build the documentation in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package:  ## build the wheel and the source distribution in dist/, and train in an empty environment with the wheel alone
	rm -rf dist .venv-package
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet --disable-pip-version-check build twine
	.venv-package/bin/python -m build --outdir dist .
	.venv-package/bin/python -m twine check --strict dist/*
	rm -rf .venv-package
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .venv-package && bin/hongtu generate citation graph --vertices 2000 --edges 20000 --features 16 --classes 4 \
	    && bin/hongtu preprocess graph artifact && bin/hongtu train artifact --model gcn --epochs 20
	rm -rf .venv-package

lint: $(VENV)/.dev  ## check format, style, types and the layering; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/project/test_rooms.py

format: $(VENV)/.dev  ## format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the virtual environment, caches and build products
	rm -rf $(VENV) $(FLOOR) $(FLOOR).txt $(NEWEST) $(NEWEST).txt build dist site .demo .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info
	find hongtu preprocess cuda_ext tests experiments -type d -name __pycache__ -prune -exec rm -rf {} +

$(FLOOR).txt: pyproject.toml
	sed '/^\[dependency-groups\]/,$$d' pyproject.toml | grep -oE '"[A-Za-z0-9_-]+>=[0-9.]+' | sed 's/"//; s/>=/==/' \
	    | grep -vE '^(setuptools|cuda-bindings)=' > $@

$(NEWEST).txt:
	touch $@

$(VENV)/.runtime: $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "hongtu needs Python 3.10 or newer and '$(PYTHON)' is not: try 'make PYTHON=python3.11 ...'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) 'pip>=25.1'  # knows dependency groups
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(INSTALL) -e . --group dev
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(INSTALL) -e . --group docs
	@touch $@
