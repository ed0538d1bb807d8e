# make demo    train on the digits, on one rank and on two
# make test    flake8, mypy and every test that needs no GPU, in JOBS=2 processes; NEWEST=1: with the newest packages,
#              not those known to do
# make pythons the same on every Python from 3.10 that this machine has; NEWEST=1 as above
#
# Each makes an environment first, in $(VENV), and installs into it; again only when the list of packages has changed.

VENV ?= .venv$(if $(NEWEST),-newest)
CONSTRAINTS = $(if $(NEWEST),,--constraint tests/constraints.txt)
BIN = $(VENV)/bin
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo "$$python" && break; done)

.DELETE_ON_ERROR:
.PHONY: help demo test pythons newest clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo "make clean   remove the environment, builds and caches"

# A rank and thread of BLAS a core, for one rank too: several would wait for each other wherever a core is busy.
demo: export OMP_NUM_THREADS = 1
demo: export OPENBLAS_NUM_THREADS = 1
demo: $(VENV)/.installed-examples
	$(BIN)/python examples/01_digits.py --ranks 1
	$(BIN)/python examples/01_digits.py --ranks 2

# So many processes of pytest share the files of tests, each of which one process runs. One that crashes is not
# replaced, as pytest-xdist 3.8 then waits for ever: its test is named, and the others run the rest. One that not even
# the signal of a test's time limit reaches writes its stacks and ends.
JOBS ?= 2

# Tests start some hundred Pythons; what one has compiled the next ones find, in the environment.
test: export PYTHONDONTWRITEBYTECODE =
test: export PYTHONPYCACHEPREFIX = $(abspath $(VENV))/pycache
test: $(VENV)/.installed-test
	$(BIN)/python -m flake8 minigrad kernels examples tests
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 0 \
		-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

# Editable, so that both targets always run the sources that lie here. Compiling every module of every package would
# take longer than the download; Python compiles those that it imports.
# setuptools comes first, under the constraints too: in isolation pip would take the newest to build with.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(CONSTRAINTS)
$(VENV)/.installed-%: setup.cfg pyproject.toml tests/constraints.txt $(if $(NEWEST),newest) | $(VENV)/bin/pip
	$(PIP) $(if $(NEWEST),--upgrade) 'setuptools>=77' wheel
	$(PIP) $(if $(NEWEST),--upgrade) --no-build-isolation --editable '.[$*]'
	@touch $@

# Each Python on the path, or that pyenv or uv keep; one that is not here is named at the end.
PYTHONS = 3.10 3.11 3.12 3.13 3.14
pythons:
	@ran=; failed=; absent=; \
	for version in $(PYTHONS); do \
		found=; \
		for python in "$$(command -v python$$version)" "$${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version".*/bin/python \
				"$$HOME/.local/share/uv/python/cpython-$$version".*/bin/python; do \
			if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found="$$python"; break; fi; \
		done; \
		if [ -z "$$found" ]; then absent="$$absent $$version"; continue; fi; \
		echo "Python $$version is $$found"; \
		if $(MAKE) test PYTHON="$$found" VENV="$(VENV)-$$version"; then ran="$$ran $$version"; \
		else failed="$$failed $$version"; fi; \
	done; \
	echo "green on Python$${ran:- none}; failed:$${failed:- none}; not here:$${absent:- none}"; \
	test -n "$$ran" && test -z "$$failed"

# pip is the last thing that venv makes, so an interrupted attempt is taken up again
$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "make: expected a Python >= 3.10 with venv, got none: set PYTHON" >&2; exit 1; }
	$(PYTHON) -m venv "$(VENV)"

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .hypothesis
	find minigrad kernels examples tests -name __pycache__ -prune -exec rm -rf {} +
