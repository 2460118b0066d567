#!/usr/bin/env bash
# The first process of a cluster and of each of its nodes, and the command that restarts their parts. cluster.sh runs it in
# the cluster's namespaces.
#
#   init.sh cluster DIR NODES
#   init.sh node DIR N
#   init.sh restart DIR kubelet|containerd N
#
# Addresses: the cluster's network has the bridge 10.89.0.1, node nN is 10.89.0.(10 + N), its pods are 10.88.N.0/24.
# There is no kube-proxy: the addresses of the API's service and of DNS are the bridge's too, and those of other services lead
# nowhere, so pods reach each other by the names of headless services.
set -euo pipefail

readonly BRIDGE=10.89.0.1 API=10.96.0.1 DNS=10.96.0.10 SECONDS_TO_START=240
command=$1 dir=$2
log=$dir/log
PATH=$dir/bin:$PATH
export KUBECONFIG=$dir/kubeconfig KUBECACHEDIR=$dir/kubectl

# Runs a part and restarts it when it ends, as an init system would.
supervise() {
    local name=$1
    shift
    while :; do
        "$@" >>"$log/$name.log" 2>&1 </dev/null &
        echo $! >"$dir/pids/$name"
        wait $! || true
        sleep 0.2
    done &
}

# Waits for a command to succeed; if it never does, prints the end of the log that says why.
await() {
    local what=$1 name=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > SECONDS_TO_START)); then
            echo "$what: not within $SECONDS_TO_START s; the end of its log:"
            tail -n 20 "$log/$name.log"
            exit 1
        fi
        sleep 0.1
    done >&2
}

enter_cgroup() { echo 0 >"$TRACKED/$1/processes/cgroup.procs"; }
api_ready() { curl -skf "https://$BRIDGE/readyz"; }
# The first process in a namespace keeps it, and adopts the orphans.
stay() { while :; do sleep 3600; done; }

cluster() {
    local nodes=$1 n
    enter_cgroup .
    leave_mounts
    network
    leave_sysctls
    control_plane
    # Without a node there is no pod that asks it.
    ((nodes == 0)) || name_server
    for n in $(seq "$nodes"); do
        unshare --net --mount "$0" node "$dir" "$n" &
    done
    await "the API server" kube-apiserver api_ready
    for n in $(seq "$nodes"); do
        await "node n$n" "kubelet-n$n" node_ready "$n"
    done
    ((nodes == 0)) || await "DNS" coredns curl -sf "http://$DNS:8181/ready"
    await "the controller manager" kube-controller-manager kubectl get serviceaccount default
    touch "$dir/ready"
    stay
}

# A copy of a FUSE mount of this machine would keep its server from noticing an unmount, and a mount that hangs would hang
# a kubelet. So they are detached without being looked at.
leave_mounts() {
    local path
    while read -r path; do
        # It may have gone in the meantime: whoever removes the folder of a mount removes the mount in all namespaces.
        umount --lazy --internal-only --no-canonicalize "$(printf %b "$path")" 2>/dev/null ||
            ! grep -qF " $path " /proc/self/mounts
    done < <(awk '$3 ~ /^fuse($|\.)/ { print $2 }' /proc/self/mounts)
}

network() {
    ip link set lo up
    ip link add nodes type bridge
    ip address add "$BRIDGE/24" dev nodes
    ip address add "$API/32" dev nodes
    ip address add "$DNS/32" dev nodes
    ip link set nodes up
    echo 1 >/proc/sys/net/ipv4/ip_forward
}

# A kubelet would set these for the whole machine. Here it finds the values that it wants.
leave_sysctls() {
    local setting file
    mkdir "$dir/sysctl"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        file=${setting%=*}
        echo "${setting#*=}" >"$dir/sysctl/${file##*/}"
        mount --bind "$dir/sysctl/${file##*/}" "/proc/sys/$file"
    done
    # The kernel mounts no proc in a user namespace, as for a pod with hostUsers: false, unless one without such mounts is
    # visible.
    mkdir "$dir/proc"
    mount -t proc proc "$dir/proc"
}

# More flags of its parts come from the environment; a part that does not know one never comes up.
# shellcheck disable=SC2086
control_plane() {
    local key=$dir/service-accounts.key
    openssl ecparam -name prime256v1 -genkey -noout -out "$key"
    # Whoever has the token is root on the nodes, and thus on this machine.
    local token
    token=$(openssl rand -hex 16)
    install -m 600 /dev/null "$dir/tokens.csv"
    install -m 600 /dev/null "$KUBECONFIG"
    echo "$token,admin,admin,\"system:masters\"" >"$dir/tokens.csv"
    cat >"$KUBECONFIG" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$BRIDGE", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
YAML
    supervise etcd etcd --name test --data-dir "$dir/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380
    supervise kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir="$dir/certs" \
        --secure-port=443 --advertise-address="$BRIDGE" --service-cluster-ip-range=10.96.0.0/16 \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-account-signing-key-file="$key" --service-account-key-file="$key" \
        --token-auth-file="$dir/tokens.csv" --authorization-mode=Node,RBAC --allow-privileged \
        --kubelet-preferred-address-types=InternalIP ${APISERVER_FLAGS-} ${GANGS_FLAGS-} \
        ${GANGS_FLAGS:+--runtime-config=scheduling.k8s.io/v1beta1=true}
    # The controller manager reads the certificate that the API server makes.
    await "the API server" kube-apiserver test -s "$dir/certs/apiserver.crt"
    # Its controllers have accounts of their own, as in most clusters: policies tell the garbage collector from users.
    supervise kube-controller-manager kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false \
        --use-service-account-credentials \
        --service-account-private-key-file="$key" --root-ca-file="$dir/certs/apiserver.crt" \
        --flex-volume-plugin-dir="$dir/volume-plugins" ${CONTROLLER_MANAGER_FLAGS-} ${GANGS_FLAGS-}
    supervise kube-scheduler kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false ${SCHEDULER_FLAGS-} ${GANGS_FLAGS-}
}

# Answers are not kept anywhere (ttl 0): a new pod's name is found at once. A name outside of the cluster is an error.
name_server() {
    cat >"$dir/Corefile" <<COREFILE
.:53 {
    bind $DNS
    errors
    ready $DNS:8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $KUBECONFIG
        ttl 0
    }
}
COREFILE
    supervise coredns coredns -conf "$dir/Corefile"
}

node_ready() {
    local condition='{.status.conditions[?(@.type=="Ready")].status}'
    [[ $(kubectl get node "n$1" -o jsonpath="$condition") == True ]]
}

node() {
    local n=$1 image
    local folder=$dir/n$n address=10.89.0.$((10 + n))
    enter_cgroup "n$n"
    echo $$ >"$dir/pids/n$n"
    mkdir -p "$folder"/{kubelet,containerd,cni,upper,work}
    node_network "$n" "$address"
    node_mounts "$folder"
    [[ -z ${DEVICES-} ]] || fake_host "$folder"
    containerd_settings "$n" "$folder"
    kubelet_settings "$n" "$folder"
    supervise "containerd-n$n" containerd -c "$folder/containerd.toml"
    await "the containerd of n$n" "containerd-n$n" ctr version
    for image in "$dir"/images/*.tar; do
        ctr -n k8s.io images import --all-platforms "$image" >>"$log/containerd-n$n.log" 2>&1
    done
    await "the API server" kube-apiserver api_ready
    supervise "kubelet-n$n" kubelet --config="$folder/kubelet.yaml" --kubeconfig="$KUBECONFIG" \
        --hostname-override="n$n" --node-ip="$address"
    stay
}

node_network() {
    local n=$1 address=$2
    ip link add eth0 type veth peer name "n$n" netns 1
    ip link set lo up
    ip address add "$address/24" dev eth0
    ip link set eth0 up
    ip route add default via "$BRIDGE"
    nsenter --target 1 --net ip link set "n$n" master nodes up
    nsenter --target 1 --net ip route add "10.88.$n.0/24" via "$address"
}

# Every node has the stock paths, some of which no flag moves. Nothing is written to the machine's.
node_mounts() {
    local folder=$1
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/log
    mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$folder/upper,workdir=$folder/work" /var/lib
    mkdir -p /var/lib/kubelet /var/lib/containerd
    mount --bind "$folder/containerd" /var/lib/containerd
    mount --bind "$folder/kubelet" /var/lib/kubelet
    # The mounts of a pod with Bidirectional propagation must reach the kubelet and other pods.
    mount --make-rshared /var/lib/kubelet
}

# Two NUMA nodes with a CPU each, in place of the machine's, and an /opt of the node's own, for programs that pods put there.
fake_host() {
    local tree=$1/numa real=/sys/devices/system/node n pages
    for n in 0 1; do
        mkdir -p "$tree/node$n"
        ln -s "../../cpu/cpu$n" "$tree/node$n/cpu$n"
        sed "s/^Node 0/Node $n/; s/\(MemTotal:\|MemFree:\) .*/\1 8388608 kB/" "$real/node0/meminfo" >"$tree/node$n/meminfo"
        for pages in "$real"/node0/hugepages/*; do
            mkdir -p "$tree/node$n/hugepages/${pages##*/}"
            echo 0 | tee "$tree/node$n/hugepages/${pages##*/}"/{nr,free,surplus}_hugepages >/dev/null
        done
        echo "$n" >"$tree/node$n/cpulist"
    done
    echo "10 21" >"$tree/node0/distance"
    echo "21 10" >"$tree/node1/distance"
    echo 0-1 | tee "$tree"/{online,possible,has_memory,has_cpu,has_normal_memory} >/dev/null
    mount --bind "$tree" "$real"
    mount -t tmpfs tmpfs /opt
}

containerd_settings() {
    local n=$1 folder=$2
    cat >"$folder/cni/10-ptp.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "n$n", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {
  "type": "host-local", "ranges": [[{"subnet": "10.88.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
    # Without CAP_SYS_RESOURCE, which many CI machines lack, no process may lower its oom_score_adj.
    cat >"$folder/containerd.toml" <<TOML
version = 3
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "larder.dev/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$folder/cni"
  # The handler of a RuntimeClass, for pods in user namespaces.
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.mapping]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.mapping.options]
      BinaryName = "$dir/bin/runc-mapping"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
TOML
    [[ -n ${LARDER_TEST_DEVICES-} ]] || return 0
    printf '#!/bin/sh\nexec "%s/runc-kept" "%s" "$@"\n' "$(dirname "$0")" "$folder" >"$folder/runc"
    chmod +x "$folder/runc"
    cat >>"$folder/containerd.toml" <<TOML
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$folder/runc"
TOML
}

kubelet_settings() {
    local n=$1 folder=$2 cgroup
    cgroup=$(<"$dir/cgroup")
    cat >"$folder/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/n$n
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/volume-plugins
failSwapOn: false
evictionHard: {memory.available: 50Mi, nodefs.available: 100Mi, imagefs.available: 100Mi}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
resolvConf: ""
clusterDNS: [$DNS]
clusterDomain: cluster.local
maxPods: 110
cpuManagerPolicy: static
kubeReserved: {cpu: 400m}
# Tests wait for containers that are restarted, so the restart is not delayed.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
# And for volumes that are published again, with another token or once their keys are good: by default, that takes a minute or two.
syncFrequency: 10s
YAML
    [[ -z ${DEVICES-} ]] || printf '%s\n' "topologyManagerPolicy: single-numa-node" "nodeStatusUpdateFrequency: 1s" >>"$folder/kubelet.yaml"
}

restart() {
    local part=$1 n=$2 pid
    local file=$dir/pids/$part-n$n
    pid=$(<"$file")
    kill "$pid"
    await "the $part of n$n" "$part-n$n" restarted "$file" "$pid"
    case $part in
        containerd) await "the containerd of n$n" "$part-n$n" in_node "$n" ctr version ;;
        kubelet) await "the kubelet of n$n" "$part-n$n" in_node "$n" curl -sf http://127.0.0.1:10248/healthz ;;
    esac
}

restarted() { [[ $(<"$1") != "$2" ]]; }
in_node() { nsenter --target "$(<"$dir/pids/n$1")" --net --mount "${@:2}"; }

case $command in
    cluster) cluster "$3" ;;
    node) node "$3" ;;
    restart) restart "$3" "$4" ;;
esac
