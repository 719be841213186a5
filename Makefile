# make demo | test | lint     each builds .venv first where it is missing, out of date or of another interpreter
#   PYTHON=python3.13         the interpreter to build it with
#   JOBS=4                    test processes at a time
#   PYTEST_ARGS="-k glass"    handed on to pytest
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
DEMO_OUTPUT ?= glass_gp_classification.png

# Test processes and chains use the cores; linear algebra with threads of its own would only fight them for these.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

# What .venv must have been built from; kept in .venv/.built.
DESCRIBE = import sys; \
	sys.version_info >= (3, 11) or sys.exit("pymc_kmc needs Python 3.11 or newer, this is " + sys.version.split()[0]); \
	print(sys.base_prefix, sys.version.split()[0])

.PHONY: demo test lint venv clean

demo: venv $(VENV)/.compiled
	@# ArviZ 0.23 announces version 1 at every import: not what the demo is about.
	@PYTHONWARNINGS=ignore::FutureWarning:arviz $(VENV)/bin/python examples/glass_gp_classification.py --output $(DEMO_OUTPUT)

test: venv $(VENV)/.compiled
	@$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: venv
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

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
	$(VENV)/bin/python -m pip install -qq --editable '.[examples,test,bench,dask]' || exit 1; \
	echo "$$wanted" > $(VENV)/.built

# numba's cache on disk looks at the file of the outermost compiled function alone, while what it
# inlines comes from others too.
$(VENV)/.compiled: $(wildcard pymc_kmc/*.py pymc_kmc/*/*.py) | venv
	@find pymc_kmc -name '*.nb[ic]' -delete; touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find pymc_kmc tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
