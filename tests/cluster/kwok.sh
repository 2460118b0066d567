#!/usr/bin/env bash
# A cluster of fake nodes: the control plane of cluster.sh, and kwok, which makes every Node with the annotation
# kwok.x-k8s.io/node=fake ready and keeps it so.
#
#   kwok.sh install                            builds kwok, unless it is there
#   kwok.sh start DIR [OWNER [pods [NODES]]]   starts such a cluster, as `cluster.sh start` does. With `pods` kwok runs the pods
#                                              of its nodes, too, as kwok-pods.yaml says; without, nobody does
#                                              (`larder-bench controller`). NODES real ones are beside them, by default none
#
# cluster.sh stops it, and runs commands in it.
set -euo pipefail

readonly KWOK=v0.7.0
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}
here=$(dirname "$(realpath "$0")")

die() { echo "kwok.sh: $*" >&2; exit 1; }

install() {
    [[ -x $BIN/kwok-$KWOK && -f $BIN/kwok-$KWOK.yaml ]] && return
    command -v go >/dev/null || die "needs Go to build kwok: https://go.dev/dl"
    mkdir -p "$BIN"
    local build module
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$build'" EXIT
    echo "building kwok (some minutes the first time)"
    GOBIN=$build GOFLAGS=-trimpath go install -ldflags '-s -w' "sigs.k8s.io/kwok/cmd/kwok@$KWOK"
    # How a node becomes ready. Without a file kwok would also patch every node's status each 20 seconds.
    module=$(go env GOMODCACHE)/sigs.k8s.io/kwok@$KWOK
    command install -m 644 "$module/kustomize/stage/node/fast/node-initialize.yaml" "$BIN/kwok-$KWOK.yaml"
    mv "$build/kwok" "$BIN/kwok-$KWOK"
}

start() {
    local dir=$1 owner=$2 nodes=${4-0} stages=("--config=$BIN/kwok-$KWOK.yaml")
    [[ ${3-} != pods ]] || stages+=("--config=$here/kwok-pods.yaml")
    [[ -x $BIN/kwok-$KWOK ]] || die "kwok is not installed: run $0 install"
    # Stock, Kubernetes' own controllers write 20 objects a second, the scheduler 50, and a node is taken for dead after 50 s:
    # here nothing but the API server limits them. kwok's nodes are seen rarely: the leases of a thousand would keep it busy.
    local rates="--kube-api-qps=5000 --kube-api-burst=10000"
    CONTROLLER_MANAGER_FLAGS="$rates --node-monitor-grace-period=20m" SCHEDULER_FLAGS=$rates \
        "$here/cluster.sh" start "$dir" "$nodes" "$owner"
    dir=$(realpath "$dir")
    # Its home must be writable.
    HOME=$dir setsid "$here/cluster.sh" exec "$dir" "$BIN/kwok-$KWOK" --kubeconfig="$dir/kubeconfig" \
        "${stages[@]}" --node-ip=10.89.0.1 --node-lease-duration-seconds=400 \
        --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake -v ERROR >"$dir/log/kwok.log" 2>&1 </dev/null &
}

case "${1-}:$#" in
    install:1) install ;;
    start:2) start "$2" "$PPID" ;;
    start:3) start "$2" "$3" ;;
    start:4) start "$2" "$3" "$4" ;;
    start:5) start "$2" "$3" "$4" "$5" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
