# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build test test-postgres lint contract demo clean

build:
	cargo build --workspace --locked

test:
	scripts/test

# The stories that have a control, with PostgreSQL below it.
test-postgres:
	MUSTER_TEST_ENGINE=postgres scripts/test

lint:
	scripts/lint

contract:
	scripts/schemathesis

# `make demo KEEP=1` leaves it running.
demo:
	KEEP=$(KEEP) scripts/demo

clean:
	cargo clean
