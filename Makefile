# `make demo` and `make test` each do all set-up on a fresh machine, in a virtual environment of their own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RK := $(BIN)/rooflinekit
BOTTLENECKS := examples/bottlenecks.py:A examples/bottlenecks.py:A_prime

.PHONY: demo test lint types setup speed clean

setup: $(VENV)/.ready

# torch first: whatever depends on it then takes this version.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
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
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

speed: setup
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
