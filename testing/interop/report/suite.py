"""Cases of the suite `report`: a run and what may happen to it, then the page in Chromium."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from verdict import Skip, run_cases

HERE = Path(__file__).parent
WEIR = os.environ["WEIR"]
LAB, WANTED = Path(sys.argv[1]), sys.argv[2:]
# A loaded machine takes its time; a hang takes for ever.
PATIENCE = 500
# Everything that this suite starts inherits it, also what outlives its parent: other campaigns may
# run beside it.
MARK = "WEIR_REPORT_SUITE"
os.environ[MARK] = f"{LAB}:{os.getpid()}"


def weir(*args, check=None, **options):
    done = subprocess.run([WEIR, "lab", *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, **options)
    if check is not None:
        assert done.returncode == check, f"status {done.returncode}, not {check}: {done.stderr.strip()[-400:]}"
    return done


def run_small():
    """The folder of the small campaign; run once."""
    out = LAB / "small"
    if not (out / "report.html").exists():
        weir("run", HERE / "small.toml", "--out", out, check=0)
    return out


def trials(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def case_campaign():
    out = run_small()
    for name in ["trials.jsonl", "trials.csv", "trials.parquet", "env.json", "campaign.toml", "report.html", "summary.json"]:
        assert (out / name).stat().st_size > 0, name
    rows = trials(out)
    assert len(rows) > 250, len(rows)
    assert {row["env"] for row in rows} == {json.loads((out / "env.json").read_text())[0]["hash"]}
    assert len((out / "trials.csv").read_text().splitlines()) == len(rows) + 1
    assert (out / "trials.parquet").read_bytes()[:4] == b"PAR1"


def case_missing_is_named():
    summary = json.loads((run_small() / "summary.json").read_text())
    named = {(problem["subject"], problem["study"]) for problem in summary["problems"]}
    assert ("wireguard-go", "sizes") in named and ("weir-esp-tunnel-aes128gcm16", "scaling") in named, named
    assert "wireguard-go" in (run_small() / "report.html").read_text()


def case_verify():
    out = LAB / "verify"
    shutil.copytree(run_small(), out)
    weir("verify", out, check=0)
    page = out / "report.html"
    page.write_text(page.read_text().replace("ticks", "tocks", 1))
    done = weir("verify", out, check=1)
    assert "report.html: differs in line" in done.stdout and "tocks" in done.stdout, done.stdout
    assert not any(file["same"] for file in json.loads(weir("verify", out, "--json").stdout)["files"] if file["file"] == "report.html")
    assert "missing" in weir("verify", LAB / "nowhere", check=2).stderr


def case_resume():
    """Killed in the middle, with half a line at the end: everything whole stays, and the rest is measured."""
    out = LAB / "resume"
    child = subprocess.Popen([WEIR, "lab", "run", HERE / "small.toml", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + PATIENCE
    while not (out / "trials.jsonl").exists() or len((out / "trials.jsonl").read_text().splitlines()) < 20:
        assert time.monotonic() < give_up and child.poll() is None, "no trial came"
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE) == 130, child.returncode
    message = child.stderr.read()
    assert "interrupted" in message and "resumes" in message, message
    before = trials(out)
    whole = len(run_small().joinpath("trials.jsonl").read_text().splitlines())
    assert 20 <= len(before) < whole, len(before)
    with open(out / "trials.jsonl", "a") as file:
        file.write('{"schema":1,"run":"small","ses')
    done = weir("run", HERE / "small.toml", "--out", out, check=0)
    assert f"trials.jsonl:{len(before) + 1}: an incomplete line was removed" in done.stderr, done.stderr
    after = trials(out)
    assert after[: len(before)] == before and len(after) == whole, (len(before), len(after), whole)
    weir("verify", out, check=0)


def case_bad_input():
    good = (HERE / "small.toml").read_text()
    bad = LAB / "bad.toml"

    def refusal(text, *args):
        bad.write_text(text)
        done = weir("run", bad, "--out", LAB / "bad", *args, check=2)
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    assert "did you mean 'weir-esp-tunnel-aes128gcm16'?" in refusal(good.replace("weir-esp-tunnel-aes128gcm16", "weir-esp-tunel-aes128gcm16", 1))
    assert re.search(r"bad\.toml:\d+: unknown key 'round'; did you mean 'rounds'\?", refusal(good.replace("rounds", "round", 1)))
    assert "no trial" in refusal('name = "none"\n')
    assert not (LAB / "bad").exists(), "a wrong campaign leaves no folder"
    done = weir("run", LAB / "nothing.toml", check=2)
    assert "nothing.toml" in done.stderr
    bad.write_text('name = "many"\n[[study]]\nkind = "scaling"\nsubjects = ["weir-esp-tunnel-aes128gcm16"]\ncores = [1000]\n')
    done = weir("run", bad, "--out", LAB / "many", check=2)
    assert "nothing of the campaign" in done.stderr and "1000 cores: " in done.stderr, done.stderr
    done = weir("run", "--preset", "quick", "--out", run_small(), check=2)
    assert "holds the campaign 'small'" in done.stderr, done.stderr


def case_full_disk():
    """On a file system of 512 KiB: one error, every trial before it whole, and the run goes on when there is room."""
    out = LAB / "full"
    script = (
        f"mount -t tmpfs -o size=512k none {out} && {WEIR} lab run {HERE}/small.toml --out {out};"
        f"echo status $? >&2; cp {out}/trials.jsonl {out}/campaign.toml {out}/env.json {LAB}/"
    )
    out.mkdir()
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(out)], capture_output=True)
    if probe.returncode != 0:
        raise Skip("this machine does not allow mounting a small file system")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    message = [line for line in done.stderr.splitlines() if "disk is full" in line]
    assert len(message) == 1 and "status 2" in done.stderr, done.stderr
    kept = int(re.search(r"all (\d+) trials", message[0])[1])
    text = (LAB / "trials.jsonl").read_text()
    assert text.endswith("\n") and len(text.splitlines()) == kept > 0, (kept, len(text.splitlines()))
    for name in ["trials.jsonl", "campaign.toml", "env.json"]:
        shutil.move(LAB / name, out / name)
    weir("run", HERE / "small.toml", "--out", out, check=0)
    assert len(trials(out)) == len(trials(run_small()))


def left_over():
    """Hosts and gateways of campaigns that are still there."""
    hosts = [name for name in os.listdir("/run/netns") if name.startswith("weir-")] if os.path.isdir("/run/netns") else []
    return hosts, gateways()


def gateways(folder="/run/weir-demo"):
    """Processes of `weir up` whose configuration is in the private folder of a session that this suite started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            ours = f"{MARK}={os.environ[MARK]}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and "up" in words and any(word.startswith(folder) for word in words):
            found.append(int(pid))
    return found


def gone():
    give_up = time.monotonic() + 30
    while any(left_over()) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not any(left_over()), left_over()


def run_hosts():
    """The folder of the campaign between hosts; run once."""
    out = LAB / "hosts"
    if not (out / "report.html").exists():
        weir("run", HERE / "hosts.toml", "--out", out, check=0)
    skipped = [p["why"] for p in json.loads((out / "summary.json").read_text())["problems"] if p["why"].startswith("skipped")]
    if skipped:
        raise Skip(skipped[0])
    return out


def case_hosts():
    out = run_hosts()
    rows = trials(out)
    of = lambda study: [row for row in rows if row["study"] == study]
    places = {row["place"] for row in of("rtt") + of("rates") + of("series") + of("rtt-noise")}
    assert places == {"namespaces"}, places
    answers = [(row["subject"], row["received"], row["values"].get("rtt_p50_us", 0)) for row in of("rtt")]
    assert len(answers) == 24 and all(received > 0 and us > 0 for _, received, us in answers), answers
    # Trials in which a host sent something of its own say nothing of it.
    wire_of = lambda subject: statistics.median(
        row["values"]["wire_bytes"] for row in of("rtt") if row["subject"] == subject and "wire_bytes" in row["values"])
    wire = {row["subject"]: wire_of(row["subject"]) for row in of("rtt")}
    assert abs(wire["weir-esp-tunnel-aes128gcm16"] - wire["weir-esp-transport-aes128gcm16"] - 20) < 1, wire
    samples = [(row["subject"], row["received_bytes"], "cpu0_busy_percent" in row["values"]) for row in of("series")]
    # On a busy machine TCP may wait for half a second; it does not wait for three.
    flowing = {subject for subject, received, _ in samples if received > 0}
    assert len(samples) == 12 and len(flowing) == 2 and all(busy for _, _, busy in samples), samples
    by_subject = [row["subject"] for row in of("series")]
    assert by_subject == ["plain"] * 6 + ["weir-esp-transport-aes128gcm16"] * 6, "one series after the other"
    arrived = {row["subject"]: row["received"] for row in of("rates")}
    assert len(arrived) == 2 and all(arrived.values()), arrived
    drawn = {figure["id"] for figure in json.loads((out / "summary.json").read_text())["figures"] if figure["drawn"]}
    assert {"hosts", "rtt", "rtt-modes", "series", "search", "search-curve", "search-latency", "sas"} <= drawn, drawn
    weir("verify", out, check=0)
    gone()


def case_hosts_interrupted():
    """SIGINT while TCP runs: nothing is left, everything measured stays, and the same command goes on."""
    run_hosts()
    out = LAB / "hosts-interrupted"
    child = subprocess.Popen([WEIR, "lab", "run", HERE / "hosts.toml", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + PATIENCE
    while not (out / "trials.jsonl").exists() or sum('"study":"series"' in line for line in (out / "trials.jsonl").read_text().splitlines()) < 2:
        assert time.monotonic() < give_up and child.poll() is None, "no sample came"
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130, child.returncode
    assert "resumes" in child.stderr.read()
    gone()
    before = trials(out)
    weir("run", HERE / "hosts.toml", "--out", out, check=0)
    after = trials(out)
    assert after[: len(before)] == before
    series = [row for row in after if row["study"] == "series"]
    assert len(series) == 12 and len({row["session"] for row in series}) == 2, "a new process is a new session"
    weir("verify", out, check=0)


def case_hosts_crash():
    """A gateway is killed: its trials are named as not made, those of others are, and the run reports that something failed."""
    run_hosts()
    out = LAB / "hosts-crash"
    text = (HERE / "hosts.toml").read_text()
    campaign = LAB / "crash.toml"
    campaign.write_text(text[: text.index("[[study]]")] + text[text.index('[[study]]\nname = "rtt"\n') : text.index('[[study]]\nname = "rates"')].replace("rounds = 2", "rounds = 8").replace("sessions = 2", "sessions = 1"))
    child = subprocess.Popen([WEIR, "lab", "run", campaign, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + PATIENCE
    while not (out / "trials.jsonl").exists() or len((out / "trials.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < give_up and child.poll() is None, "no trial came"
        time.sleep(0.02)
    os.kill(sorted(gateways())[0], signal.SIGKILL)
    assert child.wait(PATIENCE) == 1, (child.returncode, child.stderr.read())
    problems = json.loads((out / "summary.json").read_text())["problems"]
    assert len(problems) == 1 and problems[0]["failed"] and "trials of the session were not run" in problems[0]["why"], problems
    others = [row for row in trials(out) if row["subject"] != problems[0]["subject"]]
    assert len(others) == 32, len(others)
    gone()


def run_transfers():
    """The folder of the campaign of transfers; run once."""
    out = LAB / "transfers"
    if not (out / "report.html").exists():
        weir("run", HERE / "transfers.toml", "--out", out, check=0)
    skipped = [p["why"] for p in json.loads((out / "summary.json").read_text())["problems"] if p["why"].startswith("skipped")]
    if skipped:
        raise Skip(skipped[0])
    return out


def case_transfers():
    """Every subject carries TCP with negotiated keys, an SA per CPU takes more messages than Sub SAs, and the answer opens the report."""
    out = run_transfers()
    rows = [row for row in trials(out) if row["subject"] != "wireguard-go"]
    # The first subject twice, three others, in two sessions.
    assert len(rows) == 10 and all(row["received_bytes"] > 0 and row["place"] == "namespaces" for row in rows), len(rows)
    assert all(row["cores"] == rows[0]["cores"] >= 1 and row["values"]["cpu_s_per_gbit"] > 0 for row in rows)
    of = lambda part, key: {row["values"][key] for row in rows if row["subject"].endswith(part)}
    workers = rows[0]["cores"]
    assert of(",udp", "setup_messages") == {4} and of("sub-sas", "setup_messages") == {4}, "IKE_SA_INIT and IKE_AUTH"
    assert of("per-cpu", "setup_messages") == {4 + 2 * workers}, "a CREATE_CHILD_SA for each worker"
    assert of("per-cpu", "setup_sas") == {1 + workers} and of("sub-sas", "setup_sas") == {1}
    summary = json.loads((out / "summary.json").read_text())
    table = summary["transfers"]["tables"][0]
    assert [line["trials"] for line in table["lines"]][:4] == [4, 2, 2, 2], table["lines"]
    ratios = [line["rate"]["ratio"] for line in table["lines"][1:4]]
    assert all(ratio["low"] <= ratio["value"] <= ratio["high"] for ratio in ratios), ratios
    page = (out / "report.html").read_text()
    assert "PSP over EESP" in summary["answer"] and page.index('id="answer"') < page.index('id="verdict"')
    assert 'id="transfers"' in page and summary["answer"].split(".")[0] in page
    order = [row["subject"] for row in rows if row["session"] == rows[0]["session"]]
    assert len(set(order)) == 4, order
    weir("verify", out, check=0)
    gone()


def case_transfers_answer_follows_the_trials():
    """The same trials with EESP at half the rate: another answer. The report is computed again by the same command."""
    out = LAB / "transfers-planted"
    shutil.copytree(run_transfers(), out)
    rows = trials(out)

    def answer(factor):
        with open(out / "trials.jsonl", "w") as file:
            for row in rows:
                rate = 1e8 * (1 + 0.001 * row["session"]) * (factor if "-eesp-" in row["subject"] else 1)
                file.write(json.dumps({**row, "received_bytes": int(rate)}) + "\n")
        weir("run", "--out", out, check=0)
        return json.loads((out / "summary.json").read_text())["answer"]

    same, slower, faster = answer(1), answer(0.5), answer(2)
    assert same.startswith("PSP and EESP are equally fast here within 1 %"), same
    assert slower.startswith("PSP is faster than EESP here"), slower
    assert faster.startswith("EESP is faster than PSP here"), faster


def case_transfers_mixed():
    """UDP and raw IP are not compared: one line, and nothing is started."""
    campaign = LAB / "mixed.toml"
    campaign.write_text((HERE / "transfers.toml").read_text().replace("aes128gcm16,udp,sub-sas", "aes128gcm16,sub-sas"))
    done = weir("run", campaign, "--out", LAB / "mixed", check=2)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "raw IP" in lines[0] and "a comparison has one encapsulation" in lines[0], lines
    assert not (LAB / "mixed").exists()


def case_transfers_crash():
    """A gateway is killed during a transfer: its subject stays in the table and is called failed."""
    run_transfers()
    out = LAB / "transfers-crash"
    campaign = LAB / "transfers-crash.toml"
    campaign.write_text((HERE / "transfers.toml").read_text().replace("sessions = 2", "sessions = 1").replace("    \"wireguard-go\",\n", ""))
    child = subprocess.Popen([WEIR, "lab", "run", campaign, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + PATIENCE
    while not gateways():
        assert time.monotonic() < give_up and child.poll() is None, "no gateway came"
        time.sleep(0.02)
    os.kill(sorted(gateways())[0], signal.SIGKILL)
    message, complaints = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1, (child.returncode, complaints)
    summary = json.loads((out / "summary.json").read_text())
    lines = summary["transfers"]["tables"][0]["lines"]
    failed = [line for line in lines if line["failed"]]
    assert len(lines) == 4 and len(failed) == 1, lines
    assert "✗ failed" in message and "✗ failed: " in (out / "report.html").read_text(), message
    gone()


def case_hosts_refused():
    """A kernel that allows no network namespaces: the rest is measured, and the missing figures state the reason."""
    out = LAB / "hosts-refused"
    script = f"echo 0 >/proc/sys/user/max_net_namespaces && exec {WEIR} lab run {HERE}/hosts.toml --out {out}"
    done = subprocess.run(["unshare", "--user", "--map-root-user", "sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    if "max_net_namespaces" in done.stderr or "unshare" in done.stderr.splitlines()[0]:
        raise Skip("this machine does not allow user namespaces with limits")
    assert done.returncode == 0, done.stderr
    problems = json.loads((out / "summary.json").read_text())["problems"]
    assert problems and all(p["why"].startswith("skipped: ") and not p["failed"] for p in problems), problems
    assert {row["study"] for row in trials(out)} == {"search", "sas"}
    assert "skipped: " in done.stdout


def case_searches_are_found_again():
    out = LAB / "searches"
    text = (HERE / "hosts.toml").read_text()
    campaign = LAB / "searches.toml"
    campaign.write_text(text[: text.index('[[study]]\nkind = "sas"')])
    weir("run", campaign, "--out", out, check=0)
    done = weir("verify", out, check=0)
    assert "searches: the same bounds from the trials of 2 searches" in done.stdout, done.stdout
    path = out / "trials.jsonl"
    lines = path.read_text().splitlines()
    at = max(number for number, line in enumerate(lines) if '"search_part":4.0' in line)
    row = json.loads(lines[at])
    row["values"]["lower_pps"] *= 1.01
    path.write_text("\n".join([*lines[:at], json.dumps(row), *lines[at + 1 :]]) + "\n")
    done = weir("verify", out, check=1)
    assert "✗ searches: " in done.stdout and "lower_pps" in done.stdout, done.stdout
    done = weir("compare", out, out)
    assert "0.002f0.01d0l50e" in done.stdout and "% of throughput" in done.stdout, done.stdout


CHROMIUM = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND"]

# Runs in the page once it is laid out and leaves what it finds for --dump-dom. It is in a copy: the
# page itself has no scripts.
PROBE = """<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const boxes = [...document.querySelectorAll("figure:not(.absent) svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll("rect,line,circle,polyline,polygon")].filter(m => {
      const b = m.getBoundingClientRect(); return b.width + b.height > 0.5; });
    return { w: box.width, h: box.height, marks: marks.length, title: svg.getAttribute("aria-label") };
  });
  const wide = [...document.querySelectorAll("body *")].filter(e => {
    if (e.closest(".scroll") && !e.matches(".scroll")) return false;
    if (e.closest("svg") && e.tagName !== "svg") return false;
    return e.getBoundingClientRect().right > innerWidth + 1; }).map(e => e.tagName + "." + e.className);
  const small = [...document.querySelectorAll("figure svg text")].filter(t => {
    const r = t.getBoundingClientRect(); return r.height > 0 && r.height < 9; }).length;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify({ boxes, wide: wide.slice(0, 8), small, inner: innerWidth,
    scroll: document.documentElement.scrollWidth, figures: document.querySelectorAll("figure").length,
    drawn: document.querySelectorAll("figure:not(.absent)").length, back: getComputedStyle(document.body).backgroundColor,
    tables: document.querySelectorAll("figure:not(.absent) details table").length,
    loaded: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")) });
  document.body.append(out);
});
</script>"""


def chromium(*args):
    """Runs Chromium; its output and complaints."""
    tool = shutil.which("chromium") or shutil.which("chromium-browser")
    if not tool:
        raise Skip("chromium is not installed (Debian: chromium)")
    home = LAB / "chromium"
    command = [tool, *CHROMIUM, f"--user-data-dir={home}", "--enable-logging=stderr", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "HOME": str(LAB)})


def page(width, dark):
    """Findings of the probe at this width, and messages of the console. Chromium's own window is at least 500 wide: a frame is not."""
    html = (run_small() / "report.html").read_text()
    probed = LAB / "probed.html"
    probed.write_text(html.replace("</body>", PROBE + "</body>"))
    frame = LAB / "frame.html"
    frame.write_text(f"""<!doctype html><title>frame</title><body style="margin:0"><iframe src="probed.html" style="border:0;width:{width}px;height:900px"></iframe><script>
addEventListener("load", () => {{ setTimeout(() => {{ const f = document.querySelector("iframe").contentDocument.getElementById("found");
document.title = "done"; const p = document.createElement("pre"); p.id = "relay"; p.textContent = f ? f.textContent : "null"; document.body.append(p); }}, 500); }});</script>""")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    done = chromium(*scheme, "--allow-file-access-from-files", f"--window-size={max(width, 500)},900", "--virtual-time-budget=10000", "--dump-dom", frame.as_uri())
    found = re.search(r'<pre id="relay">(.*?)</pre>', done.stdout, re.S)
    assert found, f"the page did not load: {done.stderr[-400:]}"
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(text), console


def picture(name, width, dark):
    """A picture of the page, for people; kept with KEEP."""
    frame = LAB / "picture.html"
    shutil.copy(run_small() / "report.html", LAB / "page.html")
    height = 6000 if width > 1000 else 14000
    frame.write_text(f'<!doctype html><body style="margin:0"><iframe src="page.html" style="border:0;width:{width}px;height:{height}px"></iframe>')
    file = LAB / f"{name}.png"
    chromium(f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--allow-file-access-from-files", f"--window-size={width},{height}", f"--screenshot={file}", frame.as_uri())
    assert file.exists() and file.stat().st_size > 50_000, f"{file} is empty"


def look(width, dark):
    found, console = page(width, dark)
    assert not console, console
    assert not found["loaded"], f"the page asked the network for {found['loaded']}"
    assert found["inner"] == width, found["inner"]
    assert found["scroll"] <= width and not found["wide"], f"wider than {width}: {found['scroll']}, {found['wide']}"
    assert found["drawn"] >= 14, f"{found['drawn']} of {found['figures']} figures are drawn"
    assert found["tables"] == found["drawn"], "every figure has its data"
    for box in found["boxes"]:
        assert box["w"] > 10 and box["h"] > 5 and box["marks"] > 0, f"an empty plot: {box}"
    assert not found["small"], f"{found['small']} texts are too small to be read"
    red, green, blue = map(int, re.findall(r"\d+", found["back"])[:3])
    assert (red + green + blue < 200) == dark, f"background {found['back']}"
    picture(f"report-{width}-{'dark' if dark else 'light'}", width, dark)


def case_page_1280_light():
    look(1280, False)


def case_page_1280_dark():
    look(1280, True)


def case_page_390_light():
    look(390, False)


def case_page_390_dark():
    look(390, True)


if __name__ == "__main__":
    sys.exit(run_cases("report", globals(), WANTED))
