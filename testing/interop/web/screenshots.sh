#!/usr/bin/env bash
# Takes the pictures of docs/images again: `weir top` and the status page of a gateway with eight
# connections, under traffic for a bit more than a minute. Needs what the suite needs. KEEP=DIR
# keeps more pictures there: phone, dark, details of a connection, the other screens.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need_root
export PYTHONPATH=${WEIR_PYTHON:-${CARGO_TARGET_DIR:-$root/target}/python}
make_lab
mkdir -p "$root/docs/images"
run_apart /usr/bin/python3 -u "$here/pictures.py" "$lab" "$root/docs/images"
