#!/usr/bin/env bash
# Azurite, the emulator of Azure Blob Storage, for tests of az://. Loopback only.
#
#   azurite.sh packages         installs Node.js from Debian, unless a Node.js is there (needs root)
#   azurite.sh install          installs the pinned version, unless it is there (half a minute)
#   azurite.sh check            fails unless it is there
#   azurite.sh start DIR PORT   starts a server, which keeps its blobs in memory, with the container larder-test,
#                               and writes a token that may read, list, write and delete there to DIR/sas
#   azurite.sh stop DIR         stops it and removes its folder
#
# DIR must be empty or missing. The account is larder, its key larder-secret in base64. A guard also stops the server when
# the process that started the script is gone.
set -euo pipefail

# The last version that Debian's Node.js runs.
readonly VERSION=3.35.0
# Its dependencies are those of this day.
readonly DEPENDENCIES_OF=2025-11-01

die() { echo "azurite.sh: $*" >&2; exit 1; }
# shellcheck source=tests/servers/one_process.sh
source "$(dirname "$(realpath "$0")")/one_process.sh"
readonly AZURITE=$BIN/azurite-$VERSION

packages() {
    command -v node >/dev/null && command -v npm >/dev/null && return
    local sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
}

install() {
    [[ -d $AZURITE ]] && return
    packages
    echo "installing Azurite"
    mkdir -p "$BIN"
    npm install --loglevel=error --no-audit --no-fund --ignore-scripts --omit=dev --before "$DEPENDENCIES_OF" \
        --prefix "$AZURITE.$$" "azurite@$VERSION"
    # Renamed into place, so that an installation that was killed leaves no half of one.
    mv -T "$AZURITE.$$" "$AZURITE"
}

# Creates a container by a signed request, for which curl has no signature, and prints a token that may read, list, write, delete
# there: prepare ENDPOINT ACCOUNT KEY CONTAINER
prepare() {
    node -e '
        const [endpoint, account, key, container] = process.argv.slice(1);
        const version = "2023-11-03";
        const sign = (lines) =>
            require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(lines.join("\n")).digest("base64");
        const url = new URL(`${endpoint}/${container}?restype=container`);
        const headers = {"x-ms-date": new Date().toUTCString(), "x-ms-version": version};
        const signed = Object.entries(headers).map(([name, value]) => `${name}:${value}`);
        headers.authorization = `SharedKey ${account}:` +
            sign(["PUT", ...Array(11).fill(""), ...signed, `/${account}${url.pathname}`, "restype:container"]);
        const [rights, end] = ["rcwdl", "2099-01-01T00:00:00Z"];
        const sig = sign([rights, "", end, `/blob/${account}/${container}`, "", "", "", version, "c", ...Array(7).fill("")]);
        fetch(url, {method: "PUT", headers}).then((answer) => {
            console.log(String(new URLSearchParams({sv: version, sr: "c", sp: rights, se: end, sig})));
            process.exitCode = answer.status === 201 ? 0 : 1;
        }, () => { process.exitCode = 1; });
    ' "$@"
}

start() {
    local dir port=$2 key endpoint
    [[ -d $AZURITE ]] || die "is not installed: run $0 install"
    dir=$(folder "$1")
    key=$(printf larder-secret | base64)
    AZURITE_ACCOUNTS=larder:$key run "$dir" node "$AZURITE/node_modules/azurite/dist/src/blob/main.js" \
        --blobHost 127.0.0.1 --blobPort "$port" --inMemoryPersistence --silent --skipApiVersionCheck --disableTelemetry
    endpoint=http://127.0.0.1:$port/larder
    prepared() { prepare "$endpoint" larder "$key" larder-test >"$dir/sas"; }
    await "$dir" prepared
    echo "$endpoint"
}

case "${1-}:$#" in
    packages:1) packages ;;
    install:1) install ;;
    check:1) [[ -d $AZURITE ]] && command -v node >/dev/null || die "is not installed: run $0 install" ;;
    start:3) start "$2" "$3" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 packages | install | check | start DIR PORT | stop DIR" ;;
esac
