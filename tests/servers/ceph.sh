#!/usr/bin/env bash
# A real Ceph for tests: one monitor, one OSD that keeps its objects in memory, and the RADOS gateway. Loopback only.
#
#   ceph.sh install          installs the Debian packages, unless they are there (needs root)
#   ceph.sh check            fails unless they are there
#   ceph.sh start DIR PORT   starts a cluster with its files in DIR and the bucket larder-test; uses PORT to PORT+40
#   ceph.sh user DIR TENANT NAME   makes a user of a tenant whose access key is TENANT-NAME, and whose secret is larder-secret
#   ceph.sh stop DIR         stops it and removes its files
#
# DIR must be empty or missing, and short, because it holds unix sockets. The keys are larder / larder-secret. A guard also
# stops the cluster when the process that started the script is gone.
set -euo pipefail

readonly EMPTY_SHA256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

die() { echo "ceph.sh: $*" >&2; exit 1; }
uuid() { cat /proc/sys/kernel/random/uuid; }
# One at a time: given several names, `command -v` succeeds if it finds any of them.
installed() {
    local program
    for program in ceph-mon ceph-osd radosgw radosgw-admin ceph monmaptool; do
        command -v "$program" >/dev/null || return
    done
}

install() {
    installed && return
    local sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends ceph-mon ceph-osd radosgw ceph-common
}

configure() {
    local dir=$1 port=$2 fsid=$3
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = v1:127.0.0.1:$((port + 1))
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
ms bind port min = $((port + 2))
ms bind port max = $((port + 40))
mon allow pool size one = true
mon data avail crit = 0
mon data = $dir/mon
osd data = $dir/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
# The OSD would report its place to the monitor before it has the monitor's map, which is refused without cephx.
osd class update on start = false
osd crush update on start = false
auth cluster required = none
auth service required = none
auth client required = none
run dir = $dir/run
admin socket = $dir/run/\$name.asok
pid file = $dir/run/\$name.pid
log file = $dir/log/\$name.log
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw data = $dir/rgw
CONF
}

start() {
    local dir=$1 port=$2 owner=$PPID fsid osd
    installed || die "is not installed: run $0 install"
    mkdir -p "$dir"
    [[ -z $(ls -A "$dir") ]] || die "$dir is not empty"
    dir=$(realpath "$dir")
    [[ ${#dir} -le 80 ]] || die "$dir is too long a path for unix sockets"
    mkdir "$dir"/{mon,osd,run,rgw,log}
    fsid=$(uuid) osd=$(uuid)
    configure "$dir" "$port" "$fsid"
    export CEPH_CONF=$dir/ceph.conf
    setsid bash -c 'while kill -0 "$1" 2>/dev/null && [[ -d $2 ]]; do sleep 1; done; "$3" stop "$2"' \
        guard "$owner" "$dir" "$(realpath "$0")" >/dev/null 2>&1 </dev/null &
    if ! bring_up "$dir" "$port" "$fsid" "$osd" >"$dir/log/start" 2>&1; then
        tail -n 20 "$dir/log/start" >&2
        stop "$dir"
        die "did not come up on port $port"
    fi
    echo "http://127.0.0.1:$port"
}

# Without cephx, a command whose client does not have the monitor's map yet is refused as not permitted. So every command
# to the monitor is retried; all of them are idempotent.
again() {
    local tries=0
    until timeout 30 "$@"; do
        ((++tries < 20)) || return
        sleep 0.2
    done
}

make_user() {
    local admin=(radosgw-admin -n client.rgw)
    "${admin[@]}" user create --uid=larder --display-name=larder --access-key=larder --secret-key=larder-secret ||
        "${admin[@]}" user info --uid=larder
}

# A tenant's buckets may have the names of those of another tenant.
make_tenants_user() {
    local dir=$1 tenant=$2 name=$3
    export CEPH_CONF=$dir/ceph.conf
    local admin=(radosgw-admin -n client.rgw user) user=(--tenant="$tenant" --uid="$name") tries=0
    # A user that was made by a command that failed afterwards cannot be made again.
    until "${admin[@]}" create "${user[@]}" --display-name="$name" --access-key="$tenant-$name" --secret-key=larder-secret ||
        "${admin[@]}" info "${user[@]}"; do
        ((++tries < 20)) || return
        sleep 0.2
    done >/dev/null
}

# Called in a condition, where bash does not stop at a failed command.
bring_up() {
    local dir=$1 port=$2 fsid=$3 osd=$4
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v1:127.0.0.1:$((port + 1))]" "$dir/monmap" || return
    ceph-mon --mkfs -i a --monmap "$dir/monmap" || return
    ceph-mon -i a || return
    again ceph osd new "$osd" || return
    ceph-osd -i 0 --mkfs --osd-uuid "$osd" || return
    again ceph osd crush add-bucket localhost host || return
    again ceph osd crush move localhost root=default || return
    again ceph osd crush add osd.0 1.0 host=localhost || return
    ceph-osd -i 0 || return
    again radosgw -n client.rgw || return
    local tries=0
    until curl -s -o /dev/null "http://127.0.0.1:$port/"; do
        # Minutes: a busy machine makes its pools slowly.
        ((++tries < 1500)) || return
        sleep 0.2
    done
    make_user || make_user || return
    curl -sf -X PUT --user larder:larder-secret --aws-sigv4 aws:amz:us-east-1:s3 \
        -H "x-amz-content-sha256: $EMPTY_SHA256" "http://127.0.0.1:$port/larder-test"
}

stop() {
    local dir=$1 pids=() file pid
    for file in "$dir"/run/*.pid; do
        [[ -f $file ]] && pids+=("$(<"$file")")
    done
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
    done
    rm -rf "${dir:?}"
}

case "${1-}:$#" in
    install:1) install ;;
    check:1) installed || die "is not installed: run $0 install" ;;
    start:3) start "$2" "$3" ;;
    user:4) make_tenants_user "$2" "$3" "$4" ;;
    stop:2) stop "$2" ;;
    *) die "use: $0 install | check | start DIR PORT | user DIR TENANT NAME | stop DIR" ;;
esac
