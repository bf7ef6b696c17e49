# make demo | test | test-all | test-docker | test-oracle | test-oci | portable | coverage | langgraph-suite
#      | langgraph-redis | pyagenity | lint | docs | matrix | oldest | bench | sessions | campaign | release | clean
#
# Every target but demo makes its own virtual environment in .venv first, with the first Python >= 3.11
# that is found; name another one with PYTHON=/path/to/python.

VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip
INSTALL := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python .ci/install
# Without bytecode, each of the hundreds of processes that tests start compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
# A process per core: each imports every framework and has servers of its own. A test that hangs
# shows where.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := $(BIN)/python -m pytest -n auto -o faulthandler_timeout=300
QUICK := -q -p no:cacheprovider
# One contract per kind of storage is enough to tell that a Python differs.
CONTRACTS := tests/contracts/test_checkpointers.py tests/contracts/test_backends.py
SHORT := --everyday --storage memory --storage sqlite

.PHONY: help demo test tests test-all changed coverage-tiers test-docker test-oracle test-oci portable langgraph-suite langgraph-redis \
	pyagenity coverage lint format docs site screenshots matrix short oldest bench sessions campaign release clean

help:
	@echo "make demo      a conversation survives its process: the whole story, in a minute"
	@echo "make test      lint, types, and the everyday tests: before a commit"
	@echo "make test-all  every test once: before a part is closed, and before a release"
	@echo "make changed   what make test leaves out, of the folders that changed"
	@echo "make test-docker  the tests of PostgreSQL and Redis on other versions of them, in containers"
	@echo "make portable  the tests that need no server, without what Windows lacks"
	@echo "make test-oracle  the suites on a real Oracle Database, or a container of one"
	@echo "make test-oci  the suites on a real bucket of OCI"
	@echo "make langgraph-suite  LangGraph's own tests on our saver and store, on each storage"
	@echo "make langgraph-redis  the import of LangGraph's RedisStore, with that store"
	@echo "make pyagenity  the graphs of PyAgenity and AgentFlow, each in an environment of its own"
	@echo "make coverage  the tests again, by lines and branches: half as long again"
	@echo "make coverage-tiers  do the everyday tests cover what all tests cover?"
	@echo "make lint      lint and types only"
	@echo "make format    let ruff fix what it can"
	@echo "make docs      run every code block of the README and docs/, and build the site in site/"
	@echo "make screenshots  each page of the inspector as a picture, and those of its documentation"
	@echo "make matrix    a short run of the tests under every other Python >= 3.11 that is installed"
	@echo "make oldest    a short run on the oldest versions that pyproject.toml allows"
	@echo "make bench     measure beside LangGraph's savers and stores; writes benchmarks/results/"
	@echo "make sessions  measure session memory beside AgentFlow's, which needs Python 3.12"
	@echo "make campaign  the long storms, kill -9 trials, lost replies and hostile requests"
	@echo "make release   VERSION=1.2.3: build and check the sdist and the wheel"
	@echo "make clean     remove the virtual environments and caches"

# In a folder of its own: README has the user make .venv.
demo:
	@$(MAKE) --no-print-directory VENV=.venv-demo run-demo

.PHONY: run-demo
run-demo: $(VENV)/.agent
	@$(BIN)/python examples/conversation.py $(if $(URL),--url "$(URL)")

test: lint tests

# All, or a part: PART="tests/cli tests/session"; PART=rest is what stands in none of these folders.
FOLDERS := tests/adapters tests/backends tests/cli tests/session
tests: $(VENV)/.dev
	$(PYTEST) $(if $(filter rest,$(PART)),$(FOLDERS:%=--ignore=%) tests,$(PART))

# The suites on the images of tests/containers.py, one after the other.
test-docker: $(VENV)/.dev
	@docker info >/dev/null || { echo "start Docker first" >&2; exit 1; }
	@PYTHONPATH=tests $(BIN)/python -m containers | while read -r name image folders; do \
		echo "--- $$image"; \
		env CI=true "LOCUS_TEST_$${name}_IMAGE=$$image" $(PYTEST) -k "$$name" $$folders </dev/null || exit 1; \
	done

test-all: lint
	LOCUS_TEST_ALL=1 $(PYTEST)

# What `make test` leaves out of the folders that changed since the commit in .ci/passed, and an
# eighth of the rest.
changed: $(VENV)/.dev
	@options=$$(.ci/changed) && echo "$$options" && $(PYTEST) $$options tests

# The lines that `make test` covers, and those of `make test-all`; an hour.
coverage-tiers: $(VENV)/.dev
	COVERAGE_FILE=.coverage.everyday $(PYTEST) -q --cov --cov-report= || true
	COVERAGE_FILE=.coverage.all LOCUS_TEST_ALL=1 $(PYTEST) -q --cov --cov-report= || true
	$(BIN)/python .ci/coverage-tiers

# On a real bucket: LOCUS_TEST_OCI_BUCKET, _NAMESPACE and _PROFILE name it. Its objects below the
# prefix locus-store-test/ are removed.
test-oci: $(VENV)/.dev
	@test -n "$$LOCUS_TEST_OCI_BUCKET" || { echo "set LOCUS_TEST_OCI_BUCKET, _NAMESPACE and _PROFILE"; exit 1; }
	LOCUS_TEST_ALL=1 $(BIN)/python -m pytest -s tests/backends/oci/full/test_oci_live.py

# The tests that need no server and nothing of POSIX, with what Windows lacks taken away.
portable: $(VENV)/.dev
	$(BIN)/python .ci/portable --without-posix

# On a real Oracle Database: LOCUS_TEST_ORACLE_DSN, _USER, _PASSWORD (_WALLET, _WALLET_PASSWORD)
# name one, else a container is started, which needs Docker.
test-oracle: $(VENV)/.dev
	@if test -z "$$LOCUS_TEST_ORACLE_DSN" && ! docker info >/dev/null 2>&1; then \
		echo "name a database (LOCUS_TEST_ORACLE_DSN, _USER, _PASSWORD), or start Docker" >&2; exit 1; \
	fi
	@LOCUS_TEST_ALL=1 LOCUS_TEST_ORACLE_CONTAINER=1 $(BIN)/python -m pytest tests/backends/oracle/full/test_oracle_live.py

# LangGraph's source distribution of that version, and the versions of other packages that its
# snapshots were taken with, which stand in pyproject.toml. "official" is the baseline.
LANGGRAPH := 1.2.22
SUITES ?= official sqlite postgresql redis memory
SUITE := build/langgraph-$(LANGGRAPH)

langgraph-suite: $(SUITE)/.ready
	@for storage in $(SUITES); do \
		echo "--- LangGraph's tests on $$storage"; \
		(cd $(SUITE) && LOCUS_SUITE=$$storage PYTHONPATH=$(CURDIR)/tests:. \
			../langgraph-venv/bin/python -m pytest -p langgraph_suite -q -o addopts= -n auto tests) || exit 1; \
	done

$(SUITE)/.ready: pyproject.toml $(VENV)/.base
	@$(BIN)/python -m venv --clear build/langgraph-venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 build/langgraph-venv/bin/python -m pip install -q --upgrade "pip>=25.1"
	@PIP_DISABLE_PIP_VERSION_CHECK=1 build/langgraph-venv/bin/python -m pip install -q \
		--editable ".[langgraph,postgres,redis]" "langgraph==$(LANGGRAPH)" --group langgraph-suite
	@build/langgraph-venv/bin/python -m pip download -q --no-deps --no-binary langgraph -d build "langgraph==$(LANGGRAPH)"
	@tar -xzf $(SUITE).tar.gz -C build
	@touch $@

langgraph-redis:
	@$(MAKE) --no-print-directory VENV=.venv-langgraph-redis langgraph-redis-tests

.PHONY: langgraph-redis-tests
langgraph-redis-tests: $(VENV)/.langgraph-redis
	$(BIN)/python -m pytest $(QUICK) -k redis tests/adapters/langgraph/test_import_langgraph_store.py

# Both libraries need Python 3.12, and they pin different versions of injectq.
pyagenity:
	@for python in $$(PYTHON="$(PYTHON)" .ci/pythons); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' && found=$$python && break; \
	done; \
	if test -z "$$found"; then \
		echo "skipped: PyAgenity and AgentFlow need Python 3.12, and none is installed"; exit 0; \
	fi; \
	for library in pyagenity agentflow; do \
		echo "--- $$library"; \
		$(MAKE) --no-print-directory PYTHON="$$found" VENV=.venv-$$library LIBRARY=$$library pyagenity-tests \
			|| exit 1; \
	done

.PHONY: pyagenity-tests
pyagenity-tests: $(VENV)/.$(LIBRARY)
	$(BIN)/python -m pytest -n 2 $(QUICK) tests/adapters/pyagenity

coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term

# PyPI has no wheel of it: what its package installs comes from GitHub.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/english
	$(BIN)/python .ci/names
	$(BIN)/python .ci/schemas
	$(BIN)/zizmor -q --offline --min-severity medium .github/workflows
	@if test -x $(BIN)/hadolint; then $(BIN)/hadolint deploy/Dockerfile; \
	else echo "deploy/Dockerfile: not linted, hadolint has no wheel for this machine"; fi
	@if GOBIN=$(abspath $(BIN)) go install $(ACTIONLINT) 2>/dev/null; then $(BIN)/actionlint -no-color; \
	else echo ".github/workflows: not linted with actionlint: Go is missing, or cannot fetch it"; fi

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Offline; a warning, such as a broken link, is an error. `make test` builds the site too.
docs: site
	$(PYTEST) $(QUICK) tests/full/test_docs.py tests/full/test_site.py
	@echo "open site/index.html"

site: $(VENV)/.dev
	$(BIN)/python docs/images/draw.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d site/.trees docs site

# The pictures of docs/, and each page of the inspector in build/screenshots, to be looked at.
screenshots: $(VENV)/.dev
	$(BIN)/python docs/images/recording.py
	$(BIN)/python docs/images/screenshots.py build/screenshots

# VERSION=1.2.3: the sdist and wheel in dist/, the notes and the bill of materials in build/release/.
release: $(VENV)/.dev
	$(BIN)/python .ci/release $(VERSION)

# The default Python is the one of `make test`; each other one gets an environment of its own.
matrix:
	@failed=; others=$$(PYTHON="$(PYTHON)" .ci/pythons | tail -n +2); \
	test -n "$$others" || echo "no other Python >= 3.11 is installed: nothing to do"; \
	for python in $$others; do \
		name=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "--- Python $$name"; \
		$(MAKE) --no-print-directory PYTHON="$$python" VENV=.venv-$$name short-tests \
			|| failed="$$failed $$name"; \
	done; \
	test -z "$$failed" || { echo "failed under Python$$failed" >&2; exit 1; }

# With the default Python. SQLite, PostgreSQL and Valkey, each by one contract; the agent; imports.
oldest:
	@$(MAKE) --no-print-directory VENV=.venv-oldest oldest-tests

.PHONY: oldest-tests
oldest-tests: $(VENV)/.oldest
	$(PYTEST) $(QUICK) $(SHORT) --storage redis --storage postgresql $(CONTRACTS) \
		tests/test_limits.py tests/test_state.py tests/test_encoding.py tests/adapters/locus/test_agent.py \
		tests/backends/http/test_http.py tests/backends/oci/test_oci.py tests/service/test_access.py \
		tests/backends/redis/test_redis_sentinels.py

# With one Python: what `make matrix` runs with each other one.
short: short-tests

.PHONY: short-tests
short-tests: $(VENV)/.short
	$(PYTEST) $(QUICK) $(SHORT) $(CONTRACTS) tests/test_state.py tests/test_encoding.py \
		tests/adapters/locus/test_agent.py

bench: $(VENV)/.bench
	@for module in growth postgresql postgresql_writers concurrency sync_calls store_calls \
			langgraph_peers langgraph_lists graph_steps process_start; do \
		$(BIN)/python -m benchmarks.comparisons.$$module --write || exit 1; \
	done
	$(BIN)/python -m benchmarks.comparisons.postgresql_writers --lazy --write
	$(BIN)/python -m benchmarks.comparisons.store --million --write
	$(BIN)/python -m benchmarks.micro.loads --write
	$(BIN)/python -m benchmarks.micro.graph_loads --write
	$(BIN)/python -m benchmarks.micro.redis_calls --write
	$(BIN)/python -m benchmarks.micro.timeline --write
	$(BIN)/python -m benchmarks.micro.timeline --postgresql --write
	$(BIN)/python -m benchmarks.micro.inspector --large --write
	$(BIN)/python -m benchmarks.micro.inspector --postgresql --write
	$(BIN)/python docs/images/draw.py

# AgentFlow needs Python 3.12, and pins packages that the tests have in other versions.
AGENTFLOW := 0.10.1
SESSIONS := build/agentflow-venv

sessions: $(SESSIONS)/.ready
	$(SESSIONS)/bin/python -m benchmarks.comparisons.sessions --write

$(SESSIONS)/.ready: pyproject.toml
	@python=$$(.ci/pythons | while read -r it; do \
		"$$it" -c 'import sys; sys.exit(sys.version_info < (3, 12))' && echo "$$it" && break; done); \
	test -n "$$python" || { echo "AgentFlow needs Python 3.12 or later" >&2; exit 1; }; \
	"$$python" -m venv --clear $(SESSIONS)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(SESSIONS)/bin/python -m pip install -q --upgrade "pip>=25.1"
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(SESSIONS)/bin/python -m pip install -q --group test \
		--editable ".[agentflow,postgres,redis]" "10xscale-agentflow[pg_checkpoint]==$(AGENTFLOW)"
	@touch $@

campaign: $(VENV)/.bench
	$(BIN)/python -m benchmarks.storms.storm
	$(BIN)/python -m benchmarks.storms.kills
	$(BIN)/python -m benchmarks.storms.storm --postgresql --processes 8 --saves 10000
	$(BIN)/python -m benchmarks.storms.storm --postgresql --processes 8 --saves 3000 --index
	$(BIN)/python -m benchmarks.storms.kills --postgresql
	$(BIN)/python -m benchmarks.storms.storm --service --kills 50
	$(BIN)/python -m benchmarks.storms.storm --service --kills 50 --postgresql
	LOCUS_TEST_LONG=1 $(PYTEST) $(QUICK) tests/full/test_framework_storm.py tests/full/test_turns_stopped.py
	LOCUS_TEST_KILLS=125 $(PYTEST) $(QUICK) tests/full/test_effect_kills.py
	LOCUS_TEST_ROWS=1000000 $(PYTEST) $(QUICK) tests/encryption/full/test_tampering_at_length.py
	LOCUS_TEST_ROWS=20000 $(PYTEST) $(QUICK) tests/encryption/full/test_tampered_rows_at_length.py
	LOCUS_TEST_LONG=1 $(PYTEST) tests/backends/http/full/test_http_network.py tests/service/full/test_two_tenants.py \
		tests/service/full/test_hostile_requests.py tests/service/full/test_openapi.py \
		tests/inspector/full/test_hostile_content.py tests/inspector/full/test_other_origins.py \
		tests/backends/opensearch/full/test_opensearch_answers.py \
		tests/backends/postgresql/test_replicas.py
	$(BIN)/python -m benchmarks.storms.crashes
	$(BIN)/python -m benchmarks.storms.replies
	LOCUS_TEST_HISTORIES=50000 $(PYTEST) $(QUICK) tests/timeline/test_blame.py
	$(BIN)/python -m benchmarks.storms.storm --oci --saves 2000
	$(BIN)/python -m benchmarks.storms.kills --oci
	LOCUS_TEST_LONG=1 $(PYTEST) tests/backends/opensearch
	$(BIN)/python -m benchmarks.storms.nodes
	$(BIN)/python -m benchmarks.storms.sentinels
	mkdir -p build && cp benchmarks/records/failovers.jsonl build/
	$(BIN)/python -m benchmarks.storms.failovers --trials 50 --clusters 2 --pace 1 --record build/failovers.jsonl --write
	cp build/failovers.jsonl benchmarks/records/
	LOCUS_TEST_ALL=1 $(PYTEST) tests/backends/oci/full/test_oci_kills.py tests/backends/oci/full/test_oci_double.py

clean:
	rm -rf site .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*

# --- environments: made once, brought up to date when pyproject.toml changes

$(VENV)/.base: .ci/pythons
	@python="$$(PYTHON="$(PYTHON)" .ci/pythons | head -n 1)"; \
	if test -z "$$python"; then \
		echo "There is no Python >= 3.11 with venv and sqlite3 here. Install one (on Debian and" >&2; \
		echo "Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" -V), once ..."; \
	"$$python" -m venv --clear $(VENV)
	@$(PIP) install -q --upgrade "pip>=25.1" uv || $(PIP) install -q --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.agent: pyproject.toml $(VENV)/.base
	@$(INSTALL) --editable ".[agent,postgres]"
	@touch $@

SHORT_EXTRAS := agent,http,langgraph,oci,otel,oracle,postgres,redis,service,vectors

$(VENV)/.dev: pyproject.toml $(VENV)/.base
	@$(INSTALL) --editable . --group dev
	@touch $@ $(VENV)/.agent

# What it installs is older than what .dev does: only in an environment of its own.
$(VENV)/.oldest: pyproject.toml .ci/oldest $(VENV)/.base
	@$(BIN)/python .ci/oldest > $(VENV)/constraints.txt
	@$(INSTALL) --constraint $(VENV)/constraints.txt --group test --editable ".[$(SHORT_EXTRAS)]"
	@touch $@

$(VENV)/.short: pyproject.toml $(VENV)/.base
	@$(INSTALL) --group test --editable ".[$(SHORT_EXTRAS)]"
	@touch $@

$(VENV)/.langgraph-redis: pyproject.toml $(VENV)/.base
	@$(INSTALL) --editable ".[langgraph,postgres,redis]" --group langgraph-redis
	@touch $@

$(VENV)/.pyagenity $(VENV)/.agentflow: pyproject.toml $(VENV)/.base
	@$(INSTALL) --editable ".[$(LIBRARY),postgres,redis]" --group $(LIBRARY)
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.dev
	@$(INSTALL) --editable . --group bench
	@touch $@
