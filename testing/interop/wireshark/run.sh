#!/bin/sh
# The dissectors of contrib/wireshark against packets of known bytes.
if ! command -v tshark >/dev/null; then
    echo "SKIP wireshark: tshark is not installed"
    exit 0
fi
exec /usr/bin/python3 "$(dirname "$0")/check.py"
