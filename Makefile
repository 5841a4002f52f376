# A thin front for CMake presets, pytest and the tools. `make` builds into build/release/.
SHELL := /bin/bash
PYTHON := .venv/bin/python
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
SEEDS ?= 20
FIRST ?= 0
ONLY ?=
SMALL ?=
FUZZ_SECONDS ?= 60

.PHONY: all setup model demo check check-quick check-asan check-tsan chaos check-chaos soak sim bench fuzz fmt install clean build-%

all: TARGETS = baton
all: build-release

# What a fresh Debian machine lacks: packages by apt, then a private Python environment. Nothing happens when all is there.
setup:
	@tools/setup.sh

# The program alone is enough to run; tests are built where they are run.
build-%: setup
	@test -f build/$*/build.ninja || cmake --preset $* >/dev/null
	@tools/ninja.sh build/$* $(JOBS) $(TARGETS)

model: $(MODEL)
$(MODEL): | setup
	@tools/fetch_model.sh $@

demo: TARGETS = baton
demo: build-release $(MODEL)
	@$(PYTHON) tools/demo.py

check: build-release $(MODEL)
	@tools/check.sh full build/release
check-quick: build-release $(MODEL)
	@tools/check.sh quick build/release
check-asan: build-asan-ubsan $(MODEL)
	@tools/check.sh sanitize build/asan-ubsan
check-tsan: build-tsan $(MODEL)
	@tools/check.sh sanitize build/tsan

# One router, two prefill and two decode nodes under load; each seed is one fault. Says how a seed that failed runs again.
chaos: TARGETS = baton
chaos: build-release $(MODEL)
	@BATON_BIN=$(CURDIR)/build/release/baton $(PYTHON) tests/chaos/chaos.py --seeds $(SEEDS) --first $(FIRST) --only "$(ONLY)" $(SMALL)
check-chaos:
	@$(MAKE) --no-print-directory chaos SEEDS=300

MINUTES = 30
STREAMS = 64
soak: TARGETS = baton
soak: build-release $(MODEL)
	@BATON_BIN=$(CURDIR)/build/release/baton $(PYTHON) tests/chaos/soak.py --minutes $(MINUTES) --streams $(STREAMS)

# A cluster of the real rooms in one process and in virtual time (tests/sim); each seed is one history. Says how a seed that
# failed runs again; SIM_LOG=1 shows what it logs, SIM_VERBOSE=1 its transitions.
sim: TARGETS = sim
sim: build-release
	@build/release/sim $(FIRST) $(SEEDS)

bench: TARGETS = baton
bench: build-release $(MODEL)
	@$(PYTHON) bench/peers.py --model $(MODEL) --tests prefill,decode
	@$(PYTHON) bench/handoff.py --model $(MODEL)

fuzz: build-fuzz
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

fmt:
	@git ls-files '*.c' '*.h' | grep -v '_table\.c$$' | xargs clang-format -i

install: TARGETS = baton
install: build-release
	@cmake --install build/release --prefix $(PREFIX) >/dev/null && echo "installed $(PREFIX)/bin/baton"

clean:
	@rm -rf build
