#!/usr/bin/env bash
# IKEv2 between two Weirs: the scenarios here, and those of ../strongswan that are named. Everything else is as there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export SUITE=ike PEER_END=weir SCENARIOS="$here"
# A name that is not here is one of strongSwan's.
for name in "$@"; do [ -d "$here/scenarios/$name" ] || SCENARIOS="$here:$here/../strongswan"; done
exec "$here/../strongswan/run.sh" "$@"
