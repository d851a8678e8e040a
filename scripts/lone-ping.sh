#!/usr/bin/env bash
# Round trips of pings one at a time, through tunnel mode and through IP-TFS on demand in turns:
# two hosts in network namespaces for each, Weir on both, ESP in UDP. Prints the median of each
# round in µs, then the median difference with its range. Needs root, TUN and nftables.
#
#     scripts/lone-ping.sh [WEIR [ROUNDS [PINGS]]]    # default: the release build, 5, 2000
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
weir=${1:-$root/target/release/weir} rounds=${2:-5} pings=${3:-2000}
weir=$(realpath "$weir")
if [ "${LONE_PING:-}" != inside ]; then
    # Namespaces of its own: nothing remains on the host, whatever ends this script.
    export LONE_PING=inside
    exec unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$weir" "$rounds" "$pings"
fi

lab=$(mktemp -d)
trap 'rm -rf "$lab"' EXIT
mount --make-rprivate /
mount -t tmpfs lab /run
mkdir -p /run/netns

# Starts an end: MODE, number of the end, number of the peer.
start_end() {
    local mode=$1 own=$2 other=$3 folder=$lab/$1-$2
    mkdir -p "$folder"
    (umask 077 && cat >"$folder/weir.conf") <<CONFIG
gateway {
    state_dir = $folder/state
    socket = $folder/weir.sock
    workers = 1
}
connections {
    net {
        local_addrs = 192.0.2.$own
        remote_addrs = 192.0.2.$other
        encap = yes
        local { auth = psk }
        remote { auth = psk }
        children {
            net {
                local_ts = 10.$own.0.1/32
                remote_ts = 10.$other.0.1/32
                mode = $mode
                start_action = trap
            }
        }
    }
}
secrets {
    ike-net { secret = "a secret for these two hosts only" }
}
CONFIG
    ip netns exec "$mode-$own" "$weir" up --config "$folder/weir.conf" >"$folder/log" 2>&1 &
    for _ in $(seq 100); do
        if grep -q '^weir: ready' "$folder/log"; then return; fi
        sleep 0.1
    done
    cat "$folder/log"
    exit 1
}

for mode in tunnel iptfs; do
    ip netns add "$mode-1"
    ip netns add "$mode-2"
    ip link add wire netns "$mode-1" type veth peer name wire netns "$mode-2"
    for end in 1 2; do
        ip -n "$mode-$end" link set lo up
        ip -n "$mode-$end" addr add "192.0.2.$end/24" dev wire
        ip -n "$mode-$end" link set wire up
        ip -n "$mode-$end" addr add "10.$end.0.1/32" dev lo
        ip -n "$mode-$end" route add default via "192.0.2.$((3 - end))"
    done
    start_end "$mode" 1 2
    start_end "$mode" 2 1
    ip netns exec "$mode-1" ping -q -c 200 -i 0.01 -I 10.1.0.1 10.2.0.1 >/dev/null
    "$weir" list sas --socket "$lab/$mode-1/weir.sock" | grep -i "$mode" >/dev/null
done

for round in $(seq "$rounds"); do
    for mode in tunnel iptfs; do
        # Reversed in every other round.
        if [ $((round % 2)) -eq 0 ]; then
            if [ "$mode" = tunnel ]; then mode=iptfs; else mode=tunnel; fi
        fi
        ip netns exec "$mode-1" ping -n -c "$pings" -i 0.005 -I 10.1.0.1 10.2.0.1 |
            sed -n "s/.*time=\([0-9.]*\) ms/$round $mode \1/p"
    done
done | python3 -c '
import statistics, sys
times = {}
for line in sys.stdin:
    number, mode, ms = line.split()
    times.setdefault((int(number), mode), []).append(float(ms) * 1000)
median = {key: statistics.median(of) for key, of in times.items()}
rounds = sorted({number for number, _ in median})
for number in rounds:
    tunnel, iptfs = median[number, "tunnel"], median[number, "iptfs"]
    print(f"{number}: tunnel {tunnel:.0f} µs, IP-TFS {iptfs:.0f} µs")
gaps = [median[number, "iptfs"] - median[number, "tunnel"] for number in rounds]
print(f"IP-TFS - tunnel: {statistics.median(gaps):+.1f} µs ({min(gaps):+.1f} to {max(gaps):+.1f})")
'
