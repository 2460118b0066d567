#!/usr/bin/env bash
# `rclone serve s3` over a local folder, for tests, on loopback only.
#
#   rclone.sh install          builds it with rclone/main.go, unless it is there (a minute)
#   rclone.sh check            fails unless it is there
#   rclone.sh start DIR PORT   starts a server with its data in DIR and the bucket larder-test
#   rclone.sh stop DIR         stops it and removes its data
#
# DIR must be empty or missing. The keys are larder / larder-secret. A guard also stops the server when the process that
# started the script is gone.
set -euo pipefail

die() { echo "rclone.sh: $*" >&2; exit 1; }
here=$(dirname "$(realpath "$0")")
readonly here
# shellcheck source=tests/servers/one_process.sh
source "$here/one_process.sh"
RCLONE=$(go_program rclone)
readonly RCLONE

start() {
    local dir port=$2
    [[ -x $RCLONE ]] || die "is not installed: run $0 install"
    dir=$(folder "$1")
    # A bucket is a folder.
    mkdir -p "$dir/data/larder-test"
    run "$dir" "$RCLONE" --config= --cache-dir "$dir/cache" serve s3 --auth-key larder,larder-secret \
        --addr "127.0.0.1:$port" "$dir/data"
    await "$dir" curl -sf -o /dev/null --user larder:larder-secret --aws-sigv4 aws:amz:us-east-1:s3 "http://127.0.0.1:$port/"
    echo "http://127.0.0.1:$port"
}

case "${1-}:$#" in
    install:1) build_go rclone ;;
    check:1) [[ -x $RCLONE ]] || die "is not installed: run $0 install" ;;
    start:3) start "$2" "$3" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 install | check | start DIR PORT | stop DIR" ;;
esac
