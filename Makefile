# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build release test test-postgres test-previous test-packages lint contract demo bench man packages clean

build:
	cargo build --workspace --locked

# The programs as they are shipped: target/release/muster-control, target/release/muster, target/node/musterd.
release:
	cargo build --release --locked -p muster-control -p muster-cli
	cargo build --profile node --locked -p musterd

test:
	scripts/test

# The stories that have a control, with PostgreSQL below it.
test-postgres:
	MUSTER_TEST_ENGINE=postgres scripts/test

test-previous:
	scripts/test-previous

lint:
	scripts/lint

contract:
	scripts/schemathesis

# `make demo KEEP=1` leaves it running.
demo:
	KEEP=$(KEEP) scripts/demo

# `make bench QUICK=1` ends within five minutes; `NODES=200` shows only that everything works.
bench:
	QUICK=$(QUICK) NODES=$(NODES) PARTS="$(PARTS)" scripts/bench

man:
	scripts/man

# Into target/packages; `make packages ARCH=arm64 VERSION=1.2.3`. scripts/packages says what else.
packages:
	scripts/packages

# Those that are in target/packages, exactly as they are.
test-packages:
	scripts/test-packages

clean:
	cargo clean
