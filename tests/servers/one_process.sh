# shellcheck shell=bash
# For servers of one process: sourced by their scripts, which say how one is started. Needs `die`.
#
# The invariant: a server ends with the process that started its script, or when its folder is gone.

readonly BIN=${LARDER_TEST_BIN:-${LARDER_CACHE:-$HOME/.cache/larder}/bin}

# The path of the program whose source is in the folder NAME beside the scripts: go_program NAME. A change of the source or of
# a version is another program. Needs `here`.
go_program() { echo "$BIN/$1-$(cat "$here/$1"/{main.go,go.mod,go.sum} | sha256sum | head -c 12)"; }

# Builds it, unless it is there: build_go NAME
build_go() {
    local program
    program=$(go_program "$1")
    [[ -x $program ]] && return
    command -v go >/dev/null || die "needs Go to build a server of tests: https://go.dev/dl"
    echo "building $(basename "$program")"
    mkdir -p "$BIN"
    # Renamed into place, so that a build that was killed leaves no half of a program.
    (cd "$here/$1" && go build -trimpath -ldflags='-s -w' -o "$program.$$" .) && mv "$program.$$" "$program"
}

# Makes the folder of a server and prints its path.
folder() {
    mkdir -p "$1"
    [[ -z $(ls -A "$1") ]] || die "$1 is not empty"
    realpath "$1"
}

# Starts a command as the server of a folder: run DIR COMMAND...
run() {
    local dir=$1
    shift
    setsid "$@" >"$dir/log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    setsid bash -c 'while kill -0 "$1" 2>/dev/null && [[ -d $2 ]]; do sleep 1; done; "$3" stop "$2"' \
        guard "$PPID" "$dir" "$(realpath "$0")" >/dev/null 2>&1 </dev/null &
}

# Waits until a command succeeds, 30 seconds at most. Otherwise shows the log, stops the server and ends the script:
# await DIR COMMAND...
await() {
    local dir=$1
    shift
    for _ in $(seq 300); do
        "$@" && return
        kill -0 "$(<"$dir/pid")" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$dir/log" >&2
    stop "$dir"
    die "did not come up"
}

stop() {
    local dir=$1
    if [[ -f $dir/pid ]]; then
        kill -9 "$(<"$dir/pid")" 2>/dev/null || true
    fi
    rm -rf "${dir:?}"
}
