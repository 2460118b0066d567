#!/usr/bin/env bash
# helm, for tests of the charts.
#
#   helm.sh install    builds helm, unless it is there
#   helm.sh ARGS...    runs it
set -euo pipefail

readonly HELM=v3.22.0
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}

die() { echo "helm.sh: $*" >&2; exit 1; }

install() {
    [[ -x $BIN/helm-$HELM ]] && return
    command -v go >/dev/null || die "needs Go to build helm: https://go.dev/dl"
    mkdir -p "$BIN"
    local build
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$build'" EXIT
    echo "building helm (some minutes the first time)"
    GOBIN=$build GOFLAGS=-trimpath CGO_ENABLED=0 go install -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$HELM" \
        "helm.sh/helm/v3/cmd/helm@$HELM"
    mv "$build/helm" "$BIN/helm-$HELM"
}

case "${1-}:$#" in
    install:1) install ;;
    :0) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
    *)
        [[ -x $BIN/helm-$HELM ]] || die "helm is not installed: run $0 install"
        exec "$BIN/helm-$HELM" "$@"
        ;;
esac
