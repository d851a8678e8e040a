#!/usr/bin/env bash
# IKEv2 between two Weirs: the scenarios here, and of those in ../strongswan the ones with
# `two_weirs = true` or that are named. Everything else is as there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../strongswan" && pwd)
export SUITE=ike PEER_END=weir SCENARIOS="$here:$root"
exec "$root/run.sh" "$@"
