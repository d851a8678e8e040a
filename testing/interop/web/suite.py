"""Cases of the suite `web`: `suite.py LAB [CASE...]`. See README.md."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import views  # noqa: E402
from views import URL, WEIR, Failed, at, browser, gateways, http, login, top, wait_for  # noqa: E402
from lab import Blast, build  # noqa: E402
from verdict import run_cases  # noqa: E402

LAB = sys.argv[1]
# What a viewer waits for news.
NEWS_S = 2
# A machine that does other work takes longer to start a browser and to draw.
PATIENCE_S = 20
DOWN = "\x1b[B"


def check(condition, text):
    if not condition:
        raise Failed(text)


def live(page):
    page.wait_for_selector("#link[data-state=live]", timeout=PATIENCE_S * 1000)


def opened(page, sun):
    page.goto(login(sun))
    live(page)
    return page


def clean(page):
    check(not page.strangers, f"requests for other hosts: {page.strangers}")
    check(not page.faults, f"errors of the page: {page.faults}")


def case_access():
    """Who gets an answer, and which fields it has."""
    with gateways(LAB) as (sun, _):
        path = os.path.join(os.path.dirname(sun.config), "state", "web-token")
        check(stat.S_IMODE(os.stat(path).st_mode) == 0o600, "the token is readable by others")
        token = subprocess.run([WEIR, "web", "--token", sun.config], capture_output=True, text=True, check=True).stdout.strip()
        bearer = ("-H", f"Authorization: Bearer {token}")
        for path in ("/", "/events", "/status.json", "/connection?name=office"):
            check(http(path)[0] == 401, f"{path} without a token")
            check(http(path, "-H", "Authorization: Bearer " + token[::-1])[0] == 401, f"{path} with a wrong token")
            for host in ("evil.example", "evil.example:9791", "127.0.0.1.evil.example"):
                check(http(path, *bearer, "-H", f"Host: {host}")[0] == 421, f"{path} as {host}")
        check(http("/login?token=" + token[::-1])[0] == 401, "a login with a wrong token")
        code, fields, _ = http("/login?token=" + token)
        check(code == 303 and "httponly" in fields["set-cookie"] and "samesite=strict" in fields["set-cookie"], f"{fields}")
        for host in ("localhost:8080", "[::1]", "127.0.0.1"):
            check(http("/", *bearer, "-H", f"Host: {host}")[0] == 200, f"as {host}")
        for path in ("/", "/status.json"):
            code, fields, body = http(path, *bearer, "-H", "Origin: http://evil.example")
            check(code == 200 and "office" in body, f"{path}: {code}")
            check(not [name for name in fields if name.startswith("access-control")], f"CORS: {fields}")
            check("default-src 'none'" in fields["content-security-policy"], f"{fields}")
            check(fields["x-content-type-options"] == "nosniff" and fields["cache-control"] == "no-store", f"{fields}")
        check(json.loads(http("/status.json", *bearer)[2])["connections"], "no connections")
        check(http("/", *bearer, "-X", "POST")[0] == 405, "a POST")
        stream = at("sun", ["curl", "-sN", "--max-time", "4", *bearer, URL + "/events"])
        numbers = [int(number) for number in re.findall(r"^id: (\d+)$", stream, re.M)]
        check(stream.startswith("retry: 1000") and len(numbers) >= 3 and numbers == sorted(set(numbers)), f"{numbers}")
        log = "\n".join(sun.lines)
        check(token not in log, "the log has the token")


def case_updates():
    """Traffic and an SA that ends are seen within two seconds, without a request to another host."""
    with gateways(LAB) as (sun, _), browser(LAB) as page:
        opened(page, sun)
        check(page.url == URL + "/", f"the address keeps the token: {page.url}")
        check(page.locator("#connections tbody").count() == 4, "not four connections")
        first = page.locator("#connections tbody").first.inner_text()
        check("lake" in first, f"what is down is not first: {first}")
        page.evaluate("window.marker = 1")
        out = "[id^='c:gcm'] td[data-l=Out]"
        wait_for("no traffic yet", lambda: page.inner_text(out) == "0 bit/s")
        with Blast(["gcm"]):
            started = time.monotonic()
            # A sample is from the second before the traffic.
            wait_for("traffic on the page", lambda: page.inner_text(out) not in ("", "0 bit/s"), PATIENCE_S)
            check(time.monotonic() - started < NEWS_S + 1, f"traffic is seen after {time.monotonic() - started:.1f} s")
        subprocess.run([WEIR, "terminate", "--connection", "office", "--socket", sun.socket], capture_output=True, check=True)
        ended = time.monotonic()
        wait_for("the end of office", lambda: "up" not in page.inner_text("[id^='c:office'] .state"), PATIENCE_S)
        check(time.monotonic() - ended < NEWS_S, f"the end of an SA is seen after {time.monotonic() - ended:.1f} s")
        check(page.evaluate("window.marker") == 1, "the page was loaded again")
        clean(page)


def case_reconnect():
    """A daemon that is killed and started again."""
    with gateways(LAB) as (sun, moon), browser(LAB) as page:
        opened(page, sun)
        page.evaluate("window.marker = 1")
        sun.kill()
        page.wait_for_selector("#link[data-state=lost]", timeout=6000)
        check("no data for" in page.inner_text("#link") and page.locator("body.stale").count() == 1, "not marked as old")
        again = views.Weir("sun", LAB, views.trees(views.Keys())[0])
        with again:
            # The token stays: a viewer need not log in again.
            live(page)
            check(page.evaluate("window.marker") == 1, "the page was loaded again")
            check(page.locator("body.stale").count() == 0, "still marked as old")
            os.kill(again.pid, signal.SIGSTOP)
            page.wait_for_selector("#link[data-state=lost]", timeout=8000)
            os.kill(again.pid, signal.SIGCONT)
            live(page)
        check(not page.strangers, f"{page.strangers}")


def case_many():
    """1,000 connections: all of them in the table, news as fast as before, and a filter."""
    with gateways(LAB, more=1000) as (sun, _), browser(LAB) as page:
        started = time.monotonic()
        opened(page, sun)
        check(page.locator("#connections tbody").count() == 1004, f"{page.locator('#connections tbody').count()} rows")
        print(f"loaded after {time.monotonic() - started:.1f} s", file=sys.stderr)
        with Blast(["gcm"]):
            started = time.monotonic()
            wait_for("traffic", lambda: page.inner_text("[id^='c:gcm'] td[data-l=Out]") not in ("", "0 bit/s"), PATIENCE_S)
            check(time.monotonic() - started < NEWS_S + 2, f"traffic is seen after {time.monotonic() - started:.1f} s")
        page.fill("#filter", "site-07 idle")
        shown = page.locator("#connections tbody:visible").count()
        check(shown == 100 and "100 of 1004" in page.inner_text("#matches"), f"{shown} rows with the filter")
        # An event does not bring back what the filter hides.
        page.wait_for_timeout(2500)
        check(page.locator("#connections tbody:visible").count() == 100, "an event shows hidden rows")
        page.fill("#filter", "")
        check(page.locator("#connections tbody:visible").count() == 1004, "the filter stays")
        clean(page)


def case_keyboard():
    """Filter and details by keys alone; an event does not take the focus away."""
    with gateways(LAB) as (sun, _), browser(LAB) as page:
        opened(page, sun)

        def focus(selector):
            for _ in range(30):
                page.keyboard.press("Tab")
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
            raise Failed(f"the key Tab does not lead to {selector}")

        focus("#filter")
        page.keyboard.type("office")
        wait_for("one row", lambda: page.locator("#connections tbody:visible").count() == 1)
        focus("[id^='c:office'] a")
        check(page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus is not visible")
        page.wait_for_timeout(2500)
        check(page.evaluate("document.activeElement.matches(\"[id^='c:office'] a\")"), "an event took the focus")
        page.keyboard.press("Enter")
        page.wait_for_url("**/connection?name=office")
        live(page)
        text = page.inner_text("#sas")
        check("IKE SA #" in text and "SPI 0x" in text and "10.9.1.0/25" in text, text)
        focus("#sas a")
        page.keyboard.press("Enter")
        page.wait_for_url(URL + "/")
        clean(page)


CONTRAST = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const back = node => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || ['SCRIPT', 'STYLE'].includes(node.nodeName) || !node.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(back(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walk.currentNode.data.trim().slice(0, 30)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


def case_colors():
    """Light and dark by the setting of the viewer; each text has the contrast of WCAG 2.1 AA."""
    with gateways(LAB) as (sun, _):
        shades = {}
        for scheme in ("light", "dark"):
            with browser(LAB, color_scheme=scheme) as page:
                opened(page, sun)
                shades[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
                ratios = page.evaluate(CONTRAST)
                check(len(ratios) > 40 and ratios[0][0] >= 4.5, f"{scheme}: contrast {ratios[:3]}")
        values = {scheme: sum(map(int, re.findall(r"\d+", color)[:3])) for scheme, color in shades.items()}
        check(values["light"] > 600 and values["dark"] < 150, f"{shades}")


def case_phone():
    """A phone needs no horizontal scrolling, on either page."""
    with gateways(LAB) as (sun, _), browser(LAB, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True) as page:
        opened(page, sun)
        for path in ("/", "/connection?name=office", "/connection?name=gcm"):
            page.goto(URL + path)
            live(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            check(wide <= 360, f"{path} is {wide} pixels wide")
            check("office" in page.inner_text("main") or "gcm" in page.inner_text("main"), "no connection")
        page.goto(URL + "/")
        for width in (480, 768, 992, 1000, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth")
            check(wide <= width, f"{wide} pixels wide in a window of {width}")


def case_without_script():
    """The table is there, is renewed, and has rates."""
    with gateways(LAB) as (sun, _), browser(LAB, java_script_enabled=False) as page, Blast(["gcm"]):
        page.goto(login(sun))
        check(page.locator("#connections tbody").count() == 4, "not four connections")
        check(not page.locator("#filter").is_visible(), "a filter that does nothing")

        def rate():
            text = page.locator("[id^='c:gcm'] td[data-l=Out]").inner_text(timeout=PATIENCE_S * 1000)
            return text not in ("", "0 bit/s")

        wait_for("rates on the page", rate, PATIENCE_S)
        check(page.locator("#flow polyline.in").count() == 1, "no curve")
        page.click("[id^='c:office'] a")
        page.wait_for_url("**/connection?name=office")
        check("SPI 0x" in page.inner_text("#sas"), "no SA")


def case_stranger():
    """A page of another origin reads nothing, frames nothing, and sends no cookie."""
    with gateways(LAB) as (sun, _), browser(LAB) as page:
        opened(page, sun)
        # 'localhost' is another site than '127.0.0.1'; the page itself is that of a wrong token.
        page.goto(f"http://localhost:{views.PORT}/login?token=x", wait_until="domcontentloaded")
        ours = page.evaluate("""url => fetch(url + '/status.json', { credentials: 'include' })
            .then(answer => answer.text(), error => 'refused')""", URL)
        check(ours == "refused", f"read by another origin: {ours[:80]}")
        page.strangers.clear()
        page.goto("data:text/html,<iframe src='" + URL + "/'></iframe>")
        page.wait_for_timeout(1500)
        framed = [frame for frame in page.frames if frame is not page.main_frame and "weir on" in (frame.title() or "")]
        check(not framed, "shown in a frame")


def case_top_keys():
    """Screens, SAs of a connection, an SA that is ended after a question, and a restored terminal."""
    with gateways(LAB) as (sun, _), Blast(["gcm"]), top(sun) as screen:
        screen.shows("office", "lake", "up", "connecting", "bit/s")
        screen.press(DOWN * 9)
        screen.press("\r")
        screen.shows("SAs of office", "IKE SA #", "SPI 0x")
        before = [sa["unique_id"] for sa in office(sun)]
        screen.press("t")
        screen.shows("terminate IKE SA", "y: yes")
        screen.press("n")
        screen.shows("nothing was changed")
        check([sa["unique_id"] for sa in office(sun)] == before, "ended without a yes")
        screen.press("ty")
        screen.shows("terminated")
        wait_for("office down", lambda: [sa["unique_id"] for sa in office(sun)] != before)
        for words in (["REASON"], ["WORKER", "%"], ["[", "scroll"], ["CONNECTION"]):
            screen.press("\t")
            screen.shows(*words)
        screen.press("?")
        screen.shows("a page up, down")
        screen.press(" ")
        screen.press("q")
        check(screen.ended() == 0 and screen.is_restored(), f"not restored: {screen.raw[-80:]}")


def office(sun):
    return next(entry["ike_sas"] for entry in sun.status()["connections"] if entry["name"] == "office")


def case_top_signal():
    """SIGTERM and SIGHUP leave a usable terminal."""
    with gateways(LAB) as (sun, _):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with top(sun) as screen:
                screen.shows("office")
                views.stop(screen.process, number)
                check(screen.ended() == 0 and screen.is_restored(), f"signal {number}: {screen.raw[-80:]}")


def case_top_reconnect():
    """A daemon that goes and comes back."""
    with gateways(LAB) as (sun, _), top(sun) as screen:
        screen.shows("office")
        sun.kill()
        screen.shows("no answer for", "weir up", "trying again")
        check("office" in screen.text(), "the last sample is gone")
        with views.Weir("sun", LAB, views.trees(views.Keys())[0]):
            screen.shows("bit/s", "lake")
            check("no answer" not in screen.text(), screen.text())
            screen.press("q")
            check(screen.ended() == 0, "status")


def case_top_plain():
    """Narrow, without colours, without UTF-8, as over a serial line; then without a terminal."""
    with gateways(LAB) as (sun, _):
        env = {"TERM": "vt100", "LANG": "C", "LC_ALL": "C", "NO_COLOR": "1"}
        with top(sun, size=(12, 48), env=env) as screen:
            screen.shows("office", "connecting")
            colours = re.findall(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|38|48|9[0-7])[;0-9]*m", screen.raw)
            check(not colours, f"colours: {colours[:3]}")
            check(all(byte < 128 for byte in screen.raw), "not ASCII")
            screen.press("q")
            check(screen.ended() == 0 and screen.is_restored(), "not restored")
        plain = subprocess.run([WEIR, "top", "--socket", sun.socket], capture_output=True, text=True, check=False,
                               stdin=subprocess.DEVNULL)
        check(plain.returncode == 0 and "office" in plain.stdout and "\x1b" not in plain.stdout, plain.stdout)
        piped = subprocess.run(["script", "-qec", f"{WEIR} top --socket {sun.socket}", "/dev/null"], input="q",
                               capture_output=True, text=True, check=False)
        check(piped.returncode == 0 and "\x1b[?1049l" in piped.stdout, f"script: {piped.stdout[-80:]}")
    gone = subprocess.run([WEIR, "top", "--once", "--socket", sun.socket], capture_output=True, text=True, check=False)
    check(gone.returncode == 2 and "weir up" in gone.stderr and not gone.stdout, gone.stderr)
    dumb = views.Terminal(WEIR, "top", "--socket", sun.socket, env={"TERM": "dumb"})
    with dumb as screen:
        check(screen.ended() == 2 and b"--once" in screen.raw, f"{screen.raw}")


build()
sys.exit(run_cases("web", globals(), sys.argv[2:]))
