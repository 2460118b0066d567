#!/usr/bin/env bash
# moto's S3, which keeps its objects in memory and checks no keys, for tests. Loopback only.
#
#   moto.sh packages         installs pip from Debian, unless a Python with pip is there (needs root)
#   moto.sh install          installs the versions of moto/requirements.txt, unless they are there (ten seconds)
#   moto.sh check            fails unless it is there
#   moto.sh start DIR PORT   starts a server with the bucket larder-test
#   moto.sh stop DIR         stops it and removes its folder
#
# DIR must be empty or missing. Any keys will do. A guard also stops the server when the process that started the script is
# gone.
set -euo pipefail

die() { echo "moto.sh: $*" >&2; exit 1; }
here=$(dirname "$(realpath "$0")")
readonly here
# shellcheck source=tests/servers/one_process.sh
source "$here/one_process.sh"
# A change of a version is another installation.
MOTO=$BIN/moto-$(sha256sum <"$here/moto/requirements.txt" | head -c 12)
readonly MOTO

packages() {
    python3 -m pip --version >/dev/null 2>&1 && return
    local sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
}

install() {
    [[ -d $MOTO ]] && return
    packages
    echo "installing moto"
    mkdir -p "$BIN"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$MOTO.$$" \
        --requirement "$here/moto/requirements.txt"
    # Renamed into place, so that an installation that was killed leaves no half of one.
    mv -T "$MOTO.$$" "$MOTO"
}

start() {
    local dir port=$2
    [[ -d $MOTO ]] || die "is not installed: run $0 install"
    dir=$(folder "$1")
    run "$dir" env PYTHONPATH="$MOTO" python3 -m moto.server -H 127.0.0.1 -p "$port"
    await "$dir" curl -sf -o /dev/null -X PUT "http://127.0.0.1:$port/larder-test"
    echo "http://127.0.0.1:$port"
}

case "${1-}:$#" in
    packages:1) packages ;;
    install:1) install ;;
    check:1) [[ -d $MOTO ]] || die "is not installed: run $0 install" ;;
    start:3) start "$2" "$3" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 packages | install | check | start DIR PORT | stop DIR" ;;
esac
