#!/bin/sh
# First process of the guest. Its root is the host's own file system, read-only; what strongSwan
# writes goes to /run.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
# The kernel loads algorithms by itself, from where the distribution put the modules of this kernel.
# One with IP-TFS has everything built in.
if [ -e /proc/modules ]; then
    echo "$g_lab/modprobe" >/proc/sys/kernel/modprobe
    for module in esp4 esp6 ah4 ah6 xfrm_user; do "$g_lab/modprobe" -q "$module" || echo "guest: no module $module"; done
fi
exec /usr/bin/python3 -u "$g_here/guest.py"
