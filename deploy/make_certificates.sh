#!/bin/sh
# Make the federation's certificates in DIR: an authority once, then one certificate a call.
#
#   make_certificates.sh DIR server HOST [HOST ...]   server.pem, server.key: SuperLink and deletion service
#   make_certificates.sh DIR ROLE NAME                NAME.pem, NAME.key: who calls the deletion service
#   make_certificates.sh DIR peer NAME HOST [HOST ...]  NAME.pem, NAME.key: a peer, without a server
#   make_certificates.sh DIR request NAME          NAME.key, NAME.csr: at the caller's own site, without the authority
#   make_certificates.sh DIR sign ROLE NAME CSR PEM  PEM, a new file: the certificate that such a request asks for
#
# HOST is a DNS name, or an IPv4 or IPv6 address, under which others reach the server or the peer; for the
# server localhost and 127.0.0.1 are always added, because its own programs connect by loopback.
# The NAME of a peer is its id in the peers' configuration (docs/how-to-run-peers.md). Peers get an authority,
# and so a DIR, of their own: it decides who is a member.
# ROLE is operator (any request), officer (decides about requests), auditor (reads everything), several of these joined
# by commas, or client (requests about itself). NAME becomes the certificate's common name and ROLE its organisational
# units; by these the deletion service knows its caller. A request that is signed has the subject CN=NAME alone. The NAME
# of a client is the one that register_client.sh gives it.
# The authority is ca.crt (hand it to everybody) and ca.key (keep it off the server if you can).
# An existing certificate is never overwritten: remove it first.
set -eu
umask 077
. "$(dirname "$0")/common.sh"

usage() { sed -n '4,8s/^# *//p' "$0" >&2; exit 2; }
[ $# -ge 3 ] || usage
directory=$1
kind=$2
shift 2
case $directory in -*) directory=./$directory ;; esac
authority_days=3650
certificate_days=825

require openssl openssl
make_directory "$directory"
cd "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Also a link that leads nowhere is there: what writes to it makes its target.
is_there() { [ -e "$1" ] || [ -L "$1" ]; }

make_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
        -days "$authority_days" -keyout ca.key -out ca.crt -subj "/CN=Federation authority" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
    chmod 644 ca.crt
    own ca.crt
}

# $1 extended key usage. OpenSSL 1.1 adds the keys' identifiers only where they are asked for, and Python from 3.13 on
# accepts no certificate without them.
print_extensions() {
    printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=$1" \
        "subjectKeyIdentifier=hash" "authorityKeyIdentifier=keyid"
}

# $1 file name without ending, $2 subject, $3 extended key usage, $4 subject alternative names or ""
make_certificate() {
    if is_there "$1.pem" || is_there "$1.key"; then
        echo "$directory/$1.pem or .key exists already: remove both to make new ones." >&2
        exit 1
    fi
    {
        print_extensions "$3"
        [ -z "$4" ] || echo "subjectAltName=$4"
    } > "$work/ext"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
        -keyout "$1.key" -out "$work/csr" -subj "$2" 2>/dev/null
    openssl x509 -req -sha256 -days "$certificate_days" -in "$work/csr" -CA ca.crt -CAkey ca.key \
        -CAcreateserial -extfile "$work/ext" -out "$1.pem" 2>/dev/null || {
        rm -f "$1.key" "$1.pem"
        echo "openssl makes no certificate for $2${4:+ and $4}: is each host a DNS name or an address?" >&2
        exit 1
    }
    chmod 644 "$1.pem"
    own "$1.pem"
    own "$1.key"
}

not_a_host() {
    echo "A host is a DNS name or an address, without a port and brackets; got '$1'." >&2
    exit 2
}

# Sets `names` to the subject alternative names $1, if any, and those of the hosts that follow.
name_hosts() {
    names=$1
    shift
    for host in "$@"; do
        case $host in
        *:*:*)
            case $host in *[!0-9A-Fa-f:.]* | *.*:*) not_a_host "$host" ;; esac
            names="${names:+$names,}IP:$host"
            ;;
        '' | *[!A-Za-z0-9.-]*) not_a_host "$host" ;;
        *[!0-9.]*) names="${names:+$names,}DNS:$host" ;;
        *) names="${names:+$names,}IP:$host" ;;
        esac
    done
}

# The name becomes a file and a part of a distinguished name: neither may get a slash.
check_name() {
    case $1 in
    '' | *[!A-Za-z0-9._-]* | ca | server | [.-]*)
        echo "A name is made of letters, digits, '.', '_' and '-', and is not ca or server; got '$1'." >&2
        exit 2
        ;;
    esac
}

# $1 roles, joined by commas; a client is that alone
units_of() {
    case $1 in client) printf /OU=client; return ;; esac
    for role in $(echo "$1" | tr , ' '); do
        case $role in operator | officer | auditor) printf '/OU=%s' "$role" ;; *) usage ;; esac
    done
}

case $kind in
server)
    name_hosts "DNS:localhost,IP:127.0.0.1" "$@"
    [ -e ca.key ] || make_authority
    make_certificate server "/CN=$1" serverAuth "$names"
    ;;
operator* | officer* | auditor* | client)
    check_name "$1"
    units=$(units_of "$kind")
    [ -e ca.key ] || make_authority
    make_certificate "$1" "$units/CN=$1" clientAuth ""
    ;;
peer)
    [ $# -ge 2 ] || usage
    check_name "$1"
    peer=$1
    shift
    name_hosts "" "$@"
    [ -e ca.key ] || make_authority
    # A peer serves its neighbours and calls them; without a role it is nobody to a deletion service.
    make_certificate "$peer" "/CN=$peer" serverAuth,clientAuth "$names"
    ;;
request)
    # The key never leaves the site.
    check_name "$1"
    if is_there "$1.key" || is_there "$1.csr"; then
        echo "$directory/$1.key exists already: remove it and $1.csr to make new ones." >&2
        exit 1
    fi
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
        -keyout "$1.key" -out "$1.csr" -subj "/CN=$1" 2>/dev/null
    own "$1.key"
    own "$1.csr"
    ;;
sign)
    [ $# -eq 4 ] || usage
    units=$(units_of "$1")
    check_name "$2"
    case $3$4 in /*/*) ;; *) echo "Give the whole paths of CSR and PEM." >&2; exit 2 ;; esac
    # The folder of the request is another party's. It is read once, without following a link or waiting for a pipe,
    # and what is written there replaces nothing and follows no link.
    dd if="$3" of="$work/csr" iflag=nofollow,nonblock,fullblock bs=65536 count=1 2>/dev/null || true
    found=$(openssl req -in "$work/csr" -noout -subject -nameopt RFC2253 2>/dev/null) \
        || { echo "$3 is no certificate request." >&2; exit 1; }
    if [ "$found" != "subject=CN=$2" ]; then
        printf '%s\n' "$3 is a request of another: $found, not CN=$2." >&2  # echo would read escapes in it
        exit 1
    fi
    print_extensions clientAuth > "$work/ext"
    openssl x509 -req -sha256 -days "$certificate_days" -in "$work/csr" -CA ca.crt -CAkey ca.key -CAcreateserial \
        -subj "$units/CN=$2" -extfile "$work/ext" -out "$work/pem" 2>/dev/null \
        || { echo "$3 cannot be signed with $directory/ca.key." >&2; exit 1; }
    chmod 644 "$work/pem"
    mv -nT "$work/pem" "$4" || true  # of what is there some versions say that they failed
    if [ -e "$work/pem" ]; then
        echo "$4 exists already, or cannot be written: remove it to make a new one." >&2
        exit 1
    fi
    ;;
*) usage ;;
esac
