#!/usr/bin/env bash
# What Larder's jobs can be tried beside, and a newer Kubernetes: Kueue, the controllers of other jobs, the scheduler with
# coscheduling, Kubernetes 1.37 with its own gangs. Each takes about a quarter of an hour to build on two cores, so CI goes
# without those that are not there.
#
#   peers.sh install      builds the pinned peers, unless they are there
#   peers.sh check        fails, and names those that are missing
#   peers.sh start DIR    runs coscheduling in the cluster in DIR; it ends with the cluster
#
# To use the others: kueue.sh; controllers.sh; `LARDER_TEST_KUBERNETES=v1.37.0 cluster.sh start`. Coscheduling is a scheduler of Kubernetes
# 1.32, BIN/coscheduling-VERSION, for pods with `schedulerName: coscheduling`. The file beside it defines its PodGroups.
set -euo pipefail

readonly COSCHEDULING=v0.32.7 KUBERNETES=v1.37.0
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}
readonly SCHEDULER=$BIN/coscheduling-$COSCHEDULING
here=$(dirname "$(realpath "$0")")

die() { echo "peers.sh: $*" >&2; exit 1; }

missing() {
    "$here/kueue.sh" check 2>/dev/null || echo Kueue
    "$here/controllers.sh" check 2>/dev/null || echo "the controllers of other jobs"
    LARDER_TEST_KUBERNETES=$KUBERNETES "$here/cluster.sh" check 2>/dev/null || echo "Kubernetes $KUBERNETES"
    [[ -x $SCHEDULER && -f $SCHEDULER.yaml ]] || echo coscheduling
}

check() {
    local missing
    missing=$(missing)
    [[ -z $missing ]] || die "WITHOUT ${missing//$'\n'/, }: only the tests of Kueue and of other jobs need some of them; \
\`make platform-peers\` builds them"
}

install() {
    "$here/kueue.sh" install
    "$here/controllers.sh" install
    LARDER_TEST_KUBERNETES=$KUBERNETES "$here/cluster.sh" install
    [[ -x $SCHEDULER && -f $SCHEDULER.yaml ]] || coscheduling
}

# Its go.mod replaces modules, which only a main module may: so the build is in a copy of it.
coscheduling() {
    command -v go >/dev/null || die "needs Go to build coscheduling: https://go.dev/dl"
    mkdir -p "$BIN"
    local build module=sigs.k8s.io/scheduler-plugins
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$build'" EXIT
    echo "building coscheduling (a quarter of an hour the first time)"
    (cd "$build" && go mod download "$module@$COSCHEDULING")
    cp -r "$(go env GOMODCACHE)/$module@$COSCHEDULING" "$build/source"
    chmod -R u+w "$build/source"
    (cd "$build/source" && go build -trimpath -o "$build/scheduler" -ldflags "-s -w" ./cmd/scheduler)
    mv "$build/source/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml" "$SCHEDULER.yaml"
    mv "$build/scheduler" "$SCHEDULER"
}

# Its waiting time is its own default.
start() {
    local dir=$1
    [[ -x $SCHEDULER && -f $SCHEDULER.yaml ]] || die "coscheduling is not installed: run $0 install"
    cat >"$dir/coscheduling.yaml" <<YAML
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "$dir/kubeconfig", qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: coscheduling
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
YAML
    "$here/cluster.sh" exec "$dir" kubectl apply --server-side -f "$SCHEDULER.yaml" >/dev/null
    "$here/cluster.sh" exec "$dir" kubectl wait --for=condition=Established crd --all --timeout=60s >/dev/null
    setsid "$here/cluster.sh" exec "$dir" "$SCHEDULER" --config="$dir/coscheduling.yaml" --secure-port=10261 \
        >"$dir/log/coscheduling.log" 2>&1 </dev/null &
}

case "${1-}:$#" in
    install:1) install ;;
    check:1) check ;;
    start:2) start "$(realpath "$2")" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
