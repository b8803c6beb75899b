PYTHON ?= python3
JOBS   ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

VENV := .venv
PY   := $(VENV)/bin/python
# The folder is part of the key because an editable install points back at it.
KEY  := $(shell { cat pyproject.toml; pwd; } | cksum | cut -d' ' -f1)
CORE := $(VENV)/.core-$(KEY)
DEV  := $(VENV)/.dev-$(KEY)
WEB  := $(VENV)/.web-$(KEY)
SITE := $(VENV)/.site-$(KEY)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Checks run one after the other, so that the first failure is the last thing printed.
.NOTPARALLEL:
.PHONY: help demo test test-torch quick lint types size gates fix bench-cpu docs site nightly studio test-studio chromium test-gpu bench-gpu clean

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

STARTED := $(shell date +%s)
test: lint types size ## everything: lint, types, size, tests (gpu tests excepted)
	$(call step,pytest,$(PY) -m pytest -q -n $(JOBS) --ignore tests/torch,Rerun one test with: $(PY) -m pytest path::name)
	@echo "make test took $$(( $$(date +%s) - $(STARTED) )) s"

quick: $(DEV) ## the tests that take no time
	$(call step,pytest (quick),$(PY) -m pytest -q -n $(JOBS) -m "not slow and not gpu",Rerun one test with: $(PY) -m pytest path::name)

lint: $(DEV) ## ruff check and ruff format --check
	$(call step,ruff check,$(PY) -m ruff check -q .,'make fix' repairs what it can.)
	$(call step,ruff format,$(PY) -m ruff format -q --check .,'make fix' formats.)

types: $(DEV) ## mypy --strict
	$(call step,mypy,$(PY) -m mypy --strict,)

size: $(DEV) ## lines and tokens of the package, against their record
	$(call step,size,$(PY) -m devtools size,)

# One version, so that samples of operators and their graphs are those that the tests know.
TORCH ?= torch==2.13.0
test-torch: $(DEV) ## the PyTorch backend on the CPU; installs PyTorch into .venv when it is missing
	@$(PY) -c 'import torch, expecttest' 2>/dev/null || { echo "==> pip install $(TORCH)"; \
	  $(INSTALL) '$(TORCH)' expecttest; }
	$(call step,pytest tests/torch,$(PY) -m pytest -q -n $(JOBS) tests/torch,Rerun one test with: $(PY) -m pytest path::name)

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

docs: $(CORE) ## rewrite what is generated: reference, tutorial pages, the README's table, plots of speeds
	@$(PY) -m devtools reference
	@$(PY) examples/tutorial/pages.py
	@$(PY) benchmarks/tables.py
	@$(PY) benchmarks/plots.py

# Everything is read again: the menu of one page is a list on another.
site: $(SITE) build/gallery.html ## the documentation as a site in build/site; links that lead nowhere fail
	$(call step,site,$(PY) -m sphinx -q -W --keep-going -E -b html -c docs -d build/doctrees . build/site,)
	@cp build/gallery.html build/site && echo "open build/site/index.html"

GALLERY := $(wildcard examples/gallery/*.py examples/tutorial/*.py)
build/gallery.html: $(GALLERY) $(shell find src/tilewright -name '*.py' -o -path '*/page/*' -type f) | $(SITE)
	@mkdir -p build
	$(call step,gallery,$(PY) -m tilewright studio --gallery all --export $@ >build/gallery.log 2>&1,The log is build/gallery.log.)

# The page is built ahead and committed: only who changes it needs Node, and only its tests a browser.
MODULES := studio/node_modules/.package-lock.json
NPM     := npm --silent --prefix studio
$(MODULES): studio/package.json studio/package-lock.json
	@command -v npm >/dev/null || $(call apt,nodejs npm)
	@echo "==> npm ci (into studio/node_modules)"
	@npm ci --prefix studio --silent --no-audit --no-fund && touch $@

# $(call apt,packages): Debian's, where we may install them
apt = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "==> apt-get install $(1)" \
  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(1) >/dev/null; } \
  || { echo "error: $(1) is missing; on Debian and Ubuntu: apt-get install $(1)" >&2; exit 1; }

chromium:
	@command -v chromium >/dev/null || $(call apt,chromium fonts-dejavu-core)

studio: $(MODULES) ## build the studio's page
	$(call step,page,$(NPM) run build,)

test-studio: $(WEB) $(MODULES) chromium ## the studio in a real browser, and its page against its source
	$(call step,page: format,$(NPM) run lint,'npm run format' in studio repairs it.)
	$(call step,page: types,$(NPM) run types,)
	$(call step,page: unit tests,$(NPM) test,)
	$(call step,page: the committed build,$(NPM) run check,'make studio' builds it.)
	$(call step,pytest (browser),$(PY) -m pytest -q tests/studio_browser,)

NIGHTLY ?= 7200
nightly: $(DEV) ## 10,000 random schedules, mutants, wrong kernels, the zoo for every GPU; takes an hour
	$(call step,schedules,$(PY) -m devtools schedules zoo/schedules.py --count 10000 --jobs $(JOBS) --time $(NIGHTLY),A failure is printed as the command that repeats it.)
	$(call step,plans,$(PY) -m tests.formula.plans --count 2000,A failure prints the plan.)
	$(call step,plans of random formulas,$(PY) -m devtools.fuzz.formulas --count 2000 --target "cpu plans" --seconds $(NIGHTLY),A failure prints the formula and its plan.)
	$(call step,mutants,$(PY) -m tests.derived.run --jobs $(JOBS),)
	$(call step,chips,$(PY) -m devtools chips --jobs $(JOBS),)
	$(call step,sources on the host,$(PY) -m devtools extremes,)
	$(call step,ops,OPS_SIZES=3 $(PY) -m pytest -q -n $(JOBS) tests/ops/test_ops.py,Rerun one test with: OPS_SIZES=3 $(PY) -m pytest path::name)
	$(call step,wrong kernels,$(PY) -m devtools mutants,What is missed is listed with its line.)

# A GPU machine brings its own Python with PyTorch and CUDA; nothing is installed there. A shard or a
# family is what one command runs, and ends within ten minutes; more of them run one after the other.
GPU_PY  ?= python3
AT_MOST := timeout -k 10 590
# most of their time is compilation: several processes share the GPU where pytest-xdist is there
GPU_JOBS ?= 12
GPU_SIDE = $(shell $(GPU_PY) -c 'import xdist' 2>/dev/null && printf -- '-n $(GPU_JOBS)')
SHARD   ?= cuda peers cpu zoo rest
# only files that have such tests: importing the others may need packages the machine lacks
GPU_TESTS    = $(shell grep -rlE 'mark\.gpu\b|on_gpu\b' tests zoo --include='test_*.py')
TESTS_cuda   = $(filter tests/cuda/%,$(GPU_TESTS))
TESTS_peers := tests/test_peer_bugs.py
# what is compared with the interpreter on the CPU, and the zoo, whose targets are fixtures
TESTS_cpu   := $(addprefix tests/cpu/test_,numbers.py threads.py tiles.py)
TESTS_zoo   := zoo
TESTS_rest   = $(filter-out tests/cuda/% zoo/% $(TESTS_peers),$(GPU_TESTS))
test-gpu: $(addprefix test-gpu-,$(SHARD)) ## the tests that need a GPU; one shard: make test-gpu SHARD=cuda
test-gpu-%:
	$(if $(TESTS_$*),$(call step,pytest -m gpu: $*,PYTHONPATH=src:. $(AT_MOST) $(GPU_PY) -m pytest -q -m gpu $(GPU_SIDE) $(TESTS_$*),),@echo "==> pytest -m gpu: $*: no such tests")

MEMORY := softmax rms_norm layer_norm rms_norm_silu cross_entropy swiglu transpose
FAMILY ?= gemm gemm_more any_size derived_gemm derived_attention derived_mla derived_parts attention_backward attention attention_64 mla softmax host_cost $(addprefix memory_,$(MEMORY))
# Files of others that take turns with ours: Triton's 09-persistent-matmul.py, 02-fused-softmax.py and
# 05-layer-norm.py, TileLang's example_mla_decode.py
TRITON_TUTORIAL   ?=
TRITON_SOFTMAX    ?=
TRITON_LAYER_NORM ?=
TILELANG_MLA      ?=
BENCH_gemm         := gemm_scheduled.py --triton $(if $(TRITON_TUTORIAL),--triton-tutorial $(TRITON_TUTORIAL))
BENCH_gemm_more    := $(BENCH_gemm) --shapes 16384x16384x16384 2048x2048x2048 4096x14336x4096 4096x7168x2048 \
                      512x8192x8192 128x8192x8192 16x8192x8192
BENCH_any_size     := any_size.py
BENCH_attention    := attention_scheduled.py --kernels flash_attention flash_attention_causal --shapes 2x16x8192 2x16x2048
BENCH_attention_64 := attention_scheduled.py --kernels flash_attention_64 flash_attention_64_causal --shapes 2x16x8192 2x16x2048
BENCH_mla          := mla_scheduled.py $(if $(TILELANG_MLA),--tilelang $(TILELANG_MLA))
BENCH_softmax      := softmax_scheduled.py
BENCH_derived_gemm      := derived.py --attentions --decodes --triton
BENCH_derived_attention := derived.py --products --decodes
BENCH_derived_mla       := derived.py --products --attentions $(if $(TILELANG_MLA),--tilelang-mla $(TILELANG_MLA))
BENCH_derived_parts     := derived.py --parts --products 8192x8192x8192 4096x4096x4096 \
                           --attentions 2x16x8192x128 2x16x8192x64 --decodes 128x128x8192
BENCH_attention_backward := attention_backward.py
BENCH_host_cost    := host_cost.py
# tune_softmax and so on race our own sizes; not part of the default
$(foreach kernel,$(MEMORY),$(eval BENCH_memory_$(kernel) := memory_bound.py --kernels $(kernel)))
$(foreach kernel,$(MEMORY),$(eval BENCH_tune_$(kernel) := memory_bound.py --kernels $(kernel) --tune --rounds 5))
BENCH_memory_softmax    += $(if $(TRITON_SOFTMAX),--triton-softmax $(TRITON_SOFTMAX))
BENCH_memory_layer_norm += $(if $(TRITON_LAYER_NORM),--triton-layer-norm $(TRITON_LAYER_NORM))
bench-gpu: $(addprefix bench-gpu-,$(FAMILY)) ## races on a GPU, JSON into benchmarks/results; one family: make bench-gpu FAMILY=gemm
bench-gpu-%:
	$(call step,bench: $*,$(AT_MOST) $(GPU_PY) benchmarks/$(BENCH_$*) --out benchmarks/results/$*_gpu.json,)

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
@find $(VENV) -maxdepth 1 -name '.[a-z]*-*' ! -name '*-$(KEY)' -delete
@$(INSTALL) 'pip>=21.3' && $(INSTALL) -e '$(1)' || { \
  echo "FAILED: pip install -e $(1). The full log is $(VENV)/pip.log" >&2; exit 1; }
endef

$(CORE): | $(PY)
	$(call install,.)
	@touch $@

$(DEV): | $(PY)
	$(call install,.[dev])
	@touch $(CORE) $@

$(SITE): | $(PY)
	$(call install,.[site])
	@touch $(CORE) $@

$(WEB): | $(PY)
	$(call install,.[browser])
	@touch $(CORE) $(DEV) $@
