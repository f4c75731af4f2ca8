# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build test lint contract demo bench clean

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

# `make bench QUICK=1` ends within five minutes; `NODES=200` shows only that everything works.
bench:
	QUICK=$(QUICK) NODES=$(NODES) PARTS="$(PARTS)" scripts/bench

clean:
	cargo clean
