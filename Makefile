# Two commands do everything on a fresh machine: `make compare` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.PHONY: compare serve test test-export docs dist browser check clean

compare: $(VENV)/.installed
	$(BIN)/foveate compare --out foveate-report --overwrite

test: $(VENV)/.installed-dev check browser
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# every method on every model library in ONNX Runtime and OpenVINO
test-export: $(VENV)/.installed-dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m export

# the pages of documentation, in build/site; a broken link fails
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the wheel and the source archive, in dist/
dist: $(VENV)/.installed-dev
	$(BIN)/python -c "from setuptools import build_meta as b; print(b.build_sdist('dist'), b.build_wheel('dist'))"

# a server around an exported model on a loopback port, and its load test
serve: $(VENV)/.installed-dev
	$(BIN)/python examples/serve/load_test.py

# the report is tested in a real browser where one may be installed; else those tests skip with a warning
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    (apt-get install -y --no-install-recommends chromium || \
	     (apt-get update && apt-get install -y --no-install-recommends chromium)) >/dev/null 2>&1; } || \
	  echo "No Chromium: the report will not be tested in a browser."

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
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis foveate-report
