#!/usr/bin/env bash
# Walks the ways of two new users: runs the commands and applies the manifests of the documents, in the order in which a reader meets
# them, and prints the time of each. The first command that fails ends the walk, with its output and its place.
#
#   walk.sh researcher minio|moto|rclone BIN   README, START and MOUNT, on a machine without Larder, over a real S3 server
#   walk.sh engineer DIR BIN                   README's Kubernetes part, docs/kubernetes and DEVICES, on a cluster with its files in DIR
#
# BIN is the folder of Larder's programs. Both need root. Nothing remains after a walk. With WALK_OUTPUT=1 in the environment, what
# each command prints is shown, too.
#
# Blocks without a language, or with `sh`, are commands. `yaml` is written to the file that its first line names (`# my-larder/x.yaml`),
# or applied if it is a whole manifest, or else it is a fragment. `text` is what a program prints. A block of another kind fails.
#
# Every command is run unless it is in `exceptions`, and an exception that matches no command fails: so a new command is walked from
# the day on which it is written. Prefer a document whose commands run to an exception.
set -euo pipefail
shopt -s extglob

here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
readonly here root

# What each way reads. A page with `:` is read under that heading only.
pages() {
    case $1 in
        researcher) printf '%s\n' "README.md:Install and first use" docs/START.md docs/MOUNT.md \
            "docs/TROUBLESHOOTING.md:On one machine" ;;
        engineer)
            printf '%s\n' "README.md:On Kubernetes" docs/kubernetes/{install,datasets,serving,jobs,queues,scheduling}.md \
                "docs/TROUBLESHOOTING.md:On Kubernetes" docs/DEVICES.md docs/kubernetes/{operations,clusters}.md
            ;;
    esac
}

# PAGE :: words of the command :: why it is not run.
exceptions() {
    case $1 in
        researcher) cat <<'TEXT' ;;
README.md :: sudo apt install :: needs a release; make release-check packs and installs one
README.md :: git clone :: needs the network; the walk has the repository
README.md :: make quickstart :: builds for minutes; the end-to-end tests run quickstart
README.md :: make install :: builds for minutes; the walk installs what was built
docs/START.md :: larder quickstart :: the end-to-end tests run it
docs/START.md :: git clone :: as in README.md
docs/START.md :: make quickstart :: as in README.md
docs/START.md :: make install :: as in README.md
docs/MOUNT.md :: systemctl :: needs systemd; a test of its own has a stand-in, and .ci/systemd a real one
docs/MOUNT.md :: # the service serves it :: as above
docs/MOUNT.md :: http://127.0.0.1:9464 :: as above
docs/MOUNT.md :: make peers :: measures for half an hour; a test measures with few files
TEXT
        engineer) cat <<'TEXT' ;;
README.md :: helm install :: needs a registry; a test of its own installs the charts
README.md :: make build :: builds for minutes; the walk has the programs
docs/kubernetes/install.md :: make build :: as in README.md
docs/kubernetes/install.md :: deploy/images/build :: README's command has built the image
docs/kubernetes/install.md :: helm install :: needs the charts of a release; a test of its own installs them
docs/kubernetes/install.md :: kind: Certificate :: needs cert-manager
docs/kubernetes/serving.md :: larder example model-server :: needs GPUs and vLLM; a test of its own has another server
docs/kubernetes/serving.md :: kubectl logs deployment/model-server :: as above
docs/kubernetes/serving.md :: kind: LeaderWorkerSet :: needs LeaderWorkerSet
docs/kubernetes/serving.md :: snapshot=$(kubectl :: as above
docs/kubernetes/serving.md :: kubectl patch leaderworkerset :: as above
docs/kubernetes/serving.md :: tiny_model.py make :: needs transformers; `make soak` runs it
docs/kubernetes/serving.md :: aws s3 cp :: as above
docs/kubernetes/serving.md :: kubectl create configmap tiny-model :: as above
docs/kubernetes/serving.md :: kind: Pod :: as above
docs/kubernetes/serving.md :: kubectl logs -f tiny-model :: as above
docs/kubernetes/jobs.md :: kubectl get pytorchjobs :: needs Kubeflow
docs/kubernetes/jobs.md :: larder job top :: needs metrics-server
docs/kubernetes/jobs.md :: larder job logs team-a/tune :: needs a trial that has run; a test of its own waits for some
docs/kubernetes/queues.md :: kind: AdmissionCheck :: needs Kueue; a test of its own has it
docs/kubernetes/operations.md :: helm upgrade :: needs the charts of a release; a test of its own upgrades them
docs/kubernetes/operations.md :: configmap larder-endpoints :: needs an installation of 0.2
docs/kubernetes/operations.md :: kind: LarderSettings :: the overlay has made one
docs/kubernetes/operations.md :: kubectl label namespace monitoring :: needs Prometheus
docs/kubernetes/operations.md :: cargo nextest run --release :: measures an optimized build
docs/kubernetes/clusters.md :: kind: Cluster :: needs a second cluster; the tests of the controller have three
docs/kubernetes/clusters.md :: kind: TrainingJob :: as above
TEXT
    esac
}

# PAGE :: words of a command :: PAGE:HEADING. A link beside the command leads to blocks that its reader runs first.
links() {
    cat <<'TEXT'
docs/MOUNT.md :: larderd --cache-dir :: docs/kubernetes/install.md:Make the certificates
TEXT
}

# Commands that run until the reader ends them: `seen` ones are ended after two seconds, `kept` ones run until the page ends, in a
# terminal of their own.
until_ended() {
    case $1 in
        *"stats /data/train --watch"*) echo seen ;;
        "larderd --cache-dir"* | "kubectl port-forward"*) echo kept ;;
    esac
}

# What stands in the documents for something of the reader's own.
substitutions() {
    case $1 in
        # A tenth of a percent of the files: programs that are not optimized take minutes for all.
        researcher) sed 's/--files 14197122 --cache 200GiB/--files 14197 --cache 200MiB/' ;;
        # The server, with the flag that the pages say to add where it is not AWS; images that are on the nodes, instead of a
        # registry's; sizes of pods that two small nodes have room for; a node's name. The image of programs that are not optimized
        # takes a minute to compress, so it is not.
        engineer) sed -E "s|(# )?endpoint: http://ceph:7480|endpoint: $walk_server|; s|http://ceph:7480|$walk_server|
            s|larder example [a-z-]+|& --image larder.dev/busybox:1|; /larder example inline/! s|larder example [a-z-]+|& --endpoint $walk_server|
            s,(registry.example(.org)?/(resnet|ranks|train|mnist)|quay.io/jupyter/minimal-notebook)\b,larder.dev/reader:1,
            s|--image=busybox|--image=larder.dev/busybox:1|; s|^deploy/images/build|& --uncompressed|
            s|cpu: 8, memory: 64Gi|cpu: 50m, memory: 64Mi|; s/\b(n7|NODE)\b/n1/" ;;
    esac
}

die() { echo "walk.sh: $*" >&2; exit 1; }

# ---- The reader of a page, in a shell with nothing but what a reader has. Its variables begin with `walk_`, and commands see none.

# Whether words are those of a line of a table: matching TABLE PAGE COMMAND. Prints what the line says.
walk_matching() {
    local page words rest
    while IFS= read -r rest; do
        page=${rest%% :: *} rest=${rest#* :: }
        words=${rest%% :: *}
        [[ $page == "$2" && $3 == *"$words"* ]] || continue
        echo "$page :: $words" >>"$walk_work/matched"
        echo "${rest#* :: }"
        return
    done <<<"$1"
    return 1
}

# The text of a command on one line of the report.
walk_title() {
    local title=${1%%$'\n'*}
    title=${title%\\}
    title=${title%%  *([[:space:]])\#*}
    [[ ${#title} -le 110 ]] || title=${title:0:107}...
    echo "$title"
}

# Runs a command of the page at a line.
walk_step() {
    local walk_line=$1 walk_text=$2 walk_reason walk_kind walk_status walk_from walk_title
    walk_title=$(walk_title "$walk_text")
    if walk_reason=$(walk_matching "$(exceptions "$walk_role")" "$walk_page" "$walk_text"); then
        printf '       -  %s  (not run: %s)\n' "$walk_title" "$walk_reason"
        return
    fi
    if walk_reason=$(walk_matching "$(links)" "$walk_page" "$walk_text"); then
        walk_blocks "${walk_reason%%:*}" "${walk_reason#*:}"
    fi
    walk_kind=$(until_ended "$walk_text")
    walk_from=${EPOCHREALTIME/./}
    case $walk_kind in
        "")
            # It ends a command that hangs. A read of what never comes is a wait without a process of its own.
            (
                read -rt 240 <> <(:)
                read -ra walk_children <"/proc/$$/task/$$/children"
                kill "${walk_children[@]}"
            ) >/dev/null 2>&1 &
            walk_watch=$!
            eval "$walk_text" >"$walk_log" 2>&1 </dev/null
            ;;
        seen) timeout --signal=INT 2 bash -c "$walk_text" >"$walk_log" 2>&1 </dev/null ;;
        kept)
            setsid bash -c "$walk_text" >"$walk_log" 2>&1 </dev/null &
            walk_kept+=($!)
            sleep 2
            kill -0 $! 2>/dev/null
            ;;
    esac
    walk_status=$?
    [[ -n $walk_kind ]] || { kill "$walk_watch"; wait "$walk_watch"; } 2>/dev/null
    # The status of a `timeout` that ended its command.
    [[ $walk_kind != seen || $walk_status != 124 ]] || walk_status=0
    printf '%6d.%d s  %s\n' $(((${EPOCHREALTIME/./} - walk_from) / 1000000)) $(((${EPOCHREALTIME/./} - walk_from) / 100000 % 10)) "$walk_title"
    [[ -z ${WALK_OUTPUT-} ]] || sed 's/^/            | /' "$walk_log"
    [[ $walk_status == 0 ]] || walk_failed "$walk_line" "ended with $walk_status: $walk_text"
    [[ $walk_kind != kept ]] || walk_log=$walk_work/log.$walk_line
}

walk_failed() {
    printf '\n%s:%s: %s\n' "$walk_page" "$1" "$2"
    [[ ! -s $walk_log ]] || sed 's/^/    | /' "$walk_log"
    exit 1
}

# Runs the commands of a block: a command ends where the shell would not wait for another line.
walk_commands() {
    local walk_at=$1 walk_start=$1 walk_next walk_command=
    while IFS= read -r walk_next; do
        [[ -n $walk_command ]] || walk_start=$walk_at
        ((++walk_at))
        walk_command+=${walk_command:+$'\n'}$walk_next
        [[ $walk_next != *\\ ]] || continue
        [[ -z $(bash -n <<<"$walk_command" 2>&1) ]] || continue
        # A line of comments, or none.
        if grep -qvE '^[[:space:]]*(#|$)' <<<"$walk_command"; then
            walk_step "$walk_start" "$walk_command"
        fi
        walk_command=
    done <<<"$2"
    [[ -z $walk_command ]] || walk_failed "$walk_start" "not a command: $walk_command"
}

walk_manifest() {
    local walk_line=$1 walk_text=$2 walk_file
    walk_file=$(sed -nE '1s/^# ([[:alnum:]._/-]+\.yaml)\b.*/\1/p' <<<"$walk_text")
    if [[ -n $walk_file ]]; then
        mkdir -p "$(dirname "$walk_file")"
        printf '%s\n' "$walk_text" >"$walk_file"
        printf '       -  write %s\n' "$walk_file"
    elif grep -q '^apiVersion:' <<<"$walk_text" && grep -q '^kind:' <<<"$walk_text"; then
        printf '%s\n' "$walk_text" >"$walk_work/manifest.yaml"
        # With its text, by which an exception finds it.
        walk_step "$walk_line" "kubectl apply -f $walk_work/manifest.yaml  # $(sed -n '/^kind:/{p;q}' <<<"$walk_text")"
    else
        printf '       -  a fragment: %s\n' "$(walk_title "$walk_text")"
    fi
}

# Walks the blocks of a page, or those under one heading.
walk_blocks() {
    local walk_page=$1 walk_wanted=${2-} walk_first=0 walk_text='' walk_number walk_language walk_heading walk_row walk_kind_of
    while IFS=$'\t' read -r walk_number walk_language walk_heading walk_row; do
        [[ -z $walk_wanted || $walk_heading == "$walk_wanted" ]] || continue
        if [[ $walk_language != end ]]; then
            [[ $walk_first != 0 ]] || walk_first=$walk_number walk_kind_of=$walk_language
            walk_text+=$walk_row$'\n'
            continue
        fi
        walk_text=$(substitutions "$walk_role" <<<"${walk_text%$'\n'}")
        case $walk_kind_of in
            - | sh) walk_commands "$walk_first" "$walk_text" ;;
            yaml) walk_manifest "$walk_first" "$walk_text" ;;
            text) ;;
            *) walk_failed "$walk_first" "no kind of block that is walked: $walk_kind_of" ;;
        esac
        walk_first=0 walk_text=
    done < <(awk -f "$root/tests/walk/blocks.awk" "$root/$walk_page")
}

# page ROLE WORK PAGE[:HEADING]: in the shell of a reader.
page() {
    walk_role=$1 walk_work=$2 walk_log=$2/log walk_server=$AWS_ENDPOINT_URL walk_kept=()
    set +euo pipefail
    echo "$3"
    walk_blocks "${3%%:*}" "$([[ $3 != *:* ]] || echo "${3#*:}")"
    for walk_kept_one in ${walk_kept[@]+"${walk_kept[@]}"}; do
        kill -TERM -- "-$walk_kept_one" || { echo "$3: a program that runs until it is ended has ended"; exit 1; }
        wait "$walk_kept_one" 2>/dev/null
    done
    exit 0
}

# ---- The walk.

# Every page is walked, or says nothing that a reader types.
check_pages() {
    local page known
    known=$({ pages researcher; pages engineer; } | sed 's/:.*//')
    while IFS= read -r page; do
        case docs/$page in
            # Reference and decisions, some of them generated; benchmarks and their tables. The tests of the Python package
            # run the examples of its page.
            docs/adr/* | docs/@(SEMANTICS|COMMANDS|METRICS|XIDS|CRDS|PERFORMANCE|COMPARISON|PYTHON).md) continue ;;
        esac
        grep -qx "docs/$page" <<<"$known" || [[ -z $(awk -f "$here/blocks.awk" "$root/docs/$page") ]] ||
            die "docs/$page has commands, and no way leads there: add it to pages"
    done < <(sed -nE 's/.*\]\(([^)]+\.md)\).*/\1/p' "$root/docs/SUMMARY.md")
    # Of README, what is under no heading of a way.
    page=$(awk -f "$here/blocks.awk" "$root/README.md" | awk -F'\t' '$2 != "text" && $2 != "end" { print $3 }' | sort -u)
    while IFS= read -r known; do
        page=$(grep -vx "$known" <<<"$page" || true)
    done < <({ pages researcher; pages engineer; } | sed -n 's/^README.md://p')
    [[ -z $page ]] || die "README.md has commands under a heading that no way reads: $page"
}

# Each exception and each link has a command that it matches.
check_matched() {
    local line walked
    walked=$(pages "$role" | sed 's/:.*//')
    while IFS= read -r line; do
        line=${line%% :: *}\ ::\ $(sed 's/^[^:]* :: //; s/ :: .*//' <<<"$line")
        grep -qxF "$line" "$work/matched" || die "matches no command: $line"
    done < <(exceptions "$role"; links | while IFS= read -r line; do
        ! grep -qx "${line%% :: *}" <<<"$walked" || echo "$line"
    done)
}

# Reads the pages of a way, each in a shell of its own: read_pages VARIABLE=VALUE...
read_pages() {
    local page
    while IFS= read -r page; do
        env -i "$@" ${WALK_OUTPUT:+WALK_OUTPUT=1} bash --noprofile --norc "$here/walk.sh" page "$role" "$work" "$page" || exit 1
    done < <(pages "$role")
    check_matched
}

# Datasets as the documents name them, in the bucket `bucket`: fill ENDPOINT
fill() {
    local put=(curl -sfS -o /dev/null --user larder:larder-secret --aws-sigv4 aws:amz:us-east-1:s3) folder n uploads=()
    "${put[@]}" -X PUT "$1/bucket"
    for folder in n01440764 n01443537 n01484850; do
        mkdir -p "$work/data/$folder"
        for n in $(seq 20); do
            head -c $((n * 9000)) /dev/urandom >"$work/data/$folder/${folder}_$n.JPEG"
            uploads+=(--next "${put[@]:1}" -T "$work/data/$folder/${folder}_$n.JPEG" "$1/bucket/imagenet/$folder/${folder}_$n.JPEG")
        done
    done
    mkdir -p "$work/data/models"
    head -c 100000 /dev/urandom >"$work/data/models/v1.bin"
    printf 'v1.bin' >"$work/data/models/latest.bin.rclonelink"
    for n in v1.bin latest.bin.rclonelink; do
        uploads+=(--next "${put[@]:1}" -T "$work/data/models/$n" "$1/bucket/models/$n")
    done
    "${put[0]}" "${uploads[@]:1}"
}

# The reader's own program: it reads every file.
train_py() {
    cat <<'PYTHON'
import pathlib, sys

sizes = [len(path.read_bytes()) for path in sorted(pathlib.Path(sys.argv[1]).rglob("*")) if path.is_file()]
print(f"{len(sizes)} files, {sum(sizes)} bytes")
sys.exit(0 if sizes else 1)
PYTHON
}

# ---- The researcher's machine: a copy of this one's root without Larder, whose changes are lost with it, and with a network of its own,
# in which the server is http://ceph:7480, as the documents call it.

researcher() {
    server=$1 bin=$(realpath "$2") role=researcher
    "$root/tests/servers/$server.sh" check
    # On a disk, as caches are.
    work=$(mktemp -d /var/tmp/larder-walk.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    unshare --mount --pid --net --fork --mount-proc --kill-child "$here/walk.sh" machine "$server" "$bin" "$work"
}

machine() {
    server=$1 bin=$2 work=$3 role=researcher
    local machine=$work/machine program
    ip link set lo up
    # The address of the first node in MOUNT.
    ip address add 10.0.0.1/32 dev lo
    mkdir "$work"/{machine,changes,home}
    mount -t tmpfs tmpfs "$work/changes"
    mkdir "$work"/changes/{upper,work}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/changes/upper,workdir=$work/changes/work" "$machine"
    for program in dev proc sys; do
        mount --rbind "/$program" "$machine/$program"
    done
    for program in tmp run usr/local; do
        mount -t tmpfs tmpfs "$machine/$program"
    done
    mkdir -p "$machine$root" "$machine$work" "$machine/usr/local/bin" "$machine/root"
    mount --bind "$root" "$machine$root"
    mount --bind "$work" "$machine$work"
    mount --bind "$work/home" "$machine/root"
    printf '127.0.0.1 localhost ceph %s\n' "$(uname -n)" >"$machine/etc/hosts"
    # What `make install` and MOUNT's build install.
    for program in larder larderd cachenode; do
        install "$bin/$program" "$machine/usr/local/bin/$program"
    done
    ln -s /usr/bin/python3 "$machine/usr/local/bin/python"
    [[ -x /usr/bin/sudo ]] || printf '#!/bin/sh\nexec "$@"\n' | install /dev/stdin "$machine/usr/local/bin/sudo"
    train_py >"$work/home/train.py"
    "$root/tests/servers/$server.sh" start "$work/server" 7480 >/dev/null
    fill http://127.0.0.1:7480
    check_pages
    cd /
    # shellcheck disable=SC2093
    exec chroot "$machine" "$here/walk.sh" arrive "$work"
}

arrive() {
    work=$1 role=researcher
    cd /root
    read_pages HOME=/root USER=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        AWS_ACCESS_KEY_ID=larder AWS_SECRET_ACCESS_KEY=larder-secret AWS_ENDPOINT_URL=http://ceph:7480
}

# ---- The engineer's machine: a copy of `deploy`, a kubeconfig, and the programs that were built, beside a cluster without Larder. It
# has a network of its own, in which it meets the cluster.

engineer() {
    [[ ! -e $1 ]] || die "$1 exists"
    "$root/tests/cluster/cluster.sh" check
    work=$(mktemp -d /var/tmp/larder-walk.XXXXXX)
    trap '"$root/tests/cluster/try.sh" down "$1" || true; rm -rf "$work"' EXIT
    unshare --net --mount "$here/walk.sh" beside "$1" "$(realpath "$2")" "$work"
}

beside() {
    dir=$1 bin=$2 work=$3 role=engineer
    local server=http://10.89.0.1:9000 version
    check_pages
    ip link set lo up
    "$root/tests/cluster/try.sh" bare "$dir" "$bin"
    dir=$(realpath "$dir")
    nodes
    fill $server
    images
    mkdir -p "$work"/{bin,clone} "$work/home/.cache/larder/target"
    ln -s "$bin" "$work/home/.cache/larder/target/release"
    ln -s "$dir/bin/kubectl" "$work/bin/kubectl"
    ln -s "$bin"/{larder,larder-scheduler-ext} "$work/bin/"
    cp -r "$root/deploy" "$root/Cargo.toml" "$work/clone"
    # The nodes share this machine's CPUs, of which there may be two.
    sed -i 's/^              cpu: "2"$/              cpu: 250m/' "$work/clone/deploy/larderd.yaml"
    # On a node, an engineer types `sudo ctr`: here it reaches every node, and the image is also there as if it came from a registry.
    version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' "$root/Cargo.toml")
    printf '#!/bin/sh\nexec "$@"\n' | install /dev/stdin "$work/bin/sudo"
    install /dev/stdin "$work/bin/ctr" <<SH
#!/usr/bin/env bash
set -e
"$root/tests/cluster/cluster.sh" load "$dir" "\${@: -1}"
for n in 1 2; do
    "$root/tests/cluster/cluster.sh" exec-node "$dir" "\$n" ctr -n k8s.io images tag --force \
        larder.invalid/larder:$version registry.example/larder:$version >/dev/null
done
SH
    cd "$work/clone"
    read_pages HOME="$work/home" USER=root PATH="$work/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" \
        KUBECONFIG="$dir/host/kubeconfig" KUBECACHEDIR="$work/kubectl" \
        AWS_ACCESS_KEY_ID=larder AWS_SECRET_ACCESS_KEY=larder-secret AWS_ENDPOINT_URL=$server
}

# What the documents require of nodes: a disk for the cache, GPUs for jobs, and a runtime for them.
nodes() {
    local n
    for n in 1 2; do
        truncate -s 4G "$dir/n$n.disk"
        mkfs.ext4 -q "$dir/n$n.disk"
        mkdir "$dir/n$n/etc" "$dir/n$n/etc.work"
        # Pods put programs into /opt and CDI files into /etc/cdi, which are this machine's.
        "$root/tests/cluster/cluster.sh" exec-node "$dir" "$n" sh -ec "
            mkdir -p /var/lib/larder && mount -o loop '$dir/n$n.disk' /var/lib/larder
            mount -t tmpfs tmpfs /opt
            mount -t overlay overlay -o 'lowerdir=/etc,upperdir=$dir/n$n/etc,workdir=$dir/n$n/etc.work' /etc"
        on_cluster patch node "n$n" --subresource=status -p '{"status": {"capacity": {"nvidia.com/gpu": "8"}}}' >/dev/null
    done
    on_cluster apply -f - >/dev/null <<'YAML'
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: runc
YAML
}
on_cluster() { KUBECONFIG=$dir/host/kubeconfig "$dir/host/kubectl" "$@"; }

# The images of the reader: a program that reads a dataset by the names under which the documents start it, and the cluster's scheduler.
images() {
    local rootfs=$work/rootfs name library kube=$dir/bin/kube-scheduler
    mkdir -p "$rootfs"/{bin,dev,etc,proc,sys,tmp}
    cp "$(command -v busybox)" "$rootfs/bin/busybox"
    chroot "$rootfs" /bin/busybox --install -s /bin
    install /dev/stdin "$rootfs/bin/torchrun" <<'SH'
#!/bin/sh
find /data -type f | xargs cat | wc -c
SH
    # It serves until it is ended, and prints what Jupyter prints.
    install /dev/stdin "$rootfs/bin/jupyter" <<'SH'
#!/bin/sh
ls /data
echo "http://127.0.0.1:8888/lab?token=walk"
exec httpd -f -p 8888
SH
    "$root/deploy/images/build" --uncompressed --rootfs "$rootfs" --name larder.dev/reader:1 "$work/reader.tar" >/dev/null
    rm -r "$rootfs"
    for library in "$(realpath "$kube")" $(ldd "$kube" | grep -oE '/[^ ]+' || true); do
        name=$library
        [[ $library != "$(realpath "$kube")" ]] || name=/usr/bin/kube-scheduler
        install -D "$library" "$rootfs$name"
    done
    mkdir -p "$rootfs/tmp"
    "$root/deploy/images/build" --uncompressed --rootfs "$rootfs" --name registry.k8s.io/kube-scheduler:v1.36.3 \
        "$work/scheduler.tar" >/dev/null
    rm -r "$rootfs"
    for name in reader scheduler; do
        "$root/tests/cluster/cluster.sh" load "$dir" "$work/$name.tar"
        rm "$work/$name.tar"
    done
}

case "${1-}:$#" in
    researcher:3) researcher "$2" "$3" ;;
    engineer:3) engineer "$2" "$3" ;;
    machine:4) machine "${@:2}" ;;
    arrive:2) arrive "$2" ;;
    beside:4) beside "${@:2}" ;;
    page:4) page "${@:2}" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
