#!/bin/sh
# Runs every fuzz target for SECONDS each, starting from the golden files, and fails if one of them finds a bug.
#   tests/fuzz/run.sh SECONDS [TARGET...]
# Needs cargo-fuzz (`cargo install cargo-fuzz --locked`) and a C++ compiler. The stable toolchain is enough: no sanitizer is
# used, because the code under test has no unsafe.
set -eu

seconds=${1:?usage: tests/fuzz/run.sh SECONDS [TARGET...]}
shift
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR="${LARDER_FUZZ_TARGET_DIR:-$HOME/.cache/larder/fuzz-target}"
[ $# -gt 0 ] || set -- $(cargo fuzz list --fuzz-dir tests/fuzz)

cargo fuzz build --fuzz-dir tests/fuzz --sanitizer none
for target in "$@"; do
    # The corpus stays for the next run; the seeds are copied into it each time.
    corpus=$CARGO_TARGET_DIR/corpus/$target
    mkdir -p "$corpus"
    for golden in dataset/golden/*."$target" origin/import/golden/*."$target" cachenode/*/golden/*."$target" \
        controller/agent/golden/*."$target" device-plugins/golden/*."$target"; do
        if [ -e "$golden" ]; then cp "$golden" "$corpus/"; fi
    done
    echo "fuzz $target for $seconds s"
    # A decoder that takes 10 s or 1 GiB for a few kilobytes is as broken as one that panics.
    cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none "$target" "$corpus" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1
done
echo "fuzzing found nothing"
