# make demo                   the example of the KMC paper
# make test                   the tests on the working tree, without those of the next two lines
# make test-exactness         that draws are the posterior's, what is learned too, and faults: long by nature
# make test-docs              notebooks, the documentation's code as printed, examples and benchmarks in short
# make faults                 kills, interrupts, hangs, damaged files, random models: many times each, and a table
# make lint | typecheck       ruff | mypy
# make coverage               `make test` and `make test-exactness`, with what they don't reach
# make docs                   the documentation, into docs/_build/html; DOCS_INVENTORIES=1 links other projects' too
# make wheel                  sdist and wheel into dist/
# make smoke                  installs that wheel alone and samples, away from the working tree
# make test-wheel             `make test` on the installed wheel
# make test-wheel-docs        `make test-docs` there, once `make test-wheel` has installed it
#   PYTHON=python3.13         the interpreter to build environments with
#   JOBS=4                    test processes at a time
#   PYTEST_ARGS="-k glass"    handed on to pytest
# All but the last four first build .venv where it is missing, out of date or of another interpreter.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
DEMO_OUTPUT ?= glass_gp_classification.png
# A wheel is tested from a copy of the tree without the package, in an environment of its own.
WHEEL_TREE ?= build/wheel
WHEEL_TESTS ?= tests --pyargs pymc_kmc

# Test processes and chains use the cores; linear algebra with threads of its own would only fight them for these.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# Without bytecode every test process compiles all sources anew and rewrites each test's assertions: eight seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = -m pytest -n $(JOBS) --dist worksteal
# These override the markers that pyproject.toml leaves out.
DOCUMENTATION = -m documentation
EXACTNESS = -m exactness
WHEEL_PYTHON = $(CURDIR)/$(WHEEL_TREE)/.venv/bin/python

# What .venv must have been built from; kept in .venv/.built.
DESCRIBE = import sys; \
	sys.version_info >= (3, 11) or sys.exit("pymc_kmc needs Python 3.11 or newer, this is " + sys.version.split()[0]); \
	print(sys.base_prefix, sys.version.split()[0])

.PHONY: demo test test-exactness test-docs faults lint typecheck coverage docs wheel smoke test-wheel test-wheel-docs venv clean

demo: venv
	@# ArviZ 0.23 announces version 1 at every import: not what the demo is about.
	@PYTHONWARNINGS=ignore::FutureWarning:arviz $(VENV)/bin/python examples/glass_gp_classification.py --output $(DEMO_OUTPUT)

test: venv
	@$(VENV)/bin/python $(PYTEST) $(PYTEST_ARGS)

test-exactness: venv
	@$(VENV)/bin/python $(PYTEST) $(EXACTNESS) $(PYTEST_ARGS)

test-docs: venv
	@$(VENV)/bin/python $(PYTEST) $(DOCUMENTATION) $(PYTEST_ARGS) tests/examples

coverage: venv
	@$(VENV)/bin/python $(PYTEST) -m "not documentation" --cov --cov-report=term --cov-report=xml $(PYTEST_ARGS)

faults: venv
	@$(VENV)/bin/python -m tests.faults $(FAULTS_ARGS)
	@FAULTS_EXAMPLES=200 $(VENV)/bin/python -m pytest -q -s -m exactness tests/faults/test_compositions.py
	@FAULTS_EXAMPLES=100 $(VENV)/bin/python -m pytest -q $(EXACTNESS) tests/faults/test_models.py tests/faults/test_distributions.py

lint: venv
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

typecheck: venv
	@$(VENV)/bin/mypy

docs: venv
	@$(VENV)/bin/python -m pip install -qq --editable '.[docs]'
	@rm -rf docs/_build/html
	@$(VENV)/bin/python -W ignore::FutureWarning:arviz -m sphinx -W --keep-going -n -q docs docs/_build/html
	@$(VENV)/bin/python docs/check_links.py docs/_build/html

wheel:
	@rm -rf dist build/tools && $(PYTHON) -m venv build/tools
	@build/tools/bin/python -m pip install -qq build
	@# The wheel is made from the sdist, which so is shown to be complete.
	@build/tools/bin/python -m build --outdir dist .

smoke: wheel
	@rm -rf $(WHEEL_TREE) && mkdir -p $(WHEEL_TREE)
	@tar --exclude=./pymc_kmc --exclude=./build --exclude='./.venv*' --exclude=./.git -cf - . | tar -C $(WHEEL_TREE) -xf -
	@$(PYTHON) -m venv $(WHEEL_TREE)/.venv
	@$(WHEEL_PYTHON) -m pip install -qq dist/*.whl
	@cd $(WHEEL_TREE) && $(WHEEL_PYTHON) -W ignore::FutureWarning tests/smoke.py

test-wheel: smoke
	@$(WHEEL_PYTHON) -m pip install -qq "$$(echo dist/*.whl)[examples,test,bench,dask,umbridge,mpi]"
	@cd $(WHEEL_TREE) && $(WHEEL_PYTHON) $(PYTEST) $(PYTEST_ARGS) $(WHEEL_TESTS)

test-wheel-docs:
	@cd $(WHEEL_TREE) && $(WHEEL_PYTHON) $(PYTEST) $(DOCUMENTATION) $(PYTEST_ARGS) tests/examples

# Bytecode is made where a module is first imported: half of what is installed never is.
venv:
	@interpreter=$$($(PYTHON) -c '$(DESCRIBE)') \
		|| { echo "make: no usable interpreter in PYTHON=$(PYTHON)" >&2; exit 1; }; \
	wanted="$$interpreter $$(cksum < pyproject.toml)"; built=$$(cat $(VENV)/.built 2>/dev/null); \
	if [ "$$wanted" = "$$built" ]; then exit 0; fi; \
	case "$$built" in \
	"$$interpreter "*) ;; \
	*) echo "Building $(VENV) with $$($(PYTHON) --version)"; \
	   rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) || exit 1;; \
	esac; \
	echo "Installing pymc_kmc and what it needs into $(VENV) (some minutes the first time)"; \
	$(VENV)/bin/python -m pip install -qq --no-compile --editable '.[dev,examples,test,bench,dask,umbridge,mpi]' || exit 1; \
	echo "$$wanted" > $(VENV)/.built

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .coverage .coverage.* coverage.xml build dist
	rm -rf docs/_build docs/api docs/notebooks
	find pymc_kmc tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
