# Sourced by the scripts beside it.

# What root makes belongs to the owner of the directory that it is in, as the services read it. Root of a container may
# not be able to give; `flower-unlearn check` names what it leaves.
# $1 a file or directory that was just made
own() {
    [ "$(id -u)" != 0 ] || chown -h "$(ls -ldn "$(dirname "$1")" | awk '{print $3 ":" $4}')" "$1" 2>/dev/null || true
}

# $1 a program, $2 the package of Debian and Ubuntu that brings it
require() {
    command -v "$1" > /dev/null || { echo "$1 is not installed: install $2 and try again." >&2; exit 1; }
}

make_directory() {
    [ -d "$1" ] || { make_directory "$(dirname "$1")" && mkdir "$1" && own "$1"; }
}
