# What people and CI call. `make help` lists it.

PYTHON ?= python3
ARGS ?=
# Processes that run the tests.
WORKERS ?= 2
# Another package index to look for torch in, e.g. https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CODE := src tests bench tools setup.py
NATIVE := setup.py $(wildcard src/quire/models/native/*.cpp src/quire/models/native/*.h)
PIP_ARGS := --disable-pip-version-check -c constraints.txt $(addprefix --extra-index-url ,$(TORCH_INDEX))

.PHONY: help serve test check fmt bench wheel readme clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(READY)  ## serve the bundled model, or ARGS="MODEL --flag ..."
	$(BIN)/quire serve $(ARGS)

test: check wheel  ## everything CI runs: checks, wheel, tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(READY)  ## style, types, walls between rooms, file length
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@find $(CODE) -name '*.py' -exec awk \
		'FNR == 401 { print FILENAME ": over 400 lines"; long = 1 } END { exit long }' {} +

fmt: $(READY)  ## format, and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench: $(READY)  ## what a step costs beside the model
	$(BIN)/python -m bench.engine_overhead $(ARGS)

wheel: $(READY)  ## build the wheel, install it in a clean environment, import every room
	rm -rf build dist
	$(BIN)/python -m build --wheel
	$(BIN)/python -m tools.check_wheel dist/*.whl $(PIP_ARGS)

readme: $(READY)  ## refresh the generated tables in README.md and docs/
	$(BIN)/python -m tools.generated_docs

clean:  ## remove everything that was made here
	rm -rf $(VENV) build dist src/quire.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		src/quire/models/native/*.so

# Python 3.11 or newer, then everything at the versions of constraints.txt.
$(READY): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Quire needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_ARGS) -e ".[test]"
	@touch $@
