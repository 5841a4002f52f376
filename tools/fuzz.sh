#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS [TARGET...]: runs each fuzz target for so long. Corpora grow in BUILD/corpus; a crash is left there.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2
shift 2
failed=0
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cd "$build" && ls fuzz_* 2>/dev/null | grep -v '\.')
for t in "${targets[@]}"; do
    mkdir -p "$build/corpus/$t"
    echo "== $t, $seconds s"
    if ! "$build/$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/corpus/$t-" "$build/corpus/$t" >"$build/$t.log" 2>&1; then
        tail -40 "$build/$t.log"
        failed=1
    fi
    grep -E 'number_of_executed_units|crash|ERROR' "$build/$t.log" || true
done
exit $failed
