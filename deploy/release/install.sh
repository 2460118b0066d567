#!/bin/sh
# Installs larder, larderd and cachenode from a release, into /usr/local as root and into ~/.local otherwise.
#
#   PREFIX             another place to install to
#   LARDER_RELEASES    the folder or URL that has the release, by default that of the latest one
#   LARDER_PUBLIC_KEY  the key that must have signed the release; needs minisign
#
# A release that is damaged, changed or for another system is refused, and the installed version stays.
set -eu
# Everybody may run what root installs.
umask 022

die() { echo "install.sh: $*" >&2; exit 1; }

# Run by the last line, so that nothing is done by half of this file.
main() {
    [ "$(uname -s)" = Linux ] || die "Larder runs on Linux, and this is $(uname -s)"
    case $(uname -m) in
        x86_64) architecture=amd64 ;;
        aarch64 | arm64) architecture=arm64 ;;
        *) die "there is no release for $(uname -m): build Larder from source (docs/START.md)" ;;
    esac
    releases=${LARDER_RELEASES:-https://github.com/larder-dev/larder/releases/latest/download}
    if [ -z "${PREFIX:-}" ]; then
        if [ "$(id -u)" -eq 0 ]; then PREFIX=/usr/local; else PREFIX=$HOME/.local; fi
    fi
    mkdir -p "$PREFIX" 2>/dev/null && [ -w "$PREFIX" ] ||
        die "cannot write to $PREFIX: run this as root, or set PREFIX to a folder of yours"

    # Leftovers of installations that were killed.
    find "$PREFIX" -maxdepth 1 -name '.larder.??????' -mtime +0 -exec rm -rf {} +
    # On the disk of the installation: files are renamed into place from here.
    new=$(mktemp -d "$PREFIX/.larder.XXXXXX") || die "cannot write to $PREFIX: is its disk full? Nothing was changed"
    trap 'rm -rf "$new"' EXIT
    trap 'exit 1' HUP INT TERM

    # Fetches a file of the release into $new.
    fetch() {
        case $releases in
            *://*)
                if command -v curl >/dev/null; then
                    curl -fsSL --retry 3 --connect-timeout 30 --speed-limit 1000 --speed-time 60 -o "$new/$1" "$releases/$1"
                else
                    wget -q -T 60 -O "$new/$1" "$releases/$1"
                fi
                ;;
            *) cp "$releases/$1" "$new/$1" ;;
        esac || die "cannot fetch $1 from $releases; nothing was changed"
    }

    fetch SHA256SUMS
    if [ -n "${LARDER_PUBLIC_KEY:-}" ]; then
        command -v minisign >/dev/null || die "LARDER_PUBLIC_KEY needs minisign: install it, or check the release in another way"
        fetch SHA256SUMS.minisig
        minisign -Vqm "$new/SHA256SUMS" -P "$LARDER_PUBLIC_KEY" ||
            die "SHA256SUMS of $releases is not signed with LARDER_PUBLIC_KEY: do not use this release; nothing was changed"
    fi
    line=$(grep -E "^[0-9a-f]{64}  larder-[^ /]*-linux-$architecture\.tar\.gz\$" "$new/SHA256SUMS") ||
        die "$releases has no release for $architecture; nothing was changed"
    [ "$(echo "$line" | wc -l)" -eq 1 ] || die "$releases has several releases for $architecture: name the folder of one"
    archive=${line#*  }
    fetch "$archive"
    (cd "$new" && echo "$line" | sha256sum -c --status) ||
        die "$archive is not the file that SHA256SUMS lists: it was changed, or its download was cut off; nothing was changed"
    mkdir "$new/tree"
    tar -xzf "$new/$archive" -C "$new/tree" --strip-components=1 --no-same-owner ||
        die "cannot unpack $archive: is the disk of $PREFIX full? The installed version stays"
    version=$("$new/tree/bin/larder" --version) ||
        die "the programs of the release do not start here: they need glibc 2.28 or later; nothing was changed"

    (cd "$new/tree" && find . -type d) | while read -r folder; do
        mkdir -p "$PREFIX/$folder" || exit 1
    done || die "cannot create the folders of the release in $PREFIX; the installed version stays"
    # A rename is all or nothing, also for a program that runs.
    (cd "$new/tree" && find . ! -type d) | while read -r file; do
        mv -f "$new/tree/$file" "$PREFIX/$file" || exit 1
    done || die "cannot replace the files in $PREFIX: mend that, and run this again"
    echo "installed $version in $PREFIX/bin; \`larder doctor\` checks this machine"
    case ":$PATH:" in
        *":$PREFIX/bin:"*) ;;
        *) echo "add it to your PATH: export PATH=\"$PREFIX/bin:\$PATH\"" ;;
    esac
    command -v fusermount3 >/dev/null || echo "mounts need fusermount3: install the package fuse3"
}

main
