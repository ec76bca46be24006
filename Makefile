# demo     the main job on embedded defaults: no bus, no systemd, no configuration
# test     everything; as root it first installs what the tests need, else it says what is missing
# test-agents  the real agent programs, from the npm registry, against a scripted model on this machine; not part of test
# install  programs, examples and interfaces below $(DESTDIR)$(PREFIX)
# bench    the figures, each beside the limit it is held to

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
AGENTS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/airouter-sessiond/agents

.PHONY: all demo test test-agents lint bench install

all:
	$(CARGO) build --release --locked --bins

demo:
	$(CARGO) run --release --locked -- demo

test:
	tests/tools/prepare
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --features crash-points,faults,postgres -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --quiet
	$(CARGO) check --locked --quiet --no-default-features --features client
	$(CARGO) test --locked --features crash-points,faults,postgres

test-agents:
	tests/tools/install-agents "$(AGENTS)"
	AIROUTER_AGENTS="$(AGENTS)" $(CARGO) test --locked --features crash-points,faults --test agents -- --ignored --test-threads=1

bench:
	$(CARGO) bench --locked

install: all
	install -Dm755 target/release/airouter-sessiond target/release/airouter-native-exec target/release/sessionctl -t $(DESTDIR)$(PREFIX)/bin
	install -Dm644 interfaces/*.xml -t $(DESTDIR)$(PREFIX)/share/dbus-1/interfaces
	install -Dm644 config/sessiond.example.toml README.md LICENSE docs/*.md -t $(DESTDIR)$(PREFIX)/share/doc/airouter-sessiond
