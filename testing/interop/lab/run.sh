#!/usr/bin/env bash
# Exit status and errors of every command of the lab, with the real binary. See README.md.
# Arguments are parts of case names; without any, all of them.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need /usr/bin/python3
make_lab
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
