#!/usr/bin/env bash
# check.sh full|quick|sanitize BUILD: runs the tests against one build. Says at the end, in one line, what passed.
set -uo pipefail
cd "$(dirname "$0")/.."
mode=$1 build=$2 failed=0

step() { # name, command...
    local name=$1
    shift
    echo "== $name"
    "$@" || { echo "== $name FAILED"; failed=1; }
}

# Kernels of a processor that this machine is not, by an emulator; only where the tools for it are.
kernels_of() { # preset, compiler, emulator
    if ! command -v "$2" >/dev/null || ! command -v "$3" >/dev/null; then
        echo "not run: needs $2 and $3"
        return
    fi
    { [ -f "build/$1/build.ninja" ] || cmake --preset "$1" >/dev/null; } &&
        tools/ninja.sh "build/$1" "$(nproc)" &&
        ctest --test-dir "build/$1" -j "$(nproc)" --output-on-failure
}
tiers() { # build...: one line that names the kernel tiers tested and how
    python3 tools/report_tiers.py "${@/%//Testing/Temporary/LastTest.log}"
}

export BATON_BIN=$PWD/$build/baton BATON_MODEL=$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=0
step "include directions" python3 tools/check_deps.py
[ -f docs/TOKEN.md ] && step "docs name what exists" python3 tools/check_docs.py
case $mode in
quick)
    step "unit tests" ctest --test-dir "$build" -j "$(nproc)" --output-on-failure -LE slow
    step "end to end, quick" .venv/bin/python -m pytest -q -x -m "not slow" --timeout 300 tests/e2e
    ;;
sanitize)
    step "unit tests" ctest --test-dir "$build" --output-on-failure -LE slow --timeout 1800
    step "end to end, quick" .venv/bin/python -m pytest -q -m "not slow and not speed" --timeout 1200 tests/e2e
    ;;
full)
    step "unit and kernel tests" ctest --test-dir "$build" -j "$(nproc)" --output-on-failure
    step "kernels of aarch64" kernels_of aarch64 aarch64-linux-gnu-gcc qemu-aarch64
    step "kernel tiers" tiers "$build" build/aarch64
    step "end to end" .venv/bin/python -m pytest -q --timeout 900 tests/e2e tests/golden tests/chaos
    ;;
esac
exit $failed
