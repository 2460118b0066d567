#!/usr/bin/env bash
# fake-gcs-server for tests of gs://, on loopback only, with the parts of the XML API that it lacks (gcs/main.go).
#
#   gcs.sh install          builds it, unless it is there (about a minute)
#   gcs.sh check            fails unless it is there
#   gcs.sh start DIR PORT   starts a server, which keeps its objects in memory, with the bucket larder-test
#   gcs.sh stop DIR         stops it and removes its folder
#
# DIR must be empty or missing. The token is larder-secret. A guard also stops the server when the process that started
# the script is gone.
set -euo pipefail

die() { echo "gcs.sh: $*" >&2; exit 1; }
here=$(dirname "$(realpath "$0")")
readonly here
# shellcheck source=tests/servers/one_process.sh
source "$here/one_process.sh"
GCS=$(go_program gcs)
readonly GCS

start() {
    local dir port=$2
    [[ -x $GCS ]] || die "is not installed: run $0 install"
    dir=$(folder "$1")
    run "$dir" "$GCS" "$port" larder-test larder-secret
    await "$dir" curl -sf -o /dev/null "http://127.0.0.1:$port/"
    echo "http://127.0.0.1:$port"
}

case "${1-}:$#" in
    install:1) build_go gcs ;;
    check:1) [[ -x $GCS ]] || die "is not installed: run $0 install" ;;
    start:3) start "$2" "$3" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 install | check | start DIR PORT | stop DIR" ;;
esac
