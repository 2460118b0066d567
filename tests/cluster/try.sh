#!/usr/bin/env bash
# A place to try Larder in, which needs no network: a cluster of cluster.sh with an S3 server, a dataset of pictures, and Larder
# with the components datasets and jobs. `make cluster` and `make cluster-down` call it.
#
#   try.sh up DIR BIN [NODES]     starts it with its files in DIR; BIN is the folder of Larder's programs
#   try.sh bare DIR BIN [NODES]   the same without Larder on the cluster; it also ends with the process that started the script
#   try.sh down DIR               stops it and removes its files
#
# After `up`, the cluster stays until `down`, or until the machine is rebooted. DIR/host has kubectl, larder and a kubeconfig for this
# machine, which reaches the API server and S3 through a pair of interfaces, larder-try, that ends with the cluster.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
readonly here root=$here/../..
readonly SERVER=http://10.89.0.1:9000 KEY=larder SECRET=larder-secret BUCKET=pictures
# The two ends of the pair: this machine's and the cluster's.
readonly HERE=10.87.0.1 THERE=10.87.0.2

die() { echo "try.sh: $*" >&2; exit 1; }
step() { printf '%-58s' "$1"; started=$SECONDS; }
done_() { echo "$((SECONDS - started)) s"; }
kubectl() { KUBECONFIG=$dir/host/kubeconfig "$dir/host/kubectl" "$@"; }

# Photographs that come with Go, which has built Kubernetes here.
pictures() { find "$(go env GOROOT)/src/image/testdata" -name '*.jpeg' -o -name '*.png'; }

server() {
    "$root/tests/servers/minio.sh" install
    local minio put=(curl -sf -o /dev/null --user "$KEY:$SECRET" --aws-sigv4 aws:amz:us-east-1:s3) file
    minio=$("$root/tests/servers/minio.sh" path)
    mkdir "$dir/s3"
    setsid "$here/cluster.sh" exec "$dir" env MINIO_ROOT_USER=$KEY MINIO_ROOT_PASSWORD=$SECRET MINIO_BROWSER=off \
        MINIO_UPDATE=off MINIO_CI_CD=1 "$minio" server --quiet --address "${SERVER#http://}" "$dir/s3" \
        >"$dir/log/s3.log" 2>&1 </dev/null &
    until "$here/cluster.sh" exec "$dir" curl -sf -o /dev/null $SERVER/minio/health/ready; do
        kill -0 $! 2>/dev/null || { tail "$dir/log/s3.log" >&2; die "the S3 server ended"; }
        sleep 0.1
    done
    "$here/cluster.sh" exec "$dir" "${put[@]}" -X PUT $SERVER/$BUCKET
    while read -r file; do
        "$here/cluster.sh" exec "$dir" "${put[@]}" -T "$file" "$SERVER/$BUCKET/train/$(basename "$file")"
    done < <(pictures)
}

# This machine's way to the API server and to S3. The pair disappears with the cluster's network namespace.
uplink() {
    local first
    first=$(cat "$dir/pid")
    ip link add larder-try type veth peer name host netns "$first"
    ip address add $HERE/30 dev larder-try
    ip link set larder-try up
    nsenter --target "$first" --net sh -c "ip address add $THERE/30 dev host && ip link set host up"
    ip route add 10.89.0.0/24 via $THERE
    mkdir "$dir/host"
    ln -s "$dir/bin/kubectl" "$dir/host/kubectl"
    ln -s "$bin/larder" "$dir/host/larder"
    (umask 077; sed "s|https://10.89.0.1|https://$THERE|" "$dir/kubeconfig" >"$dir/host/kubeconfig")
}

larder() {
    "$root/deploy/images/build" --uncompressed --bin "$bin" "$dir/larder.tar" >/dev/null
    "$here/cluster.sh" load "$dir" "$dir/larder.tar" 2>"$dir/log/load.log" || { cat "$dir/log/load.log" >&2; die "cannot load the image"; }
    rm "$dir/larder.tar"
    mkdir "$dir/overlay"
    cp -r "$root/deploy" "$dir/overlay/deploy"
    mkdir "$dir/overlay/my-larder"
    # The caches are on this machine's disk, however full it is, and both nodes share its CPUs.
    cat >"$dir/overlay/my-larder/kustomization.yaml" <<'YAML'
resources: [../deploy]
components: [../deploy/components/datasets, ../deploy/components/jobs]
patches:
  - target: {kind: DaemonSet, name: larderd, namespace: larder-system}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--keep-free=0%"}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--cache-size=1GiB"}
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 250m}
YAML
    {
        kubectl apply --server-side -k "$dir/overlay/deploy/crds"
        kubectl wait --for=condition=Established crd --all
        kubectl apply -k "$dir/overlay/my-larder"
        kubectl patch lardersettings larder --type=merge -p "{\"spec\":{\"endpoints\":[\"$SERVER\"]}}"
        kubectl create secret generic bucket-reader \
            --from-literal=AWS_ACCESS_KEY_ID=$KEY --from-literal=AWS_SECRET_ACCESS_KEY=$SECRET
    } >"$dir/log/apply.log" 2>&1 || { tail "$dir/log/apply.log" >&2; die "cannot apply Larder"; }
    local what
    for what in daemonset/larderd daemonset/larder-csi deployment/larder-controller; do
        kubectl -n larder-system rollout status "$what" --timeout=5m >/dev/null
    done
}

# Everything but Larder: bare OWNER DIR BIN [NODES]
bare() {
    dir=$2 bin=$(realpath "$3") nodes=${4:-2}
    [[ $EUID -eq 0 ]] || die "needs root: it makes namespaces, mounts and cgroups"
    [[ ! -e $dir/pid ]] || die "a cluster runs in $dir already: stop it with \`make cluster-down\`"
    step "Kubernetes with $nodes nodes"
    "$here/cluster.sh" start "$dir" "$nodes" "$1"
    # Not before: what DIR had in it is not ours to remove.
    trap '[[ $? -eq 0 ]] || "$0" down "$dir"' EXIT
    dir=$(realpath "$dir")
    done_
    step "S3 at $SERVER with $(pictures | wc -l) pictures"
    server
    done_
    uplink
}

up() {
    bare 1 "$@"
    step "Larder with the components datasets and jobs"
    larder
    done_
    cat <<TEXT

Type this next:

  export KUBECONFIG=$dir/host/kubeconfig PATH=$dir/host:\$PATH
  larder example job --source s3://$BUCKET/train --endpoint $SERVER --image larder.dev/busybox:1 | kubectl apply -f -
  kubectl wait --for=condition=Complete tj/read-all --timeout=5m && larder job logs read-all --all

\`make cluster-down\` removes everything.
TEXT
}

down() {
    local linked=
    [[ ! -e $1/host ]] || linked=1
    "$here/cluster.sh" stop "$1"
    # It goes with the cluster's network, which the kernel removes a moment later.
    [[ -z $linked ]] || ip link delete larder-try 2>/dev/null || true
}

case "${1-}:$#" in
    up:[34]) up "${@:2}" ;;
    bare:[34]) bare "$PPID" "${@:2}" ;;
    down:2) down "$2" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
