# Two commands do everything on a fresh machine: `make compare` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.PHONY: compare test check clean

compare: $(VENV)/.installed
	$(BIN)/foveate cost deit_small_patch16_224 --method tome --method evit --method topk --budget 0.65
	$(BIN)/foveate speed deit_small_patch16_224 --method tome --method evit --budget 0.65 --batch-size 1 16 --seconds 10

test: $(VENV)/.installed-dev check
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
