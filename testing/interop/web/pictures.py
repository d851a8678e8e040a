"""Pictures of `weir top` and of the status page for docs/images: `pictures.py LAB FOLDER`. See screenshots.sh."""

import html
import math
import os
import signal
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import views  # noqa: E402
from lab import OUTER, Keys, Weir, build, within  # noqa: E402
from views import browser, connection, login, top, wait_for  # noqa: E402

LAB, FOLDER = sys.argv[1:3]
# Connections that are up: number of their networks, and the mean of their traffic in Mbit/s.
SITES = {"berlin": (11, 9), "lausanne": (12, 4), "london": (13, 2), "milano": (14, 0.3), "warehouse": (15, 0)}
SECONDS = int(os.environ.get("SECONDS_OF_TRAFFIC", "70"))
COLORS = {"red": "#e5534b", "green": "#57ab5a", "brown": "#c69026", "cyan": "#39c5cf", "default": "#d5dbe3"}


def trees():
    keys = Keys()
    sun, moon = keys.tree("sun", ["gcm"], web=f"127.0.0.1:{views.PORT}", workers=2), keys.tree("moon", ["gcm"])
    for tree, host in ((sun, "sun"), (moon, "moon")):
        tree["connections"], tree["secrets"] = {}, {"ike-all": {"secret": views.SECRET}}
        other = {"sun": "moon", "moon": "sun"}[host]
        last = 1 if host == "sun" else 129
        tree["gateway"]["addresses"] += "".join(f", 10.9.{number}.{last}/25" for number, _ in SITES.values())
        for name, (number, _) in SITES.items():
            section = connection(host, OUTER[other], host == "sun", number)
            section["remote" if host == "sun" else "local"]["id"] = f"{name}.example.org"
            tree["connections"][name] = section
    # Refused by moon, without an answer, and waiting for a packet.
    sun["connections"]["geneva"] = connection("sun", OUTER["moon"], True, 16)
    sun["connections"]["geneva"]["remote"]["id"] = "geneva.example.org"
    sun["connections"]["lake"] = connection("sun", "192.0.2.99", True, 17)
    sun["connections"]["lake"]["remote"]["id"] = "lake.example.org"
    sun["connections"]["spare"] = connection("sun", "192.0.2.98", False, 18)
    sun["connections"]["spare"]["remote"]["id"] = "spare.example.org"
    sun["connections"]["spare"]["children"]["net"]["start_action"] = "trap"
    return sun, moon


def send(seed):
    """Datagrams through every site, in waves; runs on sun or moon until it is killed."""
    last = 129 if seed == "sun" else 1
    share = 1 if seed == "moon" else 0.4
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    started = time.monotonic()
    debts = dict.fromkeys(SITES, 0.0)
    while True:
        time.sleep(0.01)
        for at, (name, (number, mbit)) in enumerate(SITES.items()):
            wave = 1 + 0.5 * math.sin((time.monotonic() - started) / (5 + at)) + 0.2 * math.sin(time.monotonic() * 1.7 + at)
            debts[name] += share * mbit * 1e6 / 8 * wave * 0.01
            while debts[name] >= 1200:
                debts[name] -= 1200
                try:
                    out.sendto(bytes(1172), (f"10.9.{number}.{last}", 9))
                except OSError:
                    pass


def of_screen(screen):
    """The cells of a terminal as HTML."""
    rows = []
    for y in range(screen.lines):
        text = ""
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            color = COLORS.get(cell.fg, cell.fg if cell.fg.startswith("#") else "#" + cell.fg)
            style = f"color:{color}"
            if cell.reverse:
                style = f"color:#1c2128;background:{color}"
            if cell.bold:
                style += ";font-weight:700"
            text += f'<span style="{style}">{html.escape(cell.data)}</span>'
        rows.append(text)
    style = ("margin:0;padding:12px 14px;display:inline-block;background:#1c2128;color:#d5dbe3;border-radius:8px;"
             "font:15px/18px 'DejaVu Sans Mono',monospace")
    return f'<!doctype html><meta charset=utf-8><body style="margin:0"><pre id=screen style="{style}">' + "\n".join(rows) + "</pre>"


def main():
    build()
    sun_tree, moon_tree = trees()
    with Weir("moon", LAB, moon_tree), Weir("sun", LAB, sun_tree) as sun:
        up = lambda: sum(entry["state"] == "up" for entry in sun.status()["connections"]) > len(SITES)  # noqa: E731
        wait_for("every site up", up)
        senders = [subprocess.Popen([*within(host), sys.executable, "-u", __file__, LAB, FOLDER, "send", host])
                   for host in OUTER]
        try:
            with top(sun, size=(24, 100)) as screen, browser(LAB, viewport={"width": 1100, "height": 800}) as page:
                page.goto(login(sun))
                until = time.monotonic() + SECONDS
                while time.monotonic() < until:
                    screen.read(1)
                screen.press("\x1b[B" * 2)
                screen.read(2)
                page.screenshot(path=os.path.join(FOLDER, "status-page.png"), full_page=True)
                for scheme, size, name in (("dark", (1100, 800), "dark"), ("light", (360, 740), "phone")):
                    page.emulate_media(color_scheme=scheme)
                    page.set_viewport_size({"width": size[0], "height": size[1]})
                    page.wait_for_timeout(300)
                    page.screenshot(path=os.path.join(LAB, f"{name}.png"), full_page=True)
                page.set_viewport_size({"width": 1100, "height": 800})
                page.goto(views.URL + "/connection?name=berlin")
                page.wait_for_timeout(1500)
                page.screenshot(path=os.path.join(LAB, "connection.png"), full_page=True)
                page.goto(views.URL.replace("127.0.0.1", "localhost") + "/")
                page.screenshot(path=os.path.join(LAB, "login.png"))
                # Not under the policy of the status page, which permits no styles but its own.
                page.goto("about:blank")
                picture(page, screen, os.path.join(FOLDER, "top.png"))
                for key, name in (("\r", "sas"), ("\t", "drops"), ("\t", "workers"), ("\t", "log"), ("?", "help")):
                    screen.press(key)
                    screen.read(1.5)
                    picture(page, screen, os.path.join(LAB, f"top-{name}.png"))
                screen.press("xq")
                screen.ended()
        finally:
            for sender in senders:
                sender.send_signal(signal.SIGKILL)
                sender.wait()


def picture(page, screen, path):
    page.set_content(of_screen(screen.screen))
    page.locator("#screen").screenshot(path=path, omit_background=True)


if sys.argv[3:4] == ["send"]:
    send(sys.argv[4])
else:
    main()
