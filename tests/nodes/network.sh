#!/usr/bin/env bash
# The network of a lab of nodes: a bridge and the nodes, each in a network namespace of its own.
#
#   network.sh NODES FOLDER
#
# The bridge has the address 10.90.0.1; node nN has 10.90.0.(10 + N) at its `eth0`, whose other end is `nN` in the bridge's
# namespace. No interface is outside of these namespaces, so two labs never meet. When all is up, it prints one line: the
# processes by which the namespaces are entered, the bridge's first and then one for each node.
#
# It stays until its standard input ends, whose other end the test holds. Then, whether the test ended or was killed, it
# kills all processes in these namespaces, which removes the interfaces, detaches all mounts below FOLDER, and removes FOLDER.
set -euo pipefail
readonly nodes=$1
folder=$(realpath "$2")
readonly folder
own=$(readlink /proc/self/ns/net)
readonly own
kept=()
namespaces=()

# Starts a process that keeps a network namespace of its own, and appends both to `kept` and `namespaces`.
keep() {
    local namespace=$own
    unshare --net sleep infinity </dev/null >/dev/null &
    kept+=($!)
    # While a process becomes another program, its namespaces may not be told for a moment.
    while [[ -z $namespace || $namespace == "$own" ]]; do
        kill -0 $! || exit 1
        sleep 0.005
        namespace=$(readlink "/proc/$!/ns/net" || true)
    done
    namespaces+=("$namespace")
}

# Runs ip in a kept namespace, with commands from standard input.
ip_in() { nsenter --target "$1" --net ip -batch -; }

up() {
    local n
    keep
    ip_in "${kept[0]}" <<END
link set lo up
link add nodes type bridge
address add 10.90.0.1/24 dev nodes
link set nodes up
END
    for ((n = 1; n <= nodes; n++)); do
        keep
        ip_in "${kept[0]}" <<END
link add n$n type veth peer name eth0 netns ${kept[n]}
link set n$n master nodes up
END
        ip_in "${kept[n]}" <<END
link set lo up
address add 10.90.0.$((10 + n))/24 dev eth0
link set eth0 up
END
    done
    echo "${kept[@]}"
}

# The processes in the namespaces. One may end during the search.
inside() {
    local path namespace
    find /proc/[0-9]*/ns/net -maxdepth 0 -printf '%l %p\n' 2>/dev/null |
        while read -r namespace path; do
            path=${path#/proc/}
            [[ " ${namespaces[*]} " != *" $namespace "* ]] || echo "${path%/ns/net}"
        done || true
}

down() {
    local pids path tries=0
    # All are killed at once, and again in case one was forking.
    while pids=$(inside) && [[ -n $pids ]]; do
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
        ((++tries < 200)) || break
        sleep 0.05
    done
    while read -r path; do
        path=$(printf %b "$path")
        # Its server is dead, so anything that looks at the mount would hang.
        [[ $path != "$folder"/* ]] || umount --lazy --internal-only --no-canonicalize "$path" || true
    done < <(awk '{ print $5 }' /proc/self/mountinfo)
    rm -rf --one-file-system "${folder:?}"
}

trap down EXIT
up
# Ends when the test does.
cat >/dev/null
