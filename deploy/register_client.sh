#!/bin/sh
# Admit a client on the server host: from now on the holder of this key is the client of this name.
#
#   register_client.sh KEY.pub NAME [FEDERATION]
#
# FEDERATION is a [superlink.NAME] table of $FLWR_HOME/config.toml (default: federation).
set -eu
[ $# -ge 2 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
answer=$(flwr supernode register "$1" "${3:-federation}" --name "$2" --format json)
echo "$answer"
. "$(dirname "$0")/ownership.sh"
for written in "${FLWR_HOME:-/nonexistent}"/*; do
    [ ! -O "$written" ] || own "$written"
done
# flwr exits with 0 also when it was refused; its JSON tells.
case $answer in
*'"success": true'*) ;;
*) exit 1 ;;
esac
