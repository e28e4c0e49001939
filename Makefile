# `make demo`, `make test` and `make docs` each do all set-up on a fresh machine, in a virtual environment of their own;
# `make check` is the inner loop.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RK := $(BIN)/rooflinekit
BOTTLENECKS := examples/bottlenecks.py:A examples/bottlenecks.py:A_prime

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
#: More than half of the tests, in a minute on two cores: what says whether counts, specifications and the model hold.
FAST := tests/cost tests/hardware tests/ir tests/kernels tests/timing tests/test_files.py tests/test_layers.py \
    tests/test_public_names.py tests/test_release.py tests/test_units.py
# By file, as a file's tests share what they trace; conftest.py puts the longest files first.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 10

.PHONY: demo test check fast lint types docs ledger matrix setup speed clean

setup: $(VENV)/.ready

# What users have. torch first: whatever depends on it then takes this version.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[models]'
	touch $@

$(VENV)/.ready: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	@echo "--- ResNet-50, batch 32, on three GPUs"
	$(RK) predict timm:resnet50 --input batch,3,224,224 --batch 32 \
	    --gpu nvidia-a100-sxm4-80gb --gpu nvidia-l4 --gpu nvidia-rtx-4090
	@echo "--- Ten times fewer FLOP, the same time: a bottleneck at batch 1 on a P100, as measured in 2018"
	$(RK) explain $(BOTTLENECKS) --input 1,64,160,120 \
	    --gpu nvidia-p100-pcie-16gb --host xeon-server-2018 --sync none
	@echo "--- A roofline figure"
	mkdir -p demo
	$(RK) plot timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-a100-sxm4-80gb --out demo/roofline.pdf

test: setup lint types
	$(PYTEST)

check: setup
	$(MAKE) --no-print-directory --jobs 3 --output-sync lint types fast

fast: setup
	$(PYTEST) --quiet $(FAST)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

#: Pages, tutorials and notebooks show what their programs and commands answer today.
PAGES := tests/test_pages.py tests/test_tutorials.py tests/test_notebooks.py tests/test_page_commands.py

# Links that lead nowhere end it, and pages that are behind. Nothing is asked of another machine.
docs: setup
	$(PYTEST) --slow --quiet $(PAGES)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "open build/site/index.html"

# What predictions are worth on everybody's measurements, beside the last lines of docs/ledger.csv; DATA is their folder.
ledger: setup
	$(BIN)/python -m benchmarks.ledger $(DATA)

# Other releases of torch and Python, as far as they are to be had: see .ci/matrix.
matrix:
	$(PYTHON) .ci/matrix

speed: setup
	$(BIN)/python -m benchmarks.speed.speed

clean:
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
