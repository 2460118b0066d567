#!/usr/bin/env bash
# A real MinIO for tests, on loopback only.
#
#   minio.sh install          builds the pinned version, unless it is there (about three minutes)
#   minio.sh check            fails unless it is there
#   minio.sh path             prints where the program is
#   minio.sh start DIR PORT   starts a server with its data in DIR and the bucket larder-test
#   minio.sh stop DIR         stops it and removes its data
#
# DIR must be empty or missing. The keys are larder / larder-secret. A guard also stops the server when the process that
# started the script is gone.
set -euo pipefail

readonly VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
readonly EMPTY_SHA256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

die() { echo "minio.sh: $*" >&2; exit 1; }
# shellcheck source=tests/servers/one_process.sh
source "$(dirname "$(realpath "$0")")/one_process.sh"
readonly MINIO=$BIN/minio-$VERSION

install() {
    [[ -x $MINIO ]] && return
    command -v go >/dev/null || die "needs Go to build MinIO: https://go.dev/dl"
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    GOBIN=$build GOFLAGS=-trimpath go install "github.com/minio/minio@$VERSION"
    mkdir -p "$BIN"
    # Renamed into place, so that a build that was killed leaves no half of a program.
    mv "$build/minio" "$MINIO.$$" && mv "$MINIO.$$" "$MINIO"
}

start() {
    local dir port=$2
    [[ -x $MINIO ]] || die "is not installed: run $0 install"
    dir=$(folder "$1")
    mkdir "$dir/data"
    MINIO_ROOT_USER=larder MINIO_ROOT_PASSWORD=larder-secret MINIO_BROWSER=off MINIO_UPDATE=off MINIO_CI_CD=1 \
        run "$dir" "$MINIO" server --quiet --address "127.0.0.1:$port" "$dir/data"
    await "$dir" curl -sf -o /dev/null "http://127.0.0.1:$port/minio/health/ready"
    await "$dir" curl -sf -o /dev/null -X PUT --user larder:larder-secret --aws-sigv4 aws:amz:us-east-1:s3 \
        -H "x-amz-content-sha256: $EMPTY_SHA256" "http://127.0.0.1:$port/larder-test"
    echo "http://127.0.0.1:$port"
}

case "${1-}:$#" in
    install:1) install ;;
    check:1) [[ -x $MINIO ]] || die "is not installed: run $0 install" ;;
    path:1) echo "$MINIO" ;;
    start:3) start "$2" "$3" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 install | check | path | start DIR PORT | stop DIR" ;;
esac
