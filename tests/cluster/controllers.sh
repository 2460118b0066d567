#!/usr/bin/env bash
# The controllers of the jobs that people submit, beside a cluster of cluster.sh: JobSet, Trainer (TrainJob), MPI operator,
# KubeRay and LeaderWorkerSet, in the versions that the Kueue of kueue.sh was built for.
#
#   controllers.sh install      builds them, unless they are there
#   controllers.sh check        fails unless they are there
#   controllers.sh start DIR    installs their definitions into the cluster in DIR and runs them; they end with the cluster
#
# Each is built in a copy of its module, with its own versions of its dependencies. Each runs as a process in the cluster's
# network, like Kueue. Their webhooks fail closed, so the cluster is for one test alone.
set -euo pipefail

readonly HOST=10.89.0.1 SECONDS_TO_START=120
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}
here=$(dirname "$(realpath "$0")")

# Name, module, version, program, definitions, webhooks (- for none), health port, webhook port.
readonly CONTROLLERS="
jobset sigs.k8s.io/jobset v0.12.0 . config/components/crd/bases config/components/webhook/manifests.yaml 8091 9451
lws sigs.k8s.io/lws v0.9.0 ./cmd config/crd/bases config/webhook/manifests.yaml 8092 9452
trainer github.com/kubeflow/trainer/v2 v2.2.1 ./cmd/trainer-controller-manager manifests/base/crds manifests/base/webhook/manifests.yaml 8093 9453
mpi github.com/kubeflow/mpi-operator v0.8.2 ./cmd/mpi-operator manifests/base - 8080 -
ray github.com/ray-project/kuberay/ray-operator v1.6.2 . config/crd/bases - 8095 -
"

die() { echo "controllers.sh: $*" >&2; exit 1; }

# The folder of a controller of this name and version: its program, definitions and webhooks.
folder() { echo "$BIN/controller-$1-$2"; }

# Calls a function with the columns of each controller. Programs that it runs get no input.
each() {
    local -a columns
    while read -r -a columns; do
        [[ ${#columns[@]} -eq 0 ]] || "$@" "${columns[@]}" </dev/null
    done <<<"$CONTROLLERS"
}

check_one() { [[ -d $(folder "$1" "$3") ]] || die "$1 $3 is not installed: run $0 install"; }

install_one() {
    local name=$1 module=$2 version=$3 program=$4 definitions=$5 webhooks=$6 folder build
    folder=$(folder "$name" "$version")
    [[ ! -d $folder ]] || return 0
    command -v go >/dev/null || die "needs Go to build $name: https://go.dev/dl"
    mkdir -p "$BIN"
    # On BIN's disk, because the folder is renamed into place: a build that was killed leaves no half of a controller there.
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "chmod -R u+w '$build'; rm -rf '$build'" EXIT
    echo "building $name $version (some minutes the first time)"
    (cd "$build" && go mod download -json "$module@$version" >module.json)
    cp -r "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])' <"$build/module.json")" "$build/source"
    chmod -R u+w "$build/source"
    mkdir -p "$build/folder/definitions"
    (cd "$build/source" && go build -trimpath -ldflags "-s -w" -o "$build/folder/program" "$program")
    grep -l "^kind: CustomResourceDefinition" "$build/source/$definitions"/*.yaml |
        xargs -I '{}' cp '{}' "$build/folder/definitions"
    [[ $webhooks = - ]] || cp "$build/source/$webhooks" "$build/folder/webhooks.yaml"
    mv "$build/folder" "$folder"
    rm -rf "$build"
    trap - EXIT
}

start() {
    local dir=$1
    each check_one
    mkdir -p "$dir/controllers/certs"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=controllers \
        -addext "subjectAltName=IP:$HOST" -keyout "$dir/controllers/certs/tls.key" -out "$dir/controllers/certs/tls.crt" \
        2>/dev/null
    # The MPI operator keeps its lease there.
    "$here/cluster.sh" exec "$dir" kubectl create namespace mpi-operator >/dev/null
    each define_one "$dir"
    "$here/cluster.sh" exec "$dir" kubectl wait --for=condition=Established crd --all --timeout=60s >/dev/null
    each start_one "$dir"
    each wait_for_one "$dir"
    # Only now: before, the API server could not reach them, and would make no pod.
    each hook_one "$dir"
}

define_one() {
    local dir=$1 folder
    folder=$(folder "$2" "$4")
    "$here/cluster.sh" exec "$dir" kubectl apply --server-side -f "$folder/definitions" >/dev/null
}

# Most look for their certificate in their TMPDIR, and have no flag for its folder.
start_one() {
    local dir=$1 name=$2 health=$8 webhook=$9 program own certificate
    program=$(folder "$2" "$4")/program own=$dir/controllers/$2
    certificate=$own/k8s-webhook-server/serving-certs
    mkdir -p "$certificate"
    cp "$dir"/controllers/certs/tls.* "$certificate"
    local -a flags
    case $name in
        jobset | lws | trainer)
            # LeaderWorkerSet has a default of its own, which is the same for all processes.
            [[ $name != lws ]] || webhook="$webhook, certDir: $certificate"
            configuration "$name" "$health" "$webhook" >"$own/config.yaml"
            flags=("--config=$own/config.yaml")
            ;;
        mpi) flags=(--kube-api-qps=200 --kube-api-burst=200) ;;
        # Without Ray in the image, nothing could be probed or waited for.
        ray)
            flags=(--metrics-addr=0 "--health-probe-bind-address=:$health" --enable-leader-election=false)
            export ENABLE_INIT_CONTAINER_INJECTION=false ENABLE_PROBES_INJECTION=false
            ;;
    esac
    TMPDIR=$own setsid "$here/cluster.sh" exec "$dir" "$program" "${flags[@]}" >"$dir/log/$name.log" 2>&1 </dev/null &
}

configuration() {
    local name=$1 health=$2 webhook=$3 group=$1.x-k8s.io certificates="internalCertManagement: {enable: false}"
    if [[ $name = trainer ]]; then
        group=trainer.kubeflow.org certificates="certManagement: {enable: false}"
    fi
    cat <<YAML
apiVersion: config.$group/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: ":$health"}
metrics: {bindAddress: "0"}
webhook: {port: $webhook}
leaderElection: {leaderElect: false}
$certificates
YAML
}

wait_for_one() {
    local dir=$1 name=$2 health=$8 path=readyz
    [[ $name != mpi ]] || path=healthz
    until "$here/cluster.sh" exec "$dir" curl -sf "http://127.0.0.1:$health/$path" >/dev/null 2>&1; do
        ((SECONDS < SECONDS_TO_START)) || { tail -n 20 "$dir/log/$name.log" >&2; die "$name did not come up"; }
        sleep 0.2
    done
}

# The webhooks with a name, the address and the certificate of their own.
hook_one() {
    local dir=$1 name=$2 webhook=$9 folder
    folder=$(folder "$2" "$4")
    [[ $webhook != - ]] || return 0
    sed -E "
        s#^  name: ((mut|valid)ating-webhook-configuration)\$#  name: $name-\\1#
        s#^  clientConfig:\$#&\n    caBundle: $(base64 -w0 "$dir/controllers/certs/tls.crt")#
        /^    service:\$/d; /^      (name: webhook-service|namespace: system)\$/d
        s#^      path: /#    url: https://$HOST:$webhook/#" "$folder/webhooks.yaml" >"$dir/controllers/$name-webhooks.yaml"
    "$here/cluster.sh" exec "$dir" kubectl apply --server-side -f "$dir/controllers/$name-webhooks.yaml" >/dev/null
}

case "${1-}:$#" in
    install:1) each install_one ;;
    check:1) each check_one ;;
    start:2) start "$(realpath "$2")" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
