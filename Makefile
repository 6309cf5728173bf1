# Everything runs in .venv, which `make install` makes from constraints.txt with every extra that can
# be had on this machine.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help install demo test torture fuzz audit check format docs pictures clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | column -ts "$$(printf '\t')"

install: $(VENV)/installed  ## make .venv with every extra that can be had here

$(VENV)/installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch  # first and alone: constraints.txt pins a build that other packages must not replace
	$(PIP) -e '.[dev]'
	@$(PIP) -e '.[rtx]' || echo "note: tensorrt-rtx is not to be had here; what needs it is skipped"
	@touch $@

demo: install  ## train, export and run on the embedded data set, in build/demo
	rm -rf build/demo && mkdir -p build/demo
	cd build/demo && ../../$(BIN)/adar-deploy train
	cd build/demo && ../../$(BIN)/adar-deploy export --opset 17
	cd build/demo && ../../$(BIN)/adar-deploy run runs/minesweeper/graph.pt --max-steps 300

test: install  ## all default tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2  # one thread a worker: more would wait for each other

torture: install  ## the long form: every attack, 100 kills a command, 100,000 steps (an hour or so)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 -m torture --durations=20
	OMP_NUM_THREADS=1 ADAR_EXAMPLES=1000 $(BIN)/pytest -n 0 tests/properties

FUZZ_SECONDS ?= 600
fuzz: install  ## ten minutes of random bytes to everything that reads (FUZZ_SECONDS for more)
	$(PIP) atheris
	mkdir -p build/fuzz
	$(BIN)/python fuzz/readers.py build/fuzz fuzz/corpus -max_total_time=$(FUZZ_SECONDS)

define COUNT_AUDITED
import json, sys
found = json.load(open("build/audit.json"))["dependencies"]
audited = sum("skip_reason" not in each for each in found)
print(f"{audited} of {len(found)} packages audited")
sys.exit(0 if audited else "error: nothing could be looked up: audit where PyPI can be reached")
endef
export COUNT_AUDITED

audit: install  ## known holes in what is installed; needs a network
	$(PIP) pip-audit
	mkdir -p build
	$(BIN)/pip-audit --skip-editable --format json --output build/audit.json
	@$(BIN)/python -c "$$COUNT_AUDITED"  # pip-audit is content where it could look nothing up

check: install  ## format, lint and types, as CI sees them
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## let ruff mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install  ## the documents as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: demo  ## the pictures of the documents anew, from the demo's model
	$(BIN)/python -m docs.site.pictures build/demo/bundle build/demo/runs/minesweeper/graph.pt

clean:  ## remove everything that was made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
