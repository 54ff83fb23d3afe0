#!/bin/sh
# Make a client's key pair at the client's own site: FILE (private, stays there) and FILE.pub (to the server).
#
#   make_supernode_key.sh FILE
set -eu
umask 077
. "$(dirname "$0")/common.sh"
[ $# -eq 1 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
case $1 in -*) echo "A file's name does not begin with '-'." >&2; exit 2 ;; esac
if [ -e "$1" ] || [ -L "$1" ] || [ -L "$1.pub" ]; then
    echo "$1 exists already: a client that loses its key is a new client. Remove it only if you mean that." >&2
    exit 1
fi
require ssh-keygen openssh-client
make_directory "$(dirname "$1")"
# An EC key on a NIST curve in OpenSSH format is what flower-supernode reads; it cannot ask for a passphrase.
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$1"
own "$1"
own "$1.pub"
