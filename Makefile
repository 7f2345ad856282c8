# `make test` and `make demo` are all a newcomer needs; both set up .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
comma := ,
# Small matrices on a few shared cores: threads that wait for each other cost more than they bring.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-slow peers gpu lint bench audit mutants faults tutorials scripts docs dist oldest newest clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       see it work: a private search, a model with nothing tuned, a front (a minute after installation)"
	@echo "make test       the test suite"
	@echo "make test-slow  the longer checks"
	@echo "make peers      other projects' own tests, and their users' programs, on this package"
	@echo "make gpu        the tests and the trainers' times on a GPU (BOTORCH_DP_TEST_DEVICE, cuda by default)"
	@echo "make lint       ruff and mypy"
	@echo "make bench      every claim about speed and quality, measured again (many hours; python -m benchmarks lists them)"
	@echo "make audit      try to break every mechanism, a million draws each"
	@echo "make mutants    break each line that carries a proof, and see a test fail"
	@echo "make faults     kill, tear, flip, fill the disk, send junk: what was lost (nothing)"
	@echo "make tutorials  execute the notebooks"
	@echo "make scripts    run examples/paid_tuning, each with what its guide installs in an environment of its own"
	@echo "make docs       the documentation site, into site/"
	@echo "make dist       build the package, and try it in clean environments, with each extra"
	@echo "make oldest     the tests with the oldest versions that pyproject.toml admits, but TORCH=2.13.0 of torch, say"
	@echo "make newest     the tests with the newest ones"
	@echo "make clean      remove .venv and everything generated"

# Reinstalled only when the dependencies change; the package itself is linked, not copied.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)

# The demonstration needs little, and its first figure should not wait for what tests need.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(call install,plots$(comma)sklearn)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.demo)
	@$(BIN)/python -m examples.demo

test: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist loadgroup -rs

test-slow: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m slow -rs

peers: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pyright[nodejs]'
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "slow or not slow" -rs tests/peers

# Stops at once where there is no such device. One process: tests would share the device's memory.
gpu: export BOTORCH_DP_TEST_DEVICE ?= cuda
gpu: $(STAMP)
	@$(BIN)/python -m pytest -q
	@$(BIN)/python -m benchmarks.trainers --part time --device $(BOTORCH_DP_TEST_DEVICE)

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python -m benchmarks --all

audit: $(STAMP)
	@$(BIN)/python -m benchmarks.audit

mutants: $(STAMP)
	@$(BIN)/python -m tools.mutants

faults: $(STAMP)
	@$(BIN)/python -m tools.faults

tutorials: $(STAMP)
	@$(BIN)/python tutorials/execute.py

scripts: $(STAMP)
	@for wanted in "opacus .[sklearn]" "jax . jax scikit-learn" "huggingface .[huggingface]" "sklearn .[sklearn]"; do \
		set -- $$wanted; name=$$1; shift; \
		echo "Trying examples/paid_tuning/$${name}_after.py with $$* ..."; \
		$(PYTHON) -m venv --clear build/script || exit 1; \
		build/script/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$@" || exit 1; \
		(cd build && script/bin/python ../examples/paid_tuning/$${name}_after.py) || exit 1; \
	done

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html"

dist: $(STAMP)
	@$(BIN)/python -m tools.dist

# uv finds the versions, and pip installs them, so that torch comes from where pip finds it.
oldest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
oldest newest:
	@$(PYTHON) -m venv --clear build/$@
	@build/$@/bin/python -m pip install --quiet --disable-pip-version-check uv
	@echo $(if $(TORCH),torch==$(TORCH)) | build/$@/bin/uv pip compile --quiet --constraint - --extra dev pyproject.toml \
		--resolution $(RESOLUTION) --output-file build/$@.txt
	@build/$@/bin/python -m pip install --quiet --disable-pip-version-check -c build/$@.txt -e '.[dev]'
	@PYTHONDONTWRITEBYTECODE= build/$@/bin/python -m pytest -q -n 2 --dist loadgroup -rs

clean:
	rm -rf $(VENV) build dist site *.egg-info demo .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
