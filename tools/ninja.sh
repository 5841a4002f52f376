#!/usr/bin/env bash
# ninja.sh BUILD JOBS [TARGET...]: builds quietly; on failure prints what the compiler said.
set -uo pipefail
build=$1 jobs=$2
shift 2
log=$build/build.log
if ! ninja -C "$build" -j "$jobs" "$@" >"$log" 2>&1; then
    grep -v '^\[' "$log" | head -100
    exit 1
fi
echo "built $build"
