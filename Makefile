# Every target runs in .venv. The packages come from the lock files in requirements/, with hashes; what they do not
# contain (torch, and packages of other platforms) has the version in constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LOCKED := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes
ONNXRUNTIME := $(if $(filter Darwin,$(shell uname)),onnxruntime,onnxruntime-gpu)
LOCKS := $(wildcard requirements/*.txt)
# The training graphs of adar_deploy/pretrained/. A graph that is named five times counts five times.
DATA ?= ../shared/data
GRAPHS ?= $(patsubst %,$(DATA)/%.npz,$(foreach time,1 2 3 4 5,arxiv-2023-text) more/acm more/acm more/blogcatalog more/actor \
	more/chameleon-filtered more/twitch-es more/flickr)

.PHONY: help install demo test coverage torture fuzz audit lock sbom check format docs pictures fingerprints pretrain pretrained-bundle selftest-bundle tritonclient triton contract clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | column -ts "$$(printf '\t')"

# What training, export and run need.
$(VENV)/demo-installed: pyproject.toml constraints.txt $(LOCKS) Makefile
	@echo "installing PyTorch, PyTorch Geometric, onnx and ONNX Runtime into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(LOCKED) -r requirements/build.txt -r requirements/export.txt -r requirements/$(ONNXRUNTIME).txt
	@$(PIP) torch  # not in the lock files: its file depends on the index (CPU or CUDA)
	@$(PIP) --no-build-isolation -e '.[export]'
	@touch $@

# Everything: all extras, tests, lint, types, documents.
$(VENV)/installed: $(VENV)/demo-installed
	@echo "installing the tools for tests, checks and documents into $(VENV)"
	@$(LOCKED) -r requirements/dev.txt
	@$(PIP) --no-build-isolation -e '.[dev]'
	@$(PIP) --no-build-isolation -e '.[rtx]' || echo "note: tensorrt-rtx is not available on this platform; its tests are skipped"
	@touch $@

install: $(VENV)/installed  ## create .venv with everything

demo: $(VENV)/demo-installed  ## train, export and run on the built-in graph, in build/demo; installs what it needs
	rm -rf build/demo && mkdir -p build/demo
	@echo "The demo trains for 200 epochs (--preset quick); the default recipe is slower and more accurate."
	cd build/demo && ../../$(BIN)/adar-deploy train --preset quick
	cd build/demo && ../../$(BIN)/adar-deploy export --opset 17
	cd build/demo && ../../$(BIN)/adar-deploy run runs/minesweeper/graph.pt --max-steps 300
	@echo "next: pip install 'adar-deploy[serve]', then in build/demo: adar-deploy serve bundle"

# One OpenMP thread per test process: more threads would wait for each other. Ray keeps processes and signal handlers, so its
# tests have a process of their own.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
# Each process takes one half of the tests, and then tests of the other's: so the tests of a file share their fixtures.
PARALLEL := -n 2 --dist worksteal
test: install  ## run all default tests (about ten minutes on two cores); installs everything
	$(PYTEST) $(PARALLEL) -m 'not torture and not ray'
	$(PYTEST) -n 0 -m 'not torture and ray' tests/distributed

coverage: install  ## run the default tests and print the line coverage; takes a quarter longer than the tests alone
	@mkdir -p build
	$(PYTEST) $(PARALLEL) -m 'not torture and not ray' --cov --cov-report=
	$(PYTEST) -n 0 -m 'not torture and ray' --cov --cov-append --cov-report=html tests/distributed
	@echo "line coverage: $$($(BIN)/coverage report --format=total) % (details in build/coverage/index.html)"

torture: install  ## run the long tests: every attack, 100 kills per command, 100,000 steps (about an hour)
	$(PYTEST) -n 0 -m torture --durations=20
	OMP_NUM_THREADS=1 ADAR_EXAMPLES=1000 $(BIN)/pytest -n 0 tests/properties

FUZZ_SECONDS ?= 600
fuzz: install  ## feed random bytes to every reader, mutated files to commands and requests to a server, ten minutes each (FUZZ_SECONDS)
	$(PIP) atheris
	mkdir -p build/fuzz
	$(BIN)/python fuzz/readers.py build/fuzz fuzz/corpus -max_total_time=$(FUZZ_SECONDS)
	$(BIN)/python -m fuzz.mutations build/fuzz-materials $(FUZZ_SECONDS)
	$(BIN)/python -m fuzz.requests $(FUZZ_SECONDS)

# pip-audit also succeeds when it could look up no package at all, so the packages are counted.
define COUNT_AUDITED
import json, sys
found = json.load(open("build/audit.json"))["dependencies"]
audited = sum("skip_reason" not in each for each in found)
print(f"{audited} of {len(found)} packages audited")
sys.exit(0 if audited else "error: no package could be looked up: run the audit where PyPI can be reached")
endef
export COUNT_AUDITED

audit: install  ## look for known vulnerabilities in the installed packages; needs a network
	$(PIP) pip-audit
	mkdir -p build
	$(BIN)/pip-audit --skip-editable --format json --output build/audit.json
	@$(BIN)/python -c "$$COUNT_AUDITED"

lock: install  ## write the lock files in requirements/ again; needs a network
	$(BIN)/python requirements/lock.py

sbom: install  ## list the installed packages in build/sbom.json (CycloneDX)
	$(PIP) cyclonedx-bom
	mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-format JSON --output-file build/sbom.json $(BIN)/python

check: install  ## check format, lint and types, as CI does
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## format the code and fix lint errors where ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install  ## build the documents as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: demo  ## draw the pictures of the documents again, from the demo's model
	$(BIN)/python -m docs.site.pictures build/demo/bundle build/demo/runs/minesweeper/graph.pt

# An environment of its own: the client needs other versions of protobuf and ml_dtypes.
build/tritonclient/installed: Makefile
	$(PYTHON) -m venv build/tritonclient
	build/tritonclient/bin/python -m pip install --quiet --disable-pip-version-check 'tritonclient[http,grpc]==2.73.0'
	@touch $@

tritonclient: install build/tritonclient/installed  ## test the server with NVIDIA's client; needs a network
	$(PYTEST) -n 0 tests/serve/test_triton_client.py

# The wheel contains the server itself, Triton 2.51. Only its files are used, so it needs none of its dependencies.
build/triton/installed: Makefile
	$(PYTHON) -m venv build/triton
	build/triton/bin/python -m pip install --quiet --disable-pip-version-check --no-deps nvidia-pytriton==0.7.0
	@touch $@

triton: install build/triton/installed  ## test the model repository with NVIDIA's Triton server (Linux, x86-64); needs a network
	$(PYTEST) -n 0 tests/serve/test_triton_server.py

# An environment of its own, like that of tritonclient.
build/contract/installed: Makefile
	$(PYTHON) -m venv build/contract
	build/contract/bin/python -m pip install --quiet --disable-pip-version-check 'schemathesis==4.32.5'
	@touch $@

contract: install build/contract/installed  ## send requests made from the OpenAPI document to a server, with schemathesis; needs a network
	OMP_NUM_THREADS=1 ADAR_EXAMPLES=50 $(BIN)/pytest -n 0 tests/serve/test_openapi.py

fingerprints: install  ## list the models that the exporter writes, which are the only ones that bundles may contain
	$(BIN)/python -m adar_export.fingerprints

pretrain: install  ## train the model in adar_deploy/pretrained/ again, on the graphs in DATA; continues from build/pretrain
	OMP_NUM_THREADS=1 $(BIN)/python -m adar_export.pretrained $(GRAPHS) --checkpoints build/pretrain --episodes build/episodes

pretrained-bundle: install  ## write adar_deploy/pretrained/ again from its own weights, after a change of the exporter
	OMP_NUM_THREADS=1 $(BIN)/python -m adar_export.pretrained --rewrite

selftest-bundle: install  ## write the bundles of `adar-deploy selftest` into the runtime
	$(BIN)/python -m adar_export.selftest_bundle

clean:  ## remove everything that these targets made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
