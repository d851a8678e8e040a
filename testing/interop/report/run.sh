#!/usr/bin/env bash
# A small campaign of the real binary, its report computed again, and the page in headless Chromium.
# See README.md. Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what
# was written there, pictures included.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need /usr/bin/python3
make_lab
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
