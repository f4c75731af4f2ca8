# Thin: each target calls one script or cargo line. CONTRIBUTING.md says what they are for.

.PHONY: build test lint contract demo packages clean

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

# Into target/packages; `make packages ARCH=arm64 VERSION=1.2.3`. scripts/packages says what else.
packages:
	scripts/packages

clean:
	cargo clean
