# demo          the main job on embedded defaults: no bus, no systemd, no configuration
# test          everything; as root it first installs what the tests need, else it says what is missing
# test-agents   the real agent programs, from the npm registry, against a scripted model on this machine; not part of test
# install       programs, units, manual pages and the rest below $(DESTDIR)$(PREFIX); uninstall takes them away
# deb           a Debian package, target/debian/*.deb (with cargo-deb, or without)
# test-package  installs that package, as root, and runs the service from it in a user session; leaves nothing behind
# qualify       runs the installed programs through the story of the service and writes a receipt; as root. It builds the
#               framework of the story, the reference controller, where CONTROLLER names none
# bench         the figures, each beside the limit it is held to
# soak          a subscriber that stands still for ten minutes, on both buses: memory, others, nothing lost; SOAK_SECONDS

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where the programs were built, and where the configuration of the whole machine is.
BUILD ?= target/release
SYSCONFDIR ?= /etc
# What `qualify` runs, and where its receipt goes.
QUALIFY_BIN ?= $(PREFIX)/bin
RECEIPT ?= target/qualification.json
CONTROLLER ?=
AGENTS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/airouter-sessiond/agents

.PHONY: all demo test test-agents bench soak install install-files install-openrc uninstall deb test-package qualify reference-controller

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
	$(CARGO) bench --locked --bench figures

soak:
	$(CARGO) bench --locked --bench soak

install: all
	$(MAKE) install-files

# Builds nothing: what stands in $(BUILD).
install-files:
	packaging/install "$(BUILD)" "$(DESTDIR)" "$(PREFIX)"

# A template: one symbolic link beside it for each account (docs/operations.md).
install-openrc:
	packaging/install --openrc "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

uninstall:
	packaging/install --remove "$(DESTDIR)" "$(PREFIX)" "$(SYSCONFDIR)"

deb: all
	packaging/deb "$(BUILD)"

test-package: deb
	tests/tools/package

qualify: $(if $(CONTROLLER),,reference-controller)
	packaging/qualify "$(QUALIFY_BIN)" "$(RECEIPT)" "$(or $(CONTROLLER),target/release/reference-controller)"

reference-controller:
	$(CARGO) build --release --locked --features reference-controller --bin reference-controller
