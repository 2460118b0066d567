# The README's two commands are `make quickstart` and `make test`. Each installs what it needs.
# One target folder for all builds, outside the clone, so that a fresh clone does not compile RocksDB again.
export LARDER_CACHE ?= $(HOME)/.cache/larder
export CARGO_TARGET_DIR ?= $(LARDER_CACHE)/target
export CARGO_TERM_COLOR ?= auto
PATH := $(LARDER_CACHE)/bin:$(HOME)/.cargo/bin:$(PATH)

.PHONY: help quickstart build test lint fmt unit doc fuzz tools packages peers bench cluster cluster-down

help:
	@echo "make quickstart   see it all work: embedded S3, real mount, epochs under every policy"
	@echo "make test         everything CI checks"
	@echo "make lint unit doc fuzz   its parts"
	@echo "make peers        measure Larder beside every peer on this machine (as root; ARGS=--help tells more)"
	@echo "make bench        time the hot functions"
	@echo "make cluster cluster-down   a Kubernetes of two nodes to try things in"

quickstart: packages
	cargo build --release -p larder
	$(CARGO_TARGET_DIR)/release/larder quickstart $(ARGS)

build: packages
	cargo build --release --workspace --lib --bins --tests

test: packages tools lint build unit doc fuzz

lint:
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings

unit: build
	cargo nextest run --release --workspace

doc:
	cargo test --release --workspace --doc
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

# Bounded: the same targets run for hours with SECONDS_EACH=3600.
fuzz:
	tests/fuzz/run.sh $(or $(SECONDS_EACH),20)

# What compiling needs.
packages:
	.ci/install-packages build

# What testing needs beside: nextest, cargo-fuzz, MinIO, Ceph, Kubernetes.
tools: packages
	.ci/install-packages test

# Owned by process 1, so that it stays until cluster-down.
cluster:
	tests/cluster/cluster.sh install
	tests/cluster/cluster.sh start $(LARDER_CACHE)/cluster $(or $(NODES),2) 1
	@echo "try: tests/cluster/cluster.sh exec $(LARDER_CACHE)/cluster kubectl get nodes"

cluster-down:
	tests/cluster/cluster.sh stop $(LARDER_CACHE)/cluster

# Half an hour for all of it: docs/PERFORMANCE.md says what it does.
peers: packages
	bench/install-peers
	cargo build --release -p larder
	$(CARGO_TARGET_DIR)/release/larder bench peers $(ARGS)

bench: packages
	cargo bench -p larder-dataset --bench manifest -- $(ARGS)
	cargo bench -p larder-dataset --bench placement -- $(ARGS)
	cargo bench -p larder-store --bench store -- $(ARGS)
	cargo bench -p larder-fs --bench requests -- $(ARGS)

fmt:
	cargo fmt --all
