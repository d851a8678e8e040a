#!/usr/bin/env bash
# Exit status and errors of every command of the lab, with the real binary. See README.md.
# Arguments are parts of case names; without any, all of them.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
export PATH

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL lab/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR
[ -x /usr/bin/python3 ] || { echo "SKIP lab/all: /usr/bin/python3 is not installed" && exit 0; }

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
