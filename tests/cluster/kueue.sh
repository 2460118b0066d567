#!/usr/bin/env bash
# A real Kueue beside a cluster of cluster.sh.
#
#   kueue.sh install            builds the pinned Kueue, unless it is there
#   kueue.sh check              fails unless it is there
#   kueue.sh start DIR [MODE]   installs it into the cluster in DIR and waits until it answers; it ends with the cluster. Modes:
#                               `multikueue`, without the kinds whose definitions the other clusters lack and without a part
#                               in pods without jobs; `jobs`, the same as `larder-bench jobs` measures it: only the API
#                               server limits it
#
# Kueue runs as a process in the cluster's network and needs no image. The API server reaches its webhooks by the address of
# the bridge, with a certificate that is made here, so no service and no cert-manager are needed. The webhooks fail closed: a
# cluster whose Kueue has died creates no Job and no pod any more, so it is for one test alone.
set -euo pipefail

readonly KUEUE=v0.19.0 HOST=10.89.0.1 SECONDS_TO_START=90
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}
readonly PROGRAM=$BIN/kueue-$KUEUE COMPONENTS=$BIN/kueue-$KUEUE-components
here=$(dirname "$(realpath "$0")")

die() { echo "kueue.sh: $*" >&2; exit 1; }

check() { [[ -x $PROGRAM && -d $COMPONENTS ]] || die "Kueue is not installed: run $0 install"; }

install() {
    [[ ! -x $PROGRAM || ! -d $COMPONENTS ]] || return 0
    command -v go >/dev/null || die "needs Go to build Kueue: https://go.dev/dl"
    mkdir -p "$BIN"
    local build
    # On BIN's disk, because files are renamed into place: a build that was killed leaves no half of a program there.
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "chmod -R u+w '$build'; rm -rf '$build'" EXIT
    echo "building Kueue (a quarter of an hour the first time)"
    cd "$here/kueue"
    go build -trimpath -o "$build/kueue" -ldflags "-s -w" sigs.k8s.io/kueue/cmd/kueue
    cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config/components" "$build/components"
    chmod -R u+w "$build/components"
    rm -rf "$COMPONENTS"
    mv "$build/components" "$COMPONENTS"
    mv "$build/kueue" "$PROGRAM"
}

start() {
    local dir=$1 mode=${2-} rate=200
    # It waits for the definitions of those that the cluster does not have.
    local frameworks="batch/job, pod, statefulset, jobset.x-k8s.io/jobset, trainer.kubeflow.org/trainjob, kubeflow.org/mpijob, \
ray.io/rayjob, ray.io/raycluster, leaderworkerset.x-k8s.io/leaderworkerset"
    check
    [[ -z $mode ]] || frameworks=batch/job
    [[ $mode != jobs ]] || rate=5000
    mkdir -p "$dir"/kueue/{certs,etc/kueue/metrics/certs,work,manifests}
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=kueue \
        -addext "subjectAltName=IP:$HOST" -keyout "$dir/kueue/certs/tls.key" -out "$dir/kueue/certs/tls.crt" 2>/dev/null
    cp "$dir"/kueue/certs/tls.* "$dir/kueue/etc/kueue/metrics/certs"
    sed "s#@DIR@#$dir#; s#@FRAMEWORKS@#$frameworks#; s#@RATE@#$rate#g" "$here/kueue/config.yaml" >"$dir/kueue/config.yaml"
    manifests "$dir" "$mode" >"$dir/kueue/manifests.yaml"
    "$here/cluster.sh" exec "$dir" kubectl create namespace kueue-system >/dev/null
    "$here/cluster.sh" exec "$dir" kubectl apply --server-side -f "$dir/kueue/manifests.yaml" >/dev/null
    # Without them it ends at once.
    "$here/cluster.sh" exec "$dir" kubectl wait --for=condition=Established crd --all --timeout=60s >/dev/null
    setsid "$here/cluster.sh" exec "$dir" "$here/kueue.sh" run "$dir" >"$dir/log/kueue.log" 2>&1 </dev/null &
    until "$here/cluster.sh" exec "$dir" curl -sf "http://127.0.0.1:8081/readyz" >/dev/null 2>&1; do
        ((SECONDS < SECONDS_TO_START)) || { tail -n 20 "$dir/log/kueue.log" >&2; die "did not come up"; }
        sleep 0.2
    done
}

# Kueue's CRDs and webhooks, with the address and the certificate of the process. The CRDs have a webhook, too, which converts
# between versions. Its lines are indented more than those of the others.
manifests() {
    local dir=$1 mode=$2
    cp "$here/kueue/kustomization.yaml" "$dir/kueue/manifests"
    [[ -z $mode ]] || cat "$here/kueue/without-pods.yaml" >>"$dir/kueue/manifests/kustomization.yaml"
    cp -r "$COMPONENTS" "$dir/kueue/manifests/components"
    "$dir/bin/kubectl" kustomize "$dir/kueue/manifests" | sed -E "
        s#^(  |      )clientConfig:\$#&\n\1  caBundle: $(base64 -w0 "$dir/kueue/certs/tls.crt")#
        /^(    |        )service:\$/d; /^(      |          )(name: webhook-service|namespace: system)\$/d
        s#^(    |        )  path: /#\1url: https://$HOST:9443/#"
}

# Inside the cluster's namespaces. With its own certificate management off, Kueue wants another certificate at a fixed path in
# /etc, so it gets an /etc of its own.
run() {
    local dir=$1
    exec unshare --mount sh -c 'mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" /etc &&
        exec "$2" --config="$1/config.yaml" --feature-gates=VisibilityOnDemand=false --zap-log-level=2' \
        sh "$dir/kueue" "$PROGRAM"
}

case "${1-}:$#" in
    install:1) install ;;
    check:1) check ;;
    start:2) start "$(realpath "$2")" ;;
    start:3) start "$(realpath "$2")" "$3" ;;
    run:2) run "$2" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
