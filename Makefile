# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build test lint contract demo clean

build:
	cargo build --workspace --locked

test:
	scripts/test

lint:
	scripts/lint

contract:
	scripts/schemathesis

# `make demo KEEP=1` leaves it running.
demo:
	KEEP=$(KEEP) scripts/demo

clean:
	cargo clean
