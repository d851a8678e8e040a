# What a person types. Each target installs what it needs and then does its work; the scripts hold
# the logic.

.DEFAULT_GOAL := help
.PHONY: help setup build install deb static test sim load demo lint doc docs bench bench-rivals miri aarch64 iptfs-kernel fuzz clean

SECONDS ?= 60
SEEDS ?= 10000
MBIT ?= 1000
JOBS ?= 2
PREFIX ?= /usr/local
DESTDIR ?=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## install packages and the pinned Rust toolchain, whatever is missing
	@scripts/setup.sh test

build: ## the optimised binary: target/release/weir
	@scripts/setup.sh build
	@scripts/cargo.sh build --release --locked --package weir

install: ## what `make build` made, with units, pages and completions: make install PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh

deb: ## Debian packages weir and weir-lab, with debug symbols apart: target/deb
	@scripts/setup.sh deb
	@scripts/deb.sh

static: ## one program without shared libraries, and a folder for a container image: target/static
	@scripts/setup.sh deb
	@scripts/static.sh

demo: ## two namespaces, eight configurations, real traffic: a table and an HTML page; then the lab's quick report
	@scripts/setup.sh demo
	@scripts/demo.sh

test: ## unit tests, then real peers (strongSwan, Linux, libreswan, OpenIKED, scapy, tshark); ends with one line of totals
	@scripts/setup.sh test
	@scripts/test.sh

sim: ## IKE endpoints, then whole gateways under simulated time, SEEDS each (default 10000): make sim SEEDS=100000
	@scripts/setup.sh build
	@SIM_SEEDS=$(SEEDS) GATEWAY_SEEDS=$(SEEDS) scripts/cargo.sh test --profile demo --locked --quiet --package weir-sim --test seeds --test gateways -- --nocapture

load: ## packets lost while SAs are replaced under load, two namespaces: make load MBIT=500
	@scripts/setup.sh test
	@MBIT=$(MBIT) scripts/load.sh

lint: ## formatting, clippy, documentation, fuzz targets, dependencies: no warnings allowed
	@scripts/setup.sh lint
	@scripts/lint.sh

doc: ## API documentation: target/doc
	@scripts/setup.sh build
	@scripts/cargo.sh doc --workspace --no-deps --document-private-items --locked

docs: ## the documentation as a site: target/book/index.html
	@scripts/setup.sh docs
	@scripts/docs.sh

bench: ## TSC ticks per packet of the whole path in memory, compared with the bare engine
	@scripts/setup.sh build
	@scripts/cargo.sh run --release --locked --quiet --package weir -- bench path

bench-rivals: ## TCP through Weir, wireguard-go, boringtun and strongSwan in user space, taking turns
	@scripts/setup.sh rivals
	@scripts/rivals.sh
	@scripts/cargo.sh run --release --locked --quiet --package weir -- bench rivals

miri: ## packet memory, headers and rings under Miri, the interpreter that finds undefined behaviour
	@scripts/setup.sh build
	@scripts/miri.sh

aarch64: ## unit tests of wire, crypto, ipsec and ike for aarch64, interpreted
	@scripts/setup.sh aarch64
	@scripts/aarch64.sh

iptfs-kernel: ## a Linux kernel with IP-TFS as a process, a peer of `make test`; 10 minutes and more
	@scripts/setup.sh iptfs-kernel
	@scripts/iptfs-kernel.sh

fuzz: ## every fuzz target for SECONDS (default 60), JOBS at a time: make fuzz SECONDS=600 JOBS=4
	@scripts/setup.sh fuzz
	@JOBS=$(JOBS) scripts/fuzz.sh $(SECONDS)

clean: ## remove what was built
	rm -rf target fuzz/target fuzz/artifacts demo-out
