# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build test test-previous lint contract demo man clean

build:
	cargo build --workspace --locked

test:
	scripts/test

test-previous:
	scripts/test-previous

lint:
	scripts/lint

contract:
	scripts/schemathesis

# `make demo KEEP=1` leaves it running.
demo:
	KEEP=$(KEEP) scripts/demo

man:
	scripts/man

clean:
	cargo clean
