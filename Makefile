# Everything runs inside .venv, which `make venv` creates from the lock file; the other targets call it by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# For two cores: quick tests compute all the time; the others wait for processes, servers and disks as often.
QUICK_WORKERS ?= 2
WORKERS ?= 4
# Bytecode is kept whatever the environment asks: each of the hundreds of processes that tests start would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
QUICK := not (spark or server or process or fuzz or slow)

.DEFAULT_GOAL := help
.PHONY: help venv demo console screenshots browser check test lint format types proto proto-check docs wheel-test lock bench bench-commit bench-verbs bench-writers bench-cliffs bench-lake bench-object-store bench-spark bench-tpch bench-console bench-scale cluster-test dbt-test pipelines-test spark-versions prove prove-tests prove-lakes prove-merges prove-runs coverage mutants clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

venv: $(STAMP) ## Create .venv with everything in it

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Satellite readings through Spark: runners, corrections, compaction and a reader at once, one of them killed
	rm -rf .demo
	$(BIN)/python examples/telemetry/demo.py --keep .demo $(ARGS)

console: $(STAMP) ## Serve the demo's lake with its console; make demo comes first; ARGS="--port 8080" for another port
	@test -d .demo/lake || { echo "There is no lake yet: run make demo first."; exit 1; }
	$(BIN)/tiltyard serve .demo/lake $(ARGS)

screenshots: $(STAMP) browser ## Take pictures of every page of the console, in build/screenshots; ARGS="--docs" renews those of the documentation
	$(BIN)/python -m tools.screenshots $(ARGS)

browser: ## Install Chromium for the tests of the console, where Debian's packages can be had; say so where they cannot
	@sh tools/install_chromium.sh

# Spark's classes as a JVM maps them; some forty JVMs of tests start with half the processor time then, and without it where it cannot be made.
$(VENV)/spark-classes.jsa: $(STAMP)
	-@$(BIN)/python -m tests.support.spark_classes 2>$(VENV)/spark-classes.log

test: $(STAMP) browser $(VENV)/spark-classes.jsa ## Run all tests, docs examples included; starts the servers it needs
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(ARGS),$(ARGS),-p tools.coverage_gate)

check: lint ## Lint, types, imports, and every quick test: no process, server or JVM; before each commit
	$(BIN)/python -m pytest -q -n $(QUICK_WORKERS) --dist worksteal -m "$(QUICK)" $(ARGS)

coverage: $(STAMP) ## Fail unless tests take every branch of transaction/; part of test
	$(BIN)/python -m tools.coverage_gate -n $(WORKERS) $(ARGS)

mutants: $(STAMP) ## Plant bugs in copies of the code and see that the tests notice each
	$(BIN)/python tools/mutants.py $(ARGS)

lint: $(STAMP) types ## Check style, types, imports, dependencies, spelling and generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/codespell
	$(MAKE) --no-print-directory proto-check

types: $(STAMP) ## Check types, strictly
	$(BIN)/mypy

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## Generate the protobuf code
	$(BIN)/python tools/generate_proto.py

proto-check: $(STAMP) ## Fail if the generated protobuf code is not in step with lance.proto
	$(BIN)/python tools/generate_proto.py --check

docs: $(STAMP) ## Build the documentation as a site in site/; a dead link fails
	$(BIN)/python -m bench.plots --check
	$(BIN)/python -m bench.pages --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel-test: $(STAMP) ## Build the wheel, install it in an empty environment without Spark and use it there
	$(BIN)/python tools/wheel_smoke.py $(ARGS)

lock: ## Write requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group docs --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o requirements.lock $(ARGS)

bench: $(STAMP) ## Measure Tiltyard beside pylance, delta-rs, pyiceberg and DuckLake, and write the page; ARGS="--quick" for a look
	$(BIN)/python -m bench.peers $(ARGS)
	$(BIN)/python -m bench.pages

bench-commit: $(STAMP) ## Measure commits against pylance, interleaved in one run
	$(BIN)/python -m bench.commit $(ARGS)

bench-verbs: $(STAMP) ## Measure the verbs against pylance: time, processor and memory
	$(BIN)/python -m bench.verbs $(ARGS)

bench-writers: $(STAMP) ## Measure many writers of one table, ours and pylance's in turn
	$(BIN)/python -m bench.writers $(ARGS)

bench-cliffs: $(STAMP) ## Measure verbs on very large tables against pylance: time and memory in fresh processes
	$(BIN)/python -m bench.cliffs $(ARGS)

bench-lake: $(STAMP) ## Measure what the catalog of a lake costs
	$(BIN)/python -m bench.lake $(ARGS)

bench-object-store: $(STAMP) ## Measure appends on an S3-like store behind a delaying proxy, ours and pylance's in turn
	$(BIN)/python -m bench.object_store $(ARGS)

bench-spark: $(STAMP) ## Measure Spark on Lance tables against Spark on Parquet
	$(BIN)/python -m bench.spark $(ARGS)

bench-tpch: $(STAMP) ## Ask the 22 questions of TPC-H of Spark over a lake's tables and over Parquet, in turn; ARGS="--scale 0.1" for a look
	$(BIN)/python -m bench.tpch $(ARGS)

bench-console: $(STAMP) ## Measure pages of the console on a lake of 1,000 snapshots and 200 tables: answers, and first paints in Chromium
	$(BIN)/python -m bench.console $(ARGS)

bench-scale: $(STAMP) ## Simulate up to 10,000 writers: the real commit code in virtual time; ARGS="--quick" for half a minute
	$(BIN)/python -m bench.scale $(ARGS)
	$(BIN)/python -m bench.pages

cluster-test: $(STAMP) ## Run the example pipeline and speculative tasks on a Spark cluster of two workers on this machine
	$(BIN)/python -m tools.cluster_test $(ARGS)

spark-versions: $(STAMP) ## Run the tests of SQL on other releases of Spark than the lock's, each fetched into build/
	$(BIN)/python -m tools.spark_versions $(ARGS)

dbt-test: $(STAMP) ## Run the dbt example on a lake, with dbt in an environment of its own; part of test
	$(BIN)/python -m pytest -q -rs tests/spark/test_other_tools.py -k dbt

pipelines-test: $(STAMP) ## Run the example of Spark's own pipelines on a lake: also again from the start; its short form is part of test
	TILTYARD_PROVE=1 $(BIN)/python -m pytest -q tests/spark/test_other_tools.py -k pipelines

prove-tests: $(STAMP) ## Run all tests in their long form: every kill point, every catalog, S3 too; ARGS="tests/spark" for a part
	TILTYARD_PROVE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -o timeout=7200 $(ARGS)

prove-lakes: $(STAMP) ## Walk a million steps over lakes: catalogs lost and restored, branches, foreign writers, kills; ARGS="--count 100" for fewer
	$(BIN)/python -m tools.prove --lakes $(ARGS)

prove-merges: $(STAMP) ## Make 200,000 merges of branches beside a model on plain rows; ARGS="--first-seed 3000 --count 500" for some of them
	$(BIN)/python -m tools.prove --merges $(ARGS)

prove-runs: $(STAMP) ## Run the simulator over a million seeds; ARGS="--count 20000" for fewer
	$(BIN)/python -m tools.prove $(ARGS)

prove: ## All four, each to its end, whatever became of the others: the long form of each proof, with figures
	@failed=; for step in prove-tests prove-lakes prove-merges prove-runs; do \
		$(MAKE) --no-print-directory $$step ARGS= || failed="$$failed $$step"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
