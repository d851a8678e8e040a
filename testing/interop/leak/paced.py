"""Cells of a topology with a constant rate: the queue of the pacer is full when something happens to its SA.

Queued packets are clear text in the memory of the gateway. They may leave through the SA of their policy and peer, or
through its successor after a rekeying, and never otherwise: after the end of the SA its number occurs in no outer packet,
and no packet of the queue arrives any more, not through an SA with another peer either.
"""

import contextlib
import time

from net import FAMILIES, OUTER_PREFIX, Failed, wait_for

# Of all SAs of the topology: an outer packet of 1000 bytes every 4 ms.
CHILD = {"mode": "iptfs", "iptfs_packet_size": 1000, "iptfs_rate": "2mbit"}
# Every 31 ms, so that a full queue of 64 KiB needs two seconds.
SLOW = {"iptfs_rate": "256kbit"}
# Datagrams of a thousand bytes for each attempt to fill a queue, and bytes of a queue that counts
# as full.
FLOOD, FULL = 80, 50_000
# The pacer looks for new tables every 100 ms, and what it sent before is still to be captured.
SETTLE_S = 0.4
# Queued packets would leave in this time.
GONE_S = 1.0
# Of a queue that is sent so many packets arrive within half a second: more than are under way when
# it is dropped.
SENT = 8
# Another address of the peer: to the gateway another peer.
REPLACED = {4: "192.0.2.12", 6: "2001:db8::12"}


class Paced:
    """The cells; a part of `Topology`."""

    def sending(self):
        """SAs with a queue: those that have ended receive for a while."""
        return [sa for sa in self.sas() if sa.get("paced")]

    def overflow(self):
        """Fills the queues of both SAs until packets are dropped. Returns the numbers of the SAs."""
        def full():
            self.traffic.overload(FLOOD)
            return all(sa["drops"].get("queue_full") for sa in self.sending())

        wait_for("no queue overflows", full)
        self.traffic.overload(FLOOD)
        sas = self.sending()
        queued = [sa["paced"]["queued_bytes"] for sa in sas]
        if len(sas) != len(FAMILIES) or min(queued) < FULL:
            raise Failed(f"queues are not full: {queued} bytes")
        return {int(sa["spi"], 16) for sa in sas}

    def slow(self, action="start", **options):
        self.up(action, child=SLOW, **options)
        if action == "none":
            self.initiate()
        self.passing()

    def initiate(self):
        for family in FAMILIES:
            self.gw.weir("initiate", f"c{family}")

    def ended(self, spis):
        """From now on the SAs send nothing. Returns the number of queued packets that arrived meanwhile."""
        time.sleep(SETTLE_S)
        before, queued = self.traffic.outer_packets(spis), self.traffic.overloaded()
        self.look(GONE_S)
        after = self.traffic.outer_packets(spis)
        if not before or before != after:
            raise Failed(f"outer packets of ended SAs, before and after their end: {before}, {after}")
        return self.traffic.overloaded() - queued

    def lost(self, spis, then=None):
        """From now on the SAs send nothing, and what they had queued is lost, also after `then` and with other SAs."""
        time.sleep(SETTLE_S)
        before = self.traffic.overloaded()
        self.ended(spis)
        if then:
            then()
            self.passing()
        after = self.traffic.overloaded()
        if before != after:
            raise Failed(f"{after - before} packets of the queue of ended SAs arrived")

    def event_queue_full(self):
        # The cell before has removed the guards.
        with self.cell("queue-full", judged=False):
            self.slow()
            self.judge()
            spis = self.overflow()
            before = self.traffic.overloaded()
            self.look()
            sent = self.traffic.overloaded() - before
            self.passing()
            if {int(sa["spi"], 16) for sa in self.sending()} != spis or sent < SENT:
                raise Failed(f"the queue was not sent: {sent} packets arrived")

    def event_queue_full_rekey(self):
        """The queue goes on to the successor of the SA."""
        with self.cell("queue-full-rekey"):
            self.slow()
            spis = self.overflow()
            for family in FAMILIES:
                self.gw.weir("rekey", "--child", f"c{family}")
            # Of the packets that arrive after the end of the old SAs each is one of the successors.
            sent = self.ended(spis)
            if sent < SENT:
                raise Failed(f"the queue was not sent: {sent} packets arrived")
            self.passing()

    def event_queue_full_terminated(self):
        with self.cell("queue-full-terminated"):
            self.slow("none")
            spis = self.overflow()
            for family in FAMILIES:
                self.gw.weir("terminate", "--child", f"c{family}")
            self.lost(spis, self.initiate)

    def event_queue_full_closed_by_peer(self):
        with self.cell("queue-full-closed-by-peer"):
            self.slow("none")
            spis = self.overflow()
            for family in FAMILIES:
                self.out.weir("terminate", "--connection", f"net{family}")
            self.lost(spis, self.initiate)

    def event_queue_full_drain(self):
        with self.cell("queue-full-drain"):
            self.slow()
            spis = self.overflow()
            self.gw.weir("drain", "--timeout", "10")
            wait_for("a drained gateway has SAs", lambda: not self.sas())
            self.lost(spis)

    def event_queue_full_peer_replaced(self):
        """The connection gets another peer: packets for the one before reach neither of the two."""
        with self.cell("queue-full-peer-replaced"), contextlib.ExitStack() as stack:
            for family in FAMILIES:
                address = f"{REPLACED[family]}/{OUTER_PREFIX[family]} dev wire"
                self.hosts.at("out", f"ip addr replace {address} {'nodad' if family == 6 else ''}")
                stack.callback(self.hosts.at, "out", f"ip addr del {address}")
            self.slow()
            spis = self.overflow()
            tree = self.keying.tree("gw", "none", child=SLOW)
            for family in FAMILIES:
                tree["connections"][f"net{family}"]["remote_addrs"] = REPLACED[family]
            self.gw.configure(tree)
            self.gw.reload()
            # A reload keeps SAs.
            for family in FAMILIES:
                self.gw.weir("terminate", "--connection", f"net{family}")
            self.lost(spis, self.initiate)
            remote = {sa["remote"] for sa in self.sending()}
            if remote != set(REPLACED.values()):
                raise Failed(f"the peer is not another one: {remote}")

    def event_queue_full_peer_killed(self):
        """The peer does not answer any more and is declared dead."""
        quick = {"dpd_delay": "1s", "retransmit_timeout": "1", "retransmit_base": "1", "retransmit_tries": 2,
                 "mobike": False}
        with self.cell("queue-full-peer-killed"):
            self.slow("none", connection=quick)
            self.overflow()
            self.out.kill()
            # The queue is full at the end of the SAs, too.
            spis = self.overflow()
            wait_for("the peer is not declared dead", lambda: self.traffic.overload(FLOOD) or not self.sas())
            self.lost(spis, lambda: self.peer(action="start"))

    def event_queue_full_kill(self):
        with self.cell("queue-full-kill"):
            for stop in (self.gw_kill, self.gw_abort, self.gw_stop):
                self.slow()
                spis = self.overflow()
                stop()
                self.lost(spis, self.slow)

    def gw_kill(self):
        self.gw.kill()

    def gw_stop(self):
        self.gw.stop()

    def gw_abort(self):
        """The thread of the pacer aborts, and the process with it."""
        self.abort("weir-pacer")
