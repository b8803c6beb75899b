PYTHON ?= python3
JOBS   ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

VENV := .venv
PY   := $(VENV)/bin/python
# The folder is part of the key because an editable install points back at it.
KEY  := $(shell { cat pyproject.toml; pwd; } | cksum | cut -d' ' -f1)
CORE := $(VENV)/.core-$(KEY)
DEV  := $(VENV)/.dev-$(KEY)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Checks run one after the other, so that the first failure is the last thing printed.
.NOTPARALLEL:
.PHONY: help demo test quick lint types gates fix bench-cpu test-gpu bench-gpu clean

# $(call step,title,command,what to do when it fails)
define step
@echo "==> $(1)"
@$(2) || { echo "FAILED: $(1). $(3)" >&2; exit 1; }
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "  PYTHON=python3.12 chooses the interpreter of a new $(VENV); JOBS=8 the test workers."

demo: $(CORE) ## run the demo (no GPU needed)
	@$(PY) -m zoo.demo

test: lint types ## everything: lint, types, tests (gpu tests excepted)
	$(call step,pytest,$(PY) -m pytest -q -n $(JOBS),Rerun one test with: $(PY) -m pytest path::name)

quick: $(DEV) ## the tests that take no time
	$(call step,pytest (quick),$(PY) -m pytest -q -n $(JOBS) -m "not slow and not gpu",Rerun one test with: $(PY) -m pytest path::name)

lint: $(DEV) ## ruff check and ruff format --check
	$(call step,ruff check,$(PY) -m ruff check -q .,'make fix' repairs what it can.)
	$(call step,ruff format,$(PY) -m ruff format -q --check .,'make fix' formats.)

types: $(DEV) ## mypy --strict
	$(call step,mypy,$(PY) -m mypy --strict src/tilewright,)

# The wheel is unpacked, not installed: the library that is loaded first is the one in use.
NVRTC ?= 13.0
OTHER := $(VENV)/nvrtc-$(NVRTC)
gates: $(DEV) ## CUDA gates with another NVRTC: make gates NVRTC=13.0
	@test -d $(OTHER) || $(INSTALL) --no-deps --target $(OTHER) 'nvidia-cuda-nvrtc==$(NVRTC).*'
	$(call step,gates with NVRTC $(NVRTC),LD_LIBRARY_PATH=$$(echo $(OTHER)/nvidia/*/lib) LD_PRELOAD=$$(echo $(OTHER)/nvidia/*/lib/libnvrtc.so.*) $(PY) -m pytest -q tests/cuda/test_emit.py,)

fix: $(DEV) ## let ruff repair and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench-cpu: $(CORE) ## benchmark on the CPU
	@$(PY) -m zoo.bench

# A GPU machine brings its own Python with PyTorch and CUDA; nothing is installed there.
GPU_PY ?= python3
test-gpu: ## the tests that need a GPU, with the machine's own Python
	$(call step,pytest -m gpu,PYTHONPATH=src:. $(GPU_PY) -m pytest -q -m gpu tests/cuda,)

bench-gpu: ## races against cuBLAS, Triton and cuDNN; JSON into benchmarks/results
	@mkdir -p benchmarks/results
	@for family in gemm attention; do \
	  PYTHONPATH=src $(GPU_PY) benchmarks/$${family}_scheduled.py --out benchmarks/results/$${family}_scheduled.json \
	    || exit 1; done

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'pass' || { echo "error: '$(PYTHON)' does not run; install Python 3.10 or newer," \
	  "or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: Python 3.10 or newer is needed; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." \
	  "Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' has no venv or ensurepip module." \
	  "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; }

INSTALL := $(PY) -m pip install --disable-pip-version-check -qq --progress-bar off --log $(VENV)/pip.log

# $(call install,requirement)
# The pip of early Python 3.10 cannot install a pyproject.toml package editable.
define install
@echo "==> pip install -e $(1) (into $(VENV))"
@rm -f $(VENV)/.core-* $(VENV)/.dev-*
@$(INSTALL) 'pip>=21.3' && $(INSTALL) -e '$(1)' || { \
  echo "FAILED: pip install -e $(1). The full log is $(VENV)/pip.log" >&2; exit 1; }
endef

$(CORE): | $(PY)
	$(call install,.)
	@touch $@

$(DEV): | $(PY)
	$(call install,.[dev])
	@touch $(CORE) $@
