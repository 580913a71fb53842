# Two commands for a fresh clone: `make demo` and `make test`.
# Python 3.11 or 3.12 is needed, nothing else.
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu   on a machine with internet and no GPU

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=
VENV := .venv
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test lint setup clean

demo: $(VENV)/.ready
	$(VENV)/bin/python demo/demo.py

test: $(VENV)/.ready
	$(VENV)/bin/pytest

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else f"Python 3.11 or 3.12 is needed, found {v[0]}.{v[1]}; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet $(INDEX) --constraint constraints.txt --editable '.[engine,hub,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-out
