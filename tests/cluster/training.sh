#!/usr/bin/env bash
# An image with the engines that run training jobs: Debian's Python, PyTorch (gloo, torchrun) and Open MPI with mpi4py.
#
#   training.sh install     unpacks the Debian packages into a folder, unless it is there
#   training.sh check       fails unless it is there
#   training.sh folder      prints the folder, whether or not it is there
#   training.sh load DIR    gives the image larder.dev/training:1 to all nodes of the cluster in DIR
#
# The machine gets no package installed: apt names and fetches what an empty machine would need, and the archives are
# unpacked side by side. No maintainer script runs, so what those would do and the engines need is done here.
#
# The image takes no time to load and no room: its one layer is an empty folder, over which each node mounts the unpacked
# one. Pods write to a layer of their own, as ever. There is no ssh in it, and no shell but sh.
set -euo pipefail

readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin} IMAGE=larder.dev/training:1
readonly PACKAGES=(python3-torch python3-mpi4py openmpi-bin dash coreutils hostname libc-bin)
# Parts of PyTorch's and Open MPI's dependencies that neither needs to compute: a quarter of it all.
readonly OMITTED=(libgl1-mesa-dri proj-data iso-codes openssh-client)
here=$(dirname "$(realpath "$0")")
die() { echo "training.sh: $*" >&2; exit 1; }

check() { [[ -d $ROOTFS ]] || die "the image for training jobs is missing: run $0 install"; }

install() {
    [[ ! -d $ROOTFS ]] || return 0
    mkdir -p "$BIN"
    local build
    # On BIN's disk, because the folder is renamed into place: an install that was killed leaves no half of it there.
    build=$(mktemp -d "$BIN/build.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$build'" EXIT
    local sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    echo "unpacking PyTorch and Open MPI (225 MB of packages)"
    fetch "$build"
    unpack "$build" "$build/rootfs"
    mv "$build/rootfs" "$ROOTFS"
}

# Fetches the archives of the packages and of all that they depend on.
fetch() {
    local build=$1 name
    mkdir -p "$build/archives/partial"
    # apt is told that only what is left out is installed, in a version that pleases everybody.
    for name in "${OMITTED[@]}"; do
        printf 'Package: %s\nStatus: install ok installed\nVersion: 999\nArchitecture: %s\nMulti-Arch: foreign\n' \
            "$name" "$(dpkg --print-architecture)"
        printf 'Maintainer: nobody\nDescription: left out\n\n'
    done >"$build/status"
    apt-get install -qq -y --no-install-recommends --download-only -o Dir::State::status="$build/status" \
        -o Dir::Cache::archives="$build/archives" -o APT::Sandbox::User= -o Debug::NoLocking=1 \
        "${PACKAGES[@]}" >/dev/null
}

unpack() {
    local build=$1 rootfs=$2 name archive libraries
    mkdir -p "$rootfs"/{dev,proc,sys,tmp,etc} "$rootfs"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$rootfs/$name"
    done
    for archive in "$build"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$archive" | tar -x -C "$rootfs" --keep-directory-symlink --no-same-owner \
            --exclude=./usr/share/{doc,man,locale,info,lintian,icons,mime,fonts,X11,bug}
        rm "$archive"
    done
    chmod 1777 "$rootfs/tmp"
    libraries=/usr/lib/$(uname -m)-linux-gnu
    printf '%s\n' "$libraries"/{blas,lapack} /usr/lib/libpsm1 >"$rootfs/etc/ld.so.conf.d/alternatives.conf"
    /sbin/ldconfig -r "$rootfs"
    ln -s mpirun.openmpi "$rootfs/usr/bin/mpirun"
    printf '%s\n' root:x:0:0:root:/:/bin/sh nonroot:x:65532:65532:nonroot:/tmp:/bin/sh >"$rootfs/etc/passwd"
    printf '%s\n' root:x:0: nonroot:x:65532: >"$rootfs/etc/group"
    echo 'hosts: files dns' >"$rootfs/etc/nsswitch.conf"
}

load() {
    local dir=$1 node archive
    check
    archive=$dir/training.tar
    mkdir -p "$dir/training/larder-training"
    "$here/../../deploy/images/build" --uncompressed --rootfs "$dir/training" --name "$IMAGE" "$archive" >/dev/null
    "$here/cluster.sh" load "$dir" "$archive"
    for node in "$dir"/n[0-9]*/; do
        node=$(basename "$node")
        # shellcheck disable=SC2016
        "$here/cluster.sh" exec-node "$dir" "${node#n}" sh -ec '
            layer=$(dirname /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/larder-training)
            mount --bind -o ro "$1" "$layer"' sh "$ROOTFS"
    done
    rm -r "$archive" "$dir/training"
}

# Other packages, or unpacked otherwise, are another image.
ROOTFS=$BIN/training-$({ declare -p PACKAGES OMITTED; declare -f fetch unpack; } | sha256sum | head -c 12)
readonly ROOTFS

case "${1-}:$#" in
    install:1) install ;;
    check:1) check ;;
    folder:1) echo "$ROOTFS" ;;
    load:2) load "$(realpath "$2")" ;;
    *) sed -n '/^#  /s/^# *//p' "$0" >&2; exit 2 ;;
esac
