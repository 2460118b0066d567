#!/usr/bin/env bash
# A real Kubernetes cluster for tests: etcd, the control plane, DNS, and nodes with a kubelet and a containerd each.
#
#   cluster.sh packages                           installs the Debian packages, unless they are there
#   cluster.sh install                            the same, and builds the pinned parts, unless they are there
#   cluster.sh check                              fails unless they are there
#   cluster.sh start DIR NODES [OWNER]            starts a cluster with its files in DIR; it ends with the process OWNER
#   cluster.sh stop DIR                           stops it and removes its files
#   cluster.sh load DIR IMAGE.tar                 loads an image into all nodes
#   cluster.sh restart DIR kubelet|containerd N   restarts a part of node nN
#   cluster.sh kubectl ARGS...                    runs kubectl outside of any cluster, for `kubectl kustomize`
#   cluster.sh exec DIR COMMAND...                runs a command inside the cluster; kubectl is on its PATH
#   cluster.sh exec-node DIR N COMMAND...         runs a command inside node nN; ctr is on its PATH
#
# DIR must be missing or hold nothing but images/*.tar, which all nodes load when they start. It must be short, because it
# holds unix sockets. A node's /var/lib/kubelet is visible from outside as DIR/nN/kubelet.
#
# A cluster lives in network, mount and process namespaces of its own, so two of them never meet, and when its first
# process (init.sh) dies so does all of it. Only its cgroups are the machine's; their name follows from DIR, and every
# process in them is the cluster's. OWNER is by default the process that started the script; 1 keeps a cluster until `stop`.
#
# The environment can choose another version of Kubernetes, for which there is a kube/go-VERSION.mod (peers.sh):
# LARDER_TEST_KUBERNETES=v1.37.0, whose gangs are turned on. With LARDER_TEST_DEVICES=1 each node has two fake NUMA nodes, and its
# kubelet aligns devices to them and reports its state every second. Then DIR/nN/specs/ID.json is the OCI spec of each container, and
# runc-kept fakes what this kernel lacks to limit RDMA objects.
set -euo pipefail

readonly KUBERNETES=${LARDER_TEST_KUBERNETES:-v1.36.3} CONTAINERD=v2.4.2 CSI_SANITY=v5.4.0 COREDNS=v1.15.0 RUNC=v1.4.1
readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}
here=$(dirname "$(realpath "$0")")

die() { echo "cluster.sh: $*" >&2; exit 1; }

# Programs that install builds, by their names in BIN.
readonly KUBE=kube-$KUBERNETES CONTAINERD_PARTS=(containerd containerd-shim-runc-v2 ctr)
built() { printf '%s\n' "$KUBE" "${CONTAINERD_PARTS[@]/%/-$CONTAINERD}" "coredns-$COREDNS" "csi-sanity-$CSI_SANITY" "runc-seccomp-$RUNC"; }

packaged() {
    local tool
    for tool in runc busybox ip openssl curl python3 unshare pkg-config /usr/lib/cni/{ptp,host-local}; do
        command -v "$tool" >/dev/null || return
    done
    [[ -e /usr/include/seccomp.h ]]
}

missing() {
    local name
    packaged || echo packages
    for name in $(built); do
        [[ -x $BIN/$name ]] || echo "$name"
    done
}

check() {
    local missing
    missing=$(missing)
    [[ -z $missing ]] || die "is not installed (${missing//$'\n'/, }): run $0 install"
}

packages() {
    packaged && return
    local sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        runc containernetworking-plugins busybox-static iproute2 openssl curl python3 util-linux \
        gcc libc6-dev libseccomp-dev pkg-config >/dev/null
}

install() {
    packages
    [[ -n $(missing) ]] || return 0
    command -v go >/dev/null || die "needs Go to build Kubernetes: https://go.dev/dl"
    mkdir -p "$BIN"
    local build
    # On BIN's disk, because files are renamed into place: a build that was killed leaves no half of a program there.
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$build'" EXIT
    export GOBIN=$build GOFLAGS=-trimpath
    local name
    for name in $(missing); do
        case $name in
            "$KUBE")
                echo "building Kubernetes (ten minutes the first time)"
                local version=k8s.io/component-base/version minor=${KUBERNETES#v1.} modules=go.mod
                [[ ! -f $here/kube/go-$KUBERNETES.mod ]] || modules=go-$KUBERNETES.mod
                (cd "$here/kube" && go build -modfile="$modules" -o "$build/$name" -ldflags "-s -w -X $version.gitVersion=$KUBERNETES \
                    -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*}" .)
                ;;
            coredns-*)
                echo "building CoreDNS"
                (cd "$here/coredns" && go build -o "$build/$name" -ldflags "-s -w" .)
                ;;
            csi-sanity-*)
                echo "building csi-sanity"
                go install "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$CSI_SANITY"
                mv "$build/csi-sanity" "$build/$name"
                ;;
            runc-*)
                # Debian's runc maps no mounts into user namespaces.
                echo "building runc"
                CGO_ENABLED=1 go install -tags seccomp "github.com/opencontainers/runc@$RUNC"
                mv "$build/runc" "$build/$name"
                ;;
            *)
                local part=${name%-"$CONTAINERD"}
                echo "building $part"
                go install "github.com/containerd/containerd/v2/cmd/$part@$CONTAINERD"
                mv "$build/$part" "$build/$name"
                ;;
        esac
        mv "$build/$name" "$BIN/$name"
    done
}

# The kernel's cgroup trees: one, or with cgroup v1 one for each controller. `tracked` is the tree that holds every process
# of a cluster.
hierarchies() {
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        echo /sys/fs/cgroup
    else
        printf '%s\n' /sys/fs/cgroup/*/
    fi
}
tracked() {
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        echo /sys/fs/cgroup
    else
        echo /sys/fs/cgroup/pids
    fi
}
cgroup_of() { echo "larder-$(sha256sum <<<"$1" | head -c 12)"; }

make_cgroups() {
    local cgroup=$1 nodes=$2 tree made file
    for tree in $(hierarchies); do
        for made in "$tree/$cgroup" $(seq -f "$tree/$cgroup/n%g" "$nodes"); do
            mkdir -p "$made/processes"
            # New groups have no CPUs in cgroup v1, and no controllers in v2.
            if [[ $tree == */cpuset/ ]]; then
                for file in cpuset.cpus cpuset.mems; do
                    tee "$made/$file" "$made/processes/$file" <"$tree/$file" >/dev/null
                done
            elif [[ $tree == /sys/fs/cgroup ]]; then
                sed 's/\w\+/+&/g' "$tree/cgroup.controllers" |
                    tee "$tree/cgroup.subtree_control" "$tree/$cgroup/cgroup.subtree_control" \
                        >"$made/cgroup.subtree_control"
            fi
        done
    done
}

images() {
    local dir=$1 rootfs=$1/rootfs
    local build=("$here/../../deploy/images/build" --uncompressed)
    mkdir -p "$dir/images" "$rootfs"/{bin,dev,etc,proc,sys,tmp}
    cp "$(command -v busybox)" "$rootfs/bin/busybox"
    chroot "$rootfs" /bin/busybox --install -s /bin
    "${build[@]}" --rootfs "$rootfs" --name larder.dev/busybox:1 "$dir/images/busybox.tar"
    "${build[@]}" --rootfs "$rootfs" --name larder.dev/pause:1 --entrypoint /bin/sleep infinity -- "$dir/images/pause.tar"
    rm -r "$rootfs"
}

start() {
    local dir=$1 nodes=$2 owner=$3 cgroup unshare first
    check
    [[ $EUID -eq 0 ]] || die "needs root: it makes namespaces, mounts and cgroups"
    mkdir -p "$dir"
    dir=$(realpath "$dir")
    [[ -z $(ls -A "$dir" | grep -vx images) ]] || die "$dir is not empty"
    [[ ${#dir} -le 50 ]] || die "$dir is too long a path for unix sockets"
    # A node mounts folders of its own there.
    [[ ! $dir =~ ^/(run|var/lib|var/log)/ ]] || die "$dir cannot be below /run, /var/lib or /var/log"
    mkdir "$dir"/{bin,log,pids}
    local name
    for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
        ln -s "$BIN/$KUBE" "$dir/bin/$name"
    done
    ln -s "$BIN/coredns-$COREDNS" "$dir/bin/coredns"
    ln -s "$BIN/runc-seccomp-$RUNC" "$dir/bin/runc-mapping"
    for name in "${CONTAINERD_PARTS[@]}"; do
        ln -s "$BIN/$name-$CONTAINERD" "$dir/bin/$name"
    done
    setsid "$here/cluster.sh" guard "$dir" "$owner" >/dev/null 2>&1 </dev/null &
    cgroup=$(cgroup_of "$dir")
    echo "$cgroup" >"$dir/cgroup"
    make_cgroups "$cgroup" "$nodes"
    ((nodes == 0)) || images "$dir" >"$dir/log/images.log" 2>&1 || failed "$dir" images
    TRACKED=$(tracked)/$cgroup
    [[ $KUBERNETES != v1.37.* ]] || GANGS_FLAGS=--feature-gates=GenericWorkload=true
    DEVICES=${LARDER_TEST_DEVICES-}
    export TRACKED GANGS_FLAGS DEVICES
    setsid unshare --net --mount --pid --mount-proc --fork --kill-child \
        "$here/init.sh" cluster "$dir" "$nodes" >"$dir/log/init.log" 2>&1 </dev/null &
    unshare=$!
    # The first process is number 1 inside. Its number outside is that of its parent's only child.
    until read -r -d ' ' first 2>/dev/null <"/proc/$unshare/task/$unshare/children"; do
        kill -0 "$unshare" 2>/dev/null || failed "$dir" init
        sleep 0.01
    done
    echo "$first" >"$dir/pid"
    until [[ -e $dir/ready ]]; do
        kill -0 "$unshare" 2>/dev/null || failed "$dir" init
        sleep 0.05
    done
}

# Stops a cluster when its owner or its folder is gone. After `stop` it has only the lock to remove, by which tests take turns
# at a shared cluster: with its owner there are no tests left.
guard() {
    local dir=$1 owner=$2
    trap 'while [[ -e $dir.lock ]] && kill -0 "$owner" 2>/dev/null; do sleep 0.5; done; rm -f "$dir.lock"; exit' TERM
    echo $$ >"$dir/guard"
    while kill -0 "$owner" 2>/dev/null && [[ $(cat "$dir/guard" 2>/dev/null) == $$ ]]; do
        sleep 0.5
    done
    if [[ $(cat "$dir/guard" 2>/dev/null || echo $$) == $$ ]]; then
        stop "$dir"
        rm -f "$dir.lock"
    fi
}

failed() {
    tail -n 30 "$1/log/$2.log" >&2
    stop "$1"
    die "did not come up"
}

# A cgroup may disappear while find reads it.
processes() { find "$(tracked)/$1" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u || true; }

stop() {
    local dir cgroup guard tree pids tries=0
    dir=$(realpath -m "$1")
    [[ ! -e $dir || -d $dir/pids || -z $(ls -A "$dir" | grep -vx images) ]] || die "$dir has files that are no cluster's"
    cgroup=$(cgroup_of "$dir")
    # Its guard first, which would take a new cluster in this folder for one whose folder is gone.
    guard=$(cat "$dir/guard" 2>/dev/null || echo $$)
    [[ $guard == $$ ]] || kill "$guard" 2>/dev/null || true
    # All are killed at once, and again in case one was forking. With the last process the mounts and interfaces go.
    while pids=$(processes "$cgroup") && [[ -n $pids ]]; do
        ((++tries < 300)) || die "cannot kill "$pids
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
        sleep 0.1
    done
    for tree in $(hierarchies); do
        tries=0
        while [[ -d $tree/$cgroup ]]; do
            find "$tree/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
            ((++tries < 100)) || die "cannot remove $tree/$cgroup"
            sleep 0.1
        done
    done
    rm -rf "${dir:?}"
}

inside() {
    local dir=$1 first
    shift
    # The first process of the cluster, by its number outside.
    first=$(cat "$dir/pid" 2>/dev/null) || die "there is no cluster in $dir"
    nsenter --target "$first" --net --mount --pid \
        env PATH="$dir/bin:$PATH" KUBECONFIG="$dir/kubeconfig" KUBECACHEDIR="$dir/kubectl" "$@"
}

inside_node() {
    local dir=$1 node=$2 first
    shift 2
    first=$(cat "$dir/pids/n$node" 2>/dev/null) || die "there is no node n$node in $dir"
    inside "$dir" nsenter --target "$first" --net --mount "$@"
}

load() {
    local dir=$1 image=$2 node pid loading=()
    for node in "$dir"/n[0-9]*/; do
        node=$(basename "$node")
        inside_node "$dir" "${node#n}" ctr -n k8s.io images import --all-platforms "$image" >/dev/null &
        loading+=($!)
    done
    for pid in "${loading[@]}"; do
        wait "$pid" || die "cannot load $image"
    done
}

case "${1-}:$#" in
    packages:1) packages ;;
    install:1) install ;;
    check:1) check ;;
    start:3) start "$2" "$3" "$PPID" ;;
    start:4) start "$2" "$3" "$4" ;;
    guard:3) guard "$2" "$3" ;;
    stop:2) stop "$2" ;;
    load:3) load "$(realpath "$2")" "$(realpath "$3")" ;;
    restart:4) inside "$(realpath "$2")" "$here/init.sh" restart "$(realpath "$2")" "$3" "$4" ;;
    kubectl:[2-9] | kubectl:[1-9][0-9]*) exec "$BIN/$KUBE" "$@" ;;
    exec:[3-9] | exec:[1-9][0-9]*) inside "$(realpath "$2")" "${@:3}" ;;
    exec-node:[4-9] | exec-node:[1-9][0-9]*) inside_node "$(realpath "$2")" "$3" "${@:4}" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
