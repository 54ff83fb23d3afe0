#!/bin/sh
# Admit a client on the server host: from now on the holder of this key is the client of this name.
#
#   register_client.sh KEY.pub NAME [FEDERATION]
#
# FEDERATION is a [superlink.NAME] table of $FLWR_HOME/config.toml (default: federation).
set -eu
[ $# -ge 2 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
for given in "$@"; do
    case $given in -*) echo "No file or name begins with '-'; got '$given'." >&2; exit 2 ;; esac
done
# The file is a site's: what is read is the key itself, and no pipe is waited for.
if [ -L "$1" ] || [ ! -f "$1" ]; then
    echo "$1 is no plain file." >&2
    exit 1
fi
answer=$(flwr supernode register "$1" "${3:-federation}" --name "$2" --format json)
echo "$answer"
. "$(dirname "$0")/common.sh"
for written in "${FLWR_HOME:-/nonexistent}"/*; do
    [ ! -O "$written" ] || own "$written"
done
# flwr exits with 0 also when it was refused; its JSON tells.
case $answer in
*'"success": true'*) ;;
*) exit 1 ;;
esac
