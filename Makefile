# make demo    train on the digits, on one rank and on two
# make test    flake8, mypy and every test that needs no GPU
#
# Both make an environment first, in $(VENV), and install into it; again only when the list of packages has changed.

VENV ?= .venv
BIN = $(VENV)/bin
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo "$$python" && break; done)

.DELETE_ON_ERROR:
.PHONY: help demo test clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo "make clean   remove the environment, builds and caches"

demo: $(VENV)/.installed-examples
	$(BIN)/python examples/01_digits.py --ranks 1
	$(BIN)/python examples/01_digits.py --ranks 2

test: $(VENV)/.installed-test
	$(BIN)/python -m flake8 minigrad kernels examples tests
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest

# Editable, so that both targets always run the sources that lie here. Compiling every module of every package would
# take longer than the download; Python compiles those that it imports.
$(VENV)/.installed-%: setup.cfg pyproject.toml | $(VENV)/bin/pip
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --editable '.[$*]'
	@touch $@

# pip is the last thing that venv makes, so an interrupted attempt is taken up again
$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "make: expected a Python >= 3.10 with venv, got none: set PYTHON" >&2; exit 1; }
	$(PYTHON) -m venv "$(VENV)"

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .hypothesis
	find minigrad kernels examples tests -name __pycache__ -prune -exec rm -rf {} +
