# The README's two commands are `make quickstart` and `make test`. Each installs what it needs.
# All builds share one target folder outside the clone, so that a fresh clone compiles only its own crates.
export LARDER_CACHE ?= $(HOME)/.cache/larder
export CARGO_TARGET_DIR ?= $(LARDER_CACHE)/target
export CARGO_TERM_COLOR ?= auto
# RocksDB is compiled once for all profiles and clones (.ci/rocksdb), and linked statically. It is for this machine alone:
# where cargo builds for another (CARGO_BUILD_TARGET), it compiles its own.
ifndef CARGO_BUILD_TARGET
export ROCKSDB_LIB_DIR ?= $(shell .ci/rocksdb --folder)
export ROCKSDB_STATIC ?= 1
endif
PATH := $(LARDER_CACHE)/bin:$(HOME)/.cargo/bin:$(PATH)

# The profile of the programs that the tests drive (docs/adr/0008-profiles.md).
PROFILE ?= dev
# One more than there are cores: those of the tests on Kubernetes, one at a time, wait most of their time.
TEST_THREADS ?= $(shell expr $$(nproc) + 1)

.PHONY: help quickstart install check test soak build lint fmt unit e2e doc docs deny fuzz python wheel release release-check tools packages cluster cluster-down peers platform-peers bench

help:
	@echo "make quickstart   see it all work: embedded S3, real mount, epochs under every policy"
	@echo "make install      the command larder into /usr/local/bin (PREFIX=...), also as kubectl larder"
	@echo "make test         everything that CI checks"
	@echo "make check        after an edit: format, clippy, unit tests"
	@echo "make lint unit e2e doc docs deny fuzz python   parts of make test"
	@echo "make release      packages, image, charts and wheels for amd64 and arm64, in $(LARDER_CACHE)/release (an hour)"
	@echo "make release-check   all of that but a second compile, with the programs of make build"
	@echo "make wheel        the Python package larder, in $(CARGO_TARGET_DIR)/wheel"
	@echo "make docs         the documents as a site with search, in $(CARGO_TARGET_DIR)/book"
	@echo "make soak         the tests that kill and restart, ten times as long; a day of a node (SCALE=100: for hours)"
	@echo "make peers        measure Larder beside every peer on this machine (as root; ARGS=--help tells more)"
	@echo "make platform-peers   build Kueue, controllers of other jobs, coscheduling and Kubernetes 1.37 (an hour)"
	@echo "make bench        time the hot functions"
	@echo "make cluster cluster-down   a two-node Kubernetes with S3, pictures and Larder, to try things in"

quickstart: packages
	cargo build --release -p larder
	$(CARGO_TARGET_DIR)/release/larder quickstart $(ARGS)

# Where `make install` puts larder. Its debug information lies beside it, where backtraces look for it.
PREFIX ?= /usr/local
SUDO = $(shell [ "$$(id -u)" -eq 0 ] || { mkdir -p $(PREFIX)/bin 2>/dev/null && test -w $(PREFIX)/bin; } || echo sudo)
SPLIT = $(CARGO_TARGET_DIR)/release/split

install: packages
	cargo build --release -p larder
	mkdir -p $(SPLIT)
	objcopy --only-keep-debug $(CARGO_TARGET_DIR)/release/larder $(SPLIT)/larder.debug
	objcopy --strip-debug --add-gnu-debuglink=$(SPLIT)/larder.debug $(CARGO_TARGET_DIR)/release/larder $(SPLIT)/larder
	$(SUDO) install -D $(SPLIT)/larder $(PREFIX)/bin/larder
	$(SUDO) install -D -m 644 $(SPLIT)/larder.debug $(PREFIX)/bin/.debug/larder.debug
	$(SUDO) ln -sf larder $(PREFIX)/bin/kubectl-larder

# The command of CI. `tools` is first because it takes longest on a new machine.
test: tools lint build doc docs fuzz deny python release-check
	cargo nextest run --cargo-profile $(PROFILE) --workspace --test-threads $(TEST_THREADS)

# The edit loop. It leaves out the few unit tests that take longer than two seconds.
check: UNIT = check
check: lint unit

lint: packages
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

build: packages
	cargo build --profile $(PROFILE) --workspace --lib --bins --tests
	.ci/static $(PROFILE)

UNIT = default
# Unit tests only: no program has to be linked but theirs. Those of quickstart mount, which needs root: `make test` runs them.
unit:
	.ci/install-packages unit
	cargo nextest run --profile $(UNIT) --workspace --lib --bins --test-threads $(TEST_THREADS) \
		-E 'not (package(larder-epochs) and test(quickstart::tests))'

e2e: tools build
	cargo nextest run --cargo-profile $(PROFILE) -p larder-e2e -p larder-testkit -p larder-agent -p larder-controller -p larder-api --test-threads $(TEST_THREADS) $(ARGS)

# The same tests, with the release profile and LARDER_TEST_SCALE times as many kills, restarts and cases. Then a day in
# the life of a busy node, whose short form is a test, too.
soak: export LARDER_TEST_SCALE = $(or $(SCALE),10)
soak: tools
	cargo build --release --workspace --bins --tests
	.ci/static release
	cargo nextest run --profile soak --release -p larder-e2e -p larder-fs -p larder-store -p larder-controller \
		-E 'test(/kill|loss_of_power|churn|come_and_go|in_turn|every_read_is_the_reference|rotated|many_mounts|outage_of_all_nodes|busy_machine|a_tree_/)'
	cargo nextest run --profile soak --release -p larder-e2e -p larder-controller --run-ignored only \
		-E 'test(/^(day|serving)::|five_thousand|with_failover|how_long_a_status/)'

doc: packages
	cargo test --workspace --doc
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The documents as a site. A test of larder-e2e checks their links (`make e2e ARGS=links`).
docs:
	.ci/install-packages docs
	mdbook build --dest-dir $(CARGO_TARGET_DIR)/book
	.ci/book check $(CARGO_TARGET_DIR)/book

# Licenses, duplicate versions and sources, by deny.toml.
deny: tools
	cargo deny --locked check licenses bans sources

# Bounded: the same targets run for hours with SECONDS_EACH=3600.
fuzz: tools
	tests/fuzz/run.sh $(or $(SECONDS_EACH),10)

# The Python package's own tests. That it works with a mount is a test of larder-e2e (`make e2e ARGS=plans`).
python: tools
	.ci/python

# A wheel for every Python 3 and every machine. pip fetches setuptools to build it.
wheel:
	python3 -m pip wheel --quiet --no-deps --wheel-dir $(CARGO_TARGET_DIR)/wheel ./python
	@ls $(CARGO_TARGET_DIR)/wheel

# Everything that is published, from the last commit (deploy/release). ARGS=--twice compiles it twice and compares.
release:
	.ci/release $(ARGS)

release-check: tools build
	.ci/release-check $(PROFILE)

# Requirements for compiling: Debian packages and RocksDB.
packages:
	.ci/install-packages build

# Further requirements for testing: nextest, cargo-fuzz, cargo-deny, mdBook, MinIO, moto, rclone, Ceph, fake-gcs-server,
# Azurite, Kubernetes, kwok, an image of PyTorch and Open MPI, and packages with loaders for PyTorch.
tools:
	.ci/install-packages test

# Kubernetes, an S3 server with pictures, and Larder, without a network; it says what to type next. As root.
cluster: packages
	tests/cluster/cluster.sh install
	cargo build --profile $(PROFILE) --workspace --bins
	.ci/static $(PROFILE)
	tests/cluster/try.sh up $(LARDER_CACHE)/cluster $(CARGO_TARGET_DIR)/$(PROFILE:dev=debug) $(NODES)

cluster-down:
	tests/cluster/try.sh down $(LARDER_CACHE)/cluster

# Takes half an hour; docs/PERFORMANCE.md says what it does.
peers: packages
	bench/install-peers
	cargo build --release -p larder -p larder-bench
	$(CARGO_TARGET_DIR)/release/larder-bench peers $(ARGS)

# Other queues and schedulers, and another Kubernetes: never built by `make test`.
platform-peers:
	tests/cluster/peers.sh install

bench: packages
	cargo bench -p larder-dataset --bench manifest -- $(ARGS)
	cargo bench -p larder-dataset --bench placement -- $(ARGS)
	cargo bench -p larder-store --bench store -- $(ARGS)
	cargo bench -p larder-bench --bench requests -- $(ARGS)
	cargo bench -p larder-bench --bench clusters -- $(ARGS)

fmt:
	cargo fmt --all
