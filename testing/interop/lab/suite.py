"""Cases of the suite `lab`: what every command ends with, its message when something is wrong, and what is left then."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from verdict import Skip, run_cases

ROOT = Path(__file__).resolve().parents[3]
WEIR = os.environ["WEIR"]
LAB, WANTED = Path(sys.argv[1]), sys.argv[2:]
# A loaded machine takes its time; a hang takes for ever.
PATIENCE = 400
ESP = "weir-esp-tunnel-aes128gcm16"
OTHER = "weir-esp-tunnel-chacha20poly1305"


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=PATIENCE, **options)


def weir(*args, status):
    """Runs `weir lab`, which must end with this exit status."""
    done = run(WEIR, "lab", *args, cwd=LAB)
    words = " ".join(map(str, args))
    assert done.returncode == status, f"{words}: status {done.returncode}, not {status}: {done.stderr.strip()[-400:]} … {done.stdout.strip()[-200:]}"
    return done


def refused(*args, words):
    """Status 2, nothing on standard output, one line of error with this text."""
    done = weir(*args, status=2)
    # How a wrong argument is written correctly may follow.
    usage = ("Usage:", "For more information", "  ")
    lines = [line for line in done.stderr.strip().splitlines() if line.strip() and not line.startswith(usage)]
    assert not done.stdout.strip(), f"{args}: printed on standard output: {done.stdout[:200]}"
    assert len(lines) == 1, f"{args}: {len(lines)} lines of error: {lines}"
    for word in [words] if isinstance(words, str) else words:
        assert word in lines[0], f"{args}: '{word}' is not in: {lines[0]}"


def interrupted(*args, when, command=(WEIR, "lab")):
    """SIGINT once `when` is true: status 130 and the word."""
    child = subprocess.Popen([*command, *map(str, args)], cwd=LAB, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + PATIENCE
    while not when():
        if time.monotonic() > give_up or child.poll() is not None:
            what = "never came so far" if child.poll() is None else "ended early"
            child.kill()
            raise AssertionError(f"{args}: {what}: {child.communicate(timeout=PATIENCE)[1][-300:]}")
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, message = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, f"{args}: status {child.returncode}: {message[-300:]}"
    assert "interrupted" in message, f"{args}: {message[-300:]}"


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def rows(out):
    return [json.loads(line) for line in (LAB / out / "trials.jsonl").read_text().splitlines()]


CAMPAIGN = f"""
name = "tiny"
title = "A tiny campaign"
[[study]]
kind = "sizes"
subjects = ["{ESP}", "{OTHER}"]
traffic = [64, 256, 512, 1024, 1400]
directions = ["out"]
sessions = 2
rounds = 2
duration_ms = 1
[[study]]
kind = "validate"
subjects = ["{ESP}"]
traffic = [83, 125, 177, 247, 319, 414, 460, 571, 706, 836, 1001, 1174, "imix"]
directions = ["out"]
sessions = 2
rounds = 2
duration_ms = 1
[[study]]
kind = "cipher"
subjects = ["cipher-esp-tunnel-aes128gcm16"]
directions = ["out"]
sessions = 1
rounds = 1
[[study]]
kind = "vector"
subjects = ["{ESP}"]
traffic = [512]
directions = ["out"]
batch = [1, 8, 64, 256]
sessions = 2
rounds = 1
duration_ms = 1
"""


def folder():
    """A small run, made once."""
    out = LAB / "tiny"
    if not (out / "report.html").exists():
        (LAB / "tiny.toml").write_text(CAMPAIGN)
        weir("run", "tiny.toml", "--out", "tiny", status=0)
    return out


def slowed(name, factor):
    """The small run once more, as if every trial had taken `factor` times as long as the first one of its kind did."""
    out = LAB / name
    out.mkdir(exist_ok=True)
    for kept in ["campaign.toml", "env.json"]:
        shutil.copy(folder() / kept, out / kept)
    trials = [json.loads(line) for line in (folder() / "trials.jsonl").read_text().splitlines()]
    first = {}
    for trial in [trial for trial in trials if trial["received"]]:
        times = first.setdefault((trial["direction"], trial["traffic"]), (trial["dur_ns"], trial["received"]))
        trial["dur_ns"] = round(times[0] * factor(trial) * trial["received"] / times[1])
        # Without it the time of batches, which other programs disturb, does not count.
        trial.pop("tsc", None)
    (out / "trials.jsonl").write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    return out


def modelled(name, whole="tiny"):
    """A small run once more with times that a model follows: in trials of a millisecond on a busy machine none need do so."""
    out = LAB / name
    out.mkdir(exist_ok=True)
    for kept in ["campaign.toml", "env.json"]:
        shutil.copy(LAB / whole / kept, out / kept)
    trials = [json.loads(line) for line in (LAB / whole / "trials.jsonl").read_text().splitlines()]
    for number, trial in enumerate(trials):
        if not trial["received"] or trial["study"] not in ("sizes", "validate", "vector"):
            continue
        size = int(trial["traffic"]) if trial["traffic"].isdigit() else 354
        trial["dur_ns"] = round(trial["received"] * saw(size) * (1 + 1e-4 * (number % 3 - 1)))
        # Ticks of the real trial would be preferred to its duration.
        trial.pop("tsc", None)
    (out / "trials.jsonl").write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    return out


def empty_folder():
    """A run without any trial, as it is right after the start."""
    out = LAB / "empty"
    out.mkdir(exist_ok=True)
    for name in ["campaign.toml", "env.json"]:
        shutil.copy(folder() / name, out / name)
    (out / "trials.jsonl").touch()
    return out


def table(name, head, rows):
    path = LAB / name
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def saw(size):
    """A time with teeth of 16 bytes, in ns: no line follows it, blocks of 16 do."""
    return 100 + 6.4 * -(-size // 16)


def times(name, sizes, sessions, factor=1.0):
    """Measurements that repeat to 0.02 %."""
    rows = [(s, round(saw(s) * factor * (1 + 1e-4 * ((s + n + r) % 3 - 1)), 4), n, r) for n in sessions for r in range(2) for s in sizes]
    return table(name, "size,time_ns,session,round", rows)


GRID = [64, 123, 250, 381, 515, 770, 1021, 1283, 1500]
UNSEEN = [66, 83, 100, 132, 153, 177, 198, 247, 288, 319, 362, 414, 460, 517, 571, 632]


def case_model_status():
    weir("model", "verify-paper", status=0)
    weir("model", "verify-paper", "--json", status=0)
    weir("model", "sizes", "--protocol", "esp", "--suite", "aes128gcm16", status=0)
    refused("model", "sizes", "--protocol", "esp", words="--protocol and --suite go together")
    refused("model", "sizes", "--protocol", "psp", "--suite", "3des-md5", words="does not support the suite '3des-md5'")
    weir("model", "cost", "aes128gcm16", "--max", "256", "--step", "64", "--rounds", "3", "--out", "cost.csv", status=0)
    refused("model", "cost", "nonsense", "--out", "no.csv", words="nonsense")
    refused("model", "cost", "aes128gcm16", "--max", "256", "--rounds", "3", "--out", "no/such/folder.csv", words="cannot write no/such/folder.csv")
    good = times("good.csv", GRID, range(5))
    weir("model", "fit", good, "--out", "good.toml", status=0)
    weir("model", "validate", "good.toml", times("unseen.csv", UNSEEN, range(5, 9)), status=0)
    weir("model", "validate", "good.toml", times("slow.csv", UNSEEN, range(5, 9), 1.05), status=1)
    refused("model", "validate", "good.toml", good, words="validation needs held-out sizes")
    refused("model", "validate", "good.toml", words="needs measurements")
    refused("model", "validate", "good.csv", good, words="not written by weir lab model fit")
    (LAB / "changed.toml").write_text((LAB / "good.toml").read_text().replace("samples = 90", "samples = 91"))
    refused("model", "validate", "changed.toml", "unseen.csv", words="invalid hash")
    refused("model", "fit", times("few.csv", GRID[:3], range(5)), words="3 different sizes are too few")
    refused("model", "fit", "none.csv", words="cannot read none.csv")
    (LAB / "nothing.csv").write_text("")
    refused("model", "fit", "nothing.csv", words="is empty")
    refused("model", "fit", table("unit.csv", "size,gbytes", [(64, 1), (128, 1)]), words="bytes or bits?")
    refused("model", "fit", table("absurd.csv", "size,gbps", [(64, 9e9), (128, 1)]), words="check the unit")
    # Two sizes that were measured wrong bend every form, but not the line through two others.
    bad = table("bad.csv", "size,time_ns", [(64, 125.6), (100, 140), (128, 151.2), (140, 156), (512, 457.2), (1200, 580), (1280, 612), (1400, 396)])
    weir("model", "fit", bad, status=1)
    engine = table("engine.csv", "size,time_ns", [(s, max(20000, 8000 + 16 * s)) for s in [64, 128, 256, 512, 1024, 1280, 1456]])
    weir("model", "engine", engine, status=0)
    refused("model", "engine", table("flat.csv", "size,time_ns", [(64, 100), (128, 100)]), words="no breakpoint")


def case_model_of_a_run():
    folder()
    out = modelled("known")
    weir("model", "fit", out, status=0)
    profiles = sorted(p.name for p in (out / "profiles").iterdir())
    assert profiles == ["weir-esp-tunnel-aes128gcm16-out.toml", "weir-esp-tunnel-chacha20poly1305-out.toml"], profiles
    done = run(WEIR, "lab", "model", "validate", out, "--json")
    # Trials of a millisecond in two sessions prove nothing, and it has to say so.
    assert done.returncode == 1, done.stderr[-300:]
    judged = json.loads(done.stdout)
    assert [j["subject"] for j in judged] == [ESP], [j["subject"] for j in judged]
    assert not judged[0]["accepted"] and len(judged[0]["validation"]["points"]) == 12
    found = {c["what"]: c["holds"] for c in judged[0]["validation"]["criteria"]}
    assert found["measured in other sessions"] is True and found["calibrated on at least 7 sizes in at least 5 sessions"] is False, found
    assert [c["kind"] for c in judged[0]["beyond"]["checks"]] == ["mix"], judged[0]["beyond"]
    # A second run of the same campaign numbers its sessions in the same way; they are others.
    weir("run", "tiny.toml", "--out", "measured-again", status=0)
    again = modelled("again", "measured-again")
    done = run(WEIR, "lab", "model", "validate", out, again, "--json")
    assert {c["what"]: c["holds"] for c in json.loads(done.stdout)[0]["validation"]["criteria"]}["measured in other sessions"], done.stderr
    # Names of ways are long, and a terminal is not.
    for command in ["fit", "validate"]:
        text = run(WEIR, "lab", "model", command, out).stdout
        wide = [line for line in text.splitlines() if line.startswith("─") and len(line) > 100]
        assert "─" in text and not wide, text
    refused("model", "fit", out, "--subject", "weir-psp-tunnel-aes128gcm16", words="nothing to fit")
    refused("model", "validate", LAB / "again", words=["contains no profile", "weir lab model fit"])
    assert again.exists()


def case_zero_trials():
    """A folder in which nothing was measured yet: each command reports it once."""
    out = empty_folder()
    refused("model", "fit", out, words=["contains no trials yet", "weir lab run --out"])
    refused("model", "validate", out, words="contains no trials yet")
    refused("explain", out, words="empty")
    refused("compare", out, folder(), words="empty")
    refused("run", table("none.toml", 'name = "none"', []), "--out", LAB / "none", words=["no trial", "[[study]]"])
    refused("run", "--out", LAB / "nowhere", words="give a campaign")
    refused("verify", LAB / "nowhere", words="missing")
    # The report of nothing is still a report.
    weir("verify", out, status=1)


def case_half_written():
    """A line that a crash cut short is ignored by every reader, and the rest stays."""
    out = LAB / "half"
    folder()
    modelled("half")
    with open(out / "trials.jsonl", "a") as file:
        file.write('{"schema":1,"run":"tiny","ses')
    done = weir("model", "fit", out, status=0)
    assert "is truncated and was ignored" in done.stderr, done.stderr
    weir("explain", out, status=0)
    whole = (LAB / "tiny" / "trials.jsonl").read_text()
    (out / "trials.jsonl").write_text(whole.replace('{"schema":1', '{"schema":9', 1))
    refused("model", "fit", out, words=["trials.jsonl:1:", "schema 9 is newer"])
    (out / "trials.jsonl").write_text("nonsense\n" + whole)
    refused("explain", out, words="trials.jsonl:1:")


def case_interrupt_and_resume():
    """Ctrl-C in the middle: everything measured stays, and the same command measures the rest and nothing twice."""
    folder()
    out = LAB / "stopped"
    file = out / "trials.jsonl"
    lines = lambda: len(file.read_text().splitlines()) if file.exists() else 0
    interrupted("run", "tiny.toml", "--out", "stopped", when=lambda: lines() >= 5)
    before = file.read_text()
    assert before.endswith("\n") and lines() >= 5
    weir("run", "tiny.toml", "--out", "stopped", status=0)
    assert file.read_text().startswith(before) and lines() == len((folder() / "trials.jsonl").read_text().splitlines())
    weir("verify", out, status=0)


def case_full_disk():
    """Results on a file system without room: one error, status 2, and no half file is taken for a whole one."""
    disk = LAB / "disk"
    disk.mkdir()
    if run("unshare", "--mount", "mount", "-t", "tmpfs", "none", disk).returncode != 0:
        raise Skip("this machine does not allow mounting a small file system")
    folder()
    modelled("known")
    for args in [
        f"lab model fit {LAB}/known --out {disk}/profiles",
        f"lab model cost aes128gcm16 --max 9000 --step 4 --rounds 3 --out {disk}/cost.csv",
        f"lab import {ROOT}/testing/data/thesis/esp.csv --out {disk}/import",
        f"lab run {LAB}/tiny.toml --out {disk}/run",
    ]:
        script = f"mount -t tmpfs -o size=4k none {disk} && {WEIR} {args} >/dev/null"
        done = run("unshare", "--mount", "sh", "-c", script)
        message = [line for line in done.stderr.splitlines() if line.startswith("weir: ")]
        assert done.returncode == 2, f"{args}: status {done.returncode}: {done.stderr[-300:]}"
        assert len(message) == 1 and ("No space left" in message[0] or "disk is full" in message[0]), f"{args}: {done.stderr[-300:]}"


def case_import():
    thesis = ROOT / "testing/data/thesis"
    good = sorted(thesis.glob("*.csv"))
    assert good, "the thesis data is missing"
    weir("import", good[0], status=0)
    rows = [line.split(",") for line in "20250605120000,10.0.0.1,1,10.0.0.2,5001,3,0.0-1.0,1000000,8000000|20250605120001,10.0.0.1,1,10.0.0.2,5001,3,1.0-2.0,1000000,8000000".split("|")]
    bits, by = LAB / "bits.csv", LAB / "bytes.csv"
    bits.write_text("\n".join(",".join(r) for r in rows) + "\n")
    weir("import", bits, status=0)
    by.write_text("\n".join(",".join([*r[:-1], "1000000"]) for r in rows) + "\n")
    refused("import", by, words=["bytes.csv:1:", "bytes per second"])
    refused("import", LAB / "none.csv", words="none.csv")
    (LAB / "text.csv").write_text("this is no measurement\n")
    refused("import", LAB / "text.csv", words="text.csv")


def case_plan_and_explain():
    weir("plan", "--datasheet", "64:1.2Gbps,1400:9.5Gbps", "--mix", "aaaaaaaddddg", "--rate", "3Gbps", "--cores", "8", status=0)
    weir("plan", "--datasheet", "64:1.2Gbps,1400:9.5Gbps", "--mix", "1400", "--rate", "900Gbps", "--cores", "2", status=1)
    refused("plan", "--datasheet", "64:1.2Gbps", "--mix", "1400", words="datasheet")
    refused("plan", LAB / "none.toml", "--mix", "1400", words="none.toml")
    weir("explain", folder(), status=0)
    refused("explain", LAB / "nowhere", words="nowhere")


def case_compare():
    short = ["--sessions", "3", "--rounds", "3", "--block", "0.5", "--size", "64"]
    weir("compare", "--binaries", WEIR, WEIR, *short, "--gate", "100", status=0)
    weir("compare", "--binaries", WEIR, WEIR, "--sessions", "6", "--rounds", "4", "--block", "1", "--size", "64", "--plant", "100", status=1)
    # Nothing planted is never found in every row, so a self-check of nothing fails.
    weir("compare", "--self-check", "1", "--plant", "0", *short, status=1)
    # Runs whose differences are known, so that a gate's verdict is too: nothing was measured
    # between them.
    level, slow = slowed("level", lambda trial: 1), slowed("slow", lambda trial: 1.5)
    skewed = slowed("skewed", lambda trial: 1 if trial["subject"] == ESP else 1.5)
    weir("compare", level, level, "--gate", "0.1", status=0)
    weir("compare", level, slow, "--gate", "60", status=0)
    weir("compare", level, slow, "--gate", "40", status=1)
    weir("compare", slow, level, "--gate", "0.1", status=0)
    weir("compare", skewed, "--subjects", f"{ESP},{OTHER}", "--gate", "60", status=0)
    weir("compare", skewed, "--subjects", f"{ESP},{OTHER}", "--gate", "40", status=1)
    refused("compare", "--binaries", WEIR, LAB / "none", *short, words="none")
    refused("compare", folder(), LAB / "nowhere", words="nowhere")
    refused("compare", folder(), words="--subjects A,B")
    refused("compare", folder(), "--subjects", f"{ESP},wireguard-go", words="wireguard-go")


def case_search():
    short = ["--set", "goals=0.01f0.03d0.5l50e", "--set", "traffic=512", "--set", "gaps=poisson", "--set", "duration_ms=20"]
    done = weir("search", *short, "--out", "searched", status=0)
    assert "Throughput found by search" in done.stdout or "kpps" in done.stdout, done.stdout[:600]
    weir("verify", "searched", status=0)
    bounded = weir("search", *short, "--set", "max_pps=2000", "--set", "real_time=true", "--out", "bounded", status=0)
    assert max(row.get("offered_pps", 0) for row in rows("bounded")) <= 2000, bounded.stdout
    refused("run", "--study", "search", "--subject", "weir-esp-tunel-aes128gcm16", words="weir-esp-tunel-aes128gcm16")
    refused("run", "--study", "search", "--set", "goals=soon", words="soon")
    interrupted("search", "--set", "goals=rfc2544", "--out", "stopped-search", when=after(4))


def case_overheads():
    done = weir("overheads", "--subject", ESP, "--set", "traffic=64,512,1400", "--set", "sessions=1", "--set", "rounds=1", "--set", "duration_ms=10", "--out", "parts", status=0)
    for part in ["Stages of a packet", "Cost of each layer", "Ablation compared with timers", "Fixed cost", "One ping", "Waterfall of a ping"]:
        assert part in done.stdout, f"'{part}' is missing: {done.stdout[:500]}"
    refused("run", "--study", "overheads", "--subject", "weir-esp-tunnel-rot13", words="rot13")
    for other, why in [("wireguard-go", "cannot be measured in memory"), ("cipher-esp-tunnel-aes128gcm16", "has no stages to measure")]:
        done = weir("overheads", "--subject", other, "--out", f"no-{other}", status=2)
        assert why in done.stderr, done.stderr
    interrupted("overheads", "--subject", "all", "--out", "all", when=after(4))


def case_doctor_and_subjects():
    json.loads(weir("doctor", "--json", status=0).stdout)
    listed = weir("subjects", status=0).stdout
    assert ESP in listed and "wireguard-go" in listed, listed[:300]
    weir("run", "--subjects", status=0)
    weir("run", "--preset", "model", "--print", status=0)


def case_unknown_subject():
    """Named with what it should have been, before anything is started or written."""
    text = CAMPAIGN.replace(ESP, "weir-esp-tunel-aes128gcm16", 1)
    (LAB / "unknown.toml").write_text(text)
    refused("run", "unknown.toml", "--out", "unknown", words=["unknown.toml:6:", f"did you mean '{ESP}'?"])
    assert not (LAB / "unknown").exists()
    refused("run", "--study", "series", "--subject", "weir-esp-tunnel-rot13", words="rot13")
    refused("run", "--study", "scaling", "--set", "core=1", words=["--study scaling", "did you mean 'cores'?"])
    refused("run", "--set", "cores=1", words="--study KIND")


BETWEEN_HOSTS = [("modes", "--set", "sessions=1"), ("series", "--set", "rounds=3"), ("run", "--study", "sizes", "--subject", "plain", "--set", "place=namespaces", "--out", "sizes-between"), ("demo", "--seconds", "2")]


def case_no_privilege():
    """No capability and no user namespace to get one in: one error with what is needed, for everything that runs between hosts."""
    script = 'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs "$@"'
    confined = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    if run(*confined, "true").returncode != 0:
        raise Skip("this machine does not let a test give up its privileges")
    for command in BETWEEN_HOSTS:
        done = run(*confined, WEIR, "lab", *command, cwd=LAB)
        lines = [line for line in done.stderr.splitlines() if line.startswith("weir: ")]
        assert done.returncode == 2, f"{command}: status {done.returncode}: {done.stderr[-300:]}"
        assert len(lines) == 1 and any(w in lines[0] for w in ["needs namespaces", "/dev/net/tun", "not installed"]), f"{command}: {done.stderr[-400:]}"


def namespaces():
    """Two hosts with a cable, and their removal."""
    names = [f"weirlab-{os.getpid()}-{end}" for end in "ab"]
    if os.geteuid() != 0 or run("ip", "netns", "add", names[0]).returncode != 0:
        raise Skip("network namespaces need root")
    run("ip", "netns", "add", names[1])
    run("ip", "link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v0", "netns", names[1])
    for number, name in enumerate(names):
        run("ip", "-n", name, "addr", "add", f"10.9.9.{number + 1}/24", "dev", "v0")
        run("ip", "-n", name, "link", "set", "v0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
    return names


def case_interface_down():
    """A search between two hosts whose cable is unplugged: one error, not a throughput of nothing."""
    names = namespaces()
    try:
        args = ["search", "--subject", "my-box", "--set", "place=interfaces", "--set", f"from=10.9.9.1@{names[0]}", "--set", f"to=10.9.9.2@{names[1]}",
                "--set", "goals=0.05f0.1d0.5l50e", "--set", "traffic=512", "--set", "duration_ms=100"]
        weir(*args, status=0)
        run("ip", "-n", names[0], "link", "set", "v0", "down")
        done = run(WEIR, "lab", *args, cwd=LAB)
        lines = [line for line in done.stderr.splitlines() if line.startswith("weir: ")]
        assert done.returncode == 2 and len(lines) == 1, f"status {done.returncode}: {done.stderr[-300:]} {done.stdout[-300:]}"
        assert "unreachable" in done.stderr or "down" in done.stderr, done.stderr
        run("ip", "-n", names[0], "link", "set", "v0", "up")
        run("ip", "-n", names[1], "link", "set", "v0", "down")
        done = run(WEIR, "lab", *args, cwd=LAB)
        assert done.returncode in (1, 2) and (done.stderr + done.stdout).strip(), f"status {done.returncode}"
    finally:
        for name in names:
            run("ip", "netns", "del", name)


def case_demonstration():
    """A row without Weir, one with keys of IKE and one of PSP: every row is measured, and the page is there."""
    if not Path("/dev/net/tun").exists() or run("unshare", "--net", "--mount", "true").returncode != 0:
        raise Skip("network namespaces and /dev/net/tun are needed")
    done = weir("demo", "--rows", "plain,esp-gcm,psp", "--seconds", "2", "--json", "--out", "demonstration", status=0)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 3 and all(row["measured"] for row in rows), done.stdout[:400]
    assert "<html" in (LAB / "demonstration" / "index.html").read_text()


def case_study_by_itself():
    """One study without a file: tables of at most 80 columns, and a folder like that of any campaign."""
    short = ["--set", "sas=1,50", "--set", "sessions=2", "--set", "rounds=1", "--set", "duration_ms=2"]
    done = run(WEIR, "bench", "sas", *short, "--out", "many", cwd=LAB)
    assert done.returncode == 0, done.stderr[-400:]
    assert "weir lab run --study sas --set sas=1,50" in done.stderr, done.stderr[:300]
    tables = [line for line in done.stdout.splitlines() if not line.startswith(("✓", "!", "–"))]
    assert "Number of SAs" in tables and all(len(line) <= 80 for line in tables), done.stdout
    assert {(row["study"], row["sas"]) for row in rows("many")} == {("sas", 1), ("sas", 50)}
    weir("verify", "many", status=0)
    text = weir("run", "--study", "sas", *short, "--print", status=0).stdout
    assert text == (LAB / "many" / "campaign.toml").read_text(), text
    done = run(WEIR, "bench", "cores", "--set", "cores=1", "--set", "traffic=64", "--set", "sessions=1", "--set", "rounds=1", "--set",
               "duration_ms=5", "--set", "schedulers=run-to-completion,pipeline-atomic", "--out", "cores", cwd=LAB)
    assert done.returncode == 0 and "in order within its flow" in " ".join(done.stdout.split()), done.stderr[-300:] + done.stdout
    assert "pipeline-atomic" in {row["way"]["scheduler"] for row in rows("cores")}


def case_path_and_engines():
    """The path beside its engine, and engines beside each other: studies like any other, with verified folders."""
    short = ["--set", "sessions=2", "--set", "rounds=1", "--set", "duration_ms=1", "--set", "traffic=64,512"]
    several = ["--set", "flows=1,48", "--set", "sas=1,40", "--set", "memory_mib=0,1"]
    done = run(WEIR, "bench", "path", "--subject", ESP, *short, *several, "--out", "path", cwd=LAB)
    assert done.returncode == 0 and "The path beside its engine" in done.stdout, done.stderr[-300:] + done.stdout[-300:]
    seen = {(row["sas"], row["values"]["flows"], row["values"]["memory_mib"]) for row in rows("path")}
    assert len(seen) == 8, seen
    assert all(row["values"]["over_engine"] > 0.5 and row["verified"] == row["sent"] for row in rows("path"))
    weir("verify", "path", status=0)
    cipher = "cipher-esp-tunnel-aes128gcm16"
    names = [f"{cipher},engine=aws_lc", f"{cipher},copied", f"{cipher},engine=aws_lc,threads=1", f"{cipher},engine=vaes"]
    named = [word for name in names for word in ("--subject", name)]
    done = run(WEIR, "bench", "engines", *named, *short, "--set", "batch=16", "--out", "engines", cwd=LAB)
    assert done.returncode == 0 and "Engines compared" in done.stdout, done.stderr[-300:] + done.stdout[-300:]
    # An engine that this processor lacks is named, and the rest is measured.
    missing = {name for name in names if name not in {row["subject"] for row in rows("engines")}}
    assert missing <= {names[3]} and all("vaes" in done.stdout for _ in missing), f"{missing}: {done.stdout[-400:]}"
    weir("verify", "engines", status=0)
    refused("run", "--study", "path", "--subject", cipher, words="has no path")


def case_history():
    """Runs of one campaign in order of time; those of another one are named and left out."""
    root = LAB / "history"
    root.mkdir()
    short = ["--set", "sessions=2", "--set", "rounds=2", "--set", "duration_ms=1", "--set", "traffic=64"]
    for name, more in (("one", []), ("two", []), ("other", ["--set", "seed=9"]), ("three", [])):
        weir("run", "--study", "path", "--subject", ESP, *short, *more, "--out", root / name, status=0)
    done = run(WEIR, "lab", "log", root, "--page", root / "page.html", cwd=LAB)
    assert done.returncode in (0, 1), done.stderr
    assert [line.split("/")[-1] for line in done.stdout.splitlines() if "commit" in line] == ["one", "two", "three"], done.stdout
    assert "other is left out: another campaign" in done.stdout, done.stdout
    assert "<svg" in (root / "page.html").read_text()
    refused("log", root / "other", words="a history needs two")


def case_committed_results():
    """The results that the documentation quotes follow from their trials; a changed trial is found."""
    results = sorted(path.parent for path in (ROOT / "docs" / "results").glob("*/trials.jsonl"))
    assert results, "docs/results has no run"
    done = run(WEIR, "lab", "verify", *results, cwd=LAB)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-300:]
    done = run("/usr/bin/python3", "-B", ROOT / "scripts" / "results.py", "--check")
    assert done.returncode == 0, done.stdout
    for result in results:
        copy = LAB / "changed" / result.name
        shutil.copytree(result, copy)
        trials = (copy / "trials.jsonl").read_text().splitlines()
        row = json.loads(trials[0])
        row["at_ms"] += 1
        (copy / "trials.jsonl").write_text("\n".join([json.dumps(row), *trials[1:]]) + "\n")
        done = run(WEIR, "lab", "verify", copy, cwd=LAB)
        assert done.returncode == 1 and "summary.json: differs" in done.stdout, f"{result.name}: {done.stdout}"


def case_keying():
    """Rates in memory, the memory of IKE SAs and a flood; the same of a daemon."""
    short = ["--set", "sessions=1", "--set", "rounds=1"]
    done = run(WEIR, "bench", "ike", *short, "--set", "sas=50", "--out", "ike", cwd=LAB)
    assert done.returncode == 0 and "flood: an honest peer is up after" in done.stdout, done.stderr[-300:] + done.stdout
    values = rows("ike")[0]["values"]
    assert values["ike_sa_bytes"] > 0 and values["ike_rekeys_per_s"] > 0 and values["flood_half_open_max"] <= 100, values
    if not Path("/dev/net/tun").exists() or run("unshare", "--net", "--mount", "true").returncode != 0:
        raise Skip("network namespaces and /dev/net/tun are needed")
    done = run(WEIR, "bench", "ike", *short, "--set", "place=namespaces", "--set", "sas=20", "--out", "daemon", cwd=LAB)
    values = rows("daemon")[0]["values"]
    assert done.returncode == 0 and values["ike_sas_per_cpu_s"] > 0 and values["flood_honest_missing"] < 24, f"{done.stderr[-300:]} {values}"


def case_rivals():
    """Transfers of Weir and of the cable: rate and cost, one study for each number of streams."""
    if not Path("/dev/net/tun").exists() or run("unshare", "--net", "--mount", "true").returncode != 0:
        raise Skip("network namespaces and /dev/net/tun are needed")
    args = ["--subject", f"{ESP},udp", "--subject", "weir-psp-tunnel-aes128gcm16", "--set", "flows=1,2", "--set", "sessions=1", "--set", "rounds=1"]
    done = run(WEIR, "bench", "rivals", *args, "--set", "duration_ms=500", "--out", "rivals", cwd=LAB)
    assert done.returncode == 0 and "Transfers: rate and cost" in done.stdout, done.stderr[-400:] + done.stdout[-300:]
    assert {row["study"] for row in rows("rivals")} == {"transfers-1", "transfers-2"}
    assert all(row["values"]["machine_s_per_gbit"] > 0 for row in rows("rivals")), rows("rivals")
    weir("verify", "rivals", status=0)


def case_modes_with_a_delay():
    """The cable delays every frame, reports how exactly, and a round trip is longer by two delays."""
    if not Path("/dev/net/tun").exists() or run("unshare", "--net", "--mount", "true").returncode != 0:
        raise Skip("network namespaces and /dev/net/tun are needed")
    delay = 20
    of = ["modes", "--set", "traffic=160", "--set", "duration_ms=60", "--set", "rounds=1"]
    done = weir(*of, "--set", f"delay_ms={delay}", "--set", "sessions=2", "--out", "delayed", status=0)
    values = [row["values"] for row in rows("delayed")]
    assert len(values) == 2 * (2 + 5) * 2, len(values)
    assert all(2000 * delay <= of["rtt_p50_us"] and of["cable_late_max_us"] >= 0 and of["cable_dropped"] == 0 for of in values), values
    assert "Frames left the cable late by" in done.stdout, done.stdout
    plain = [row["values"]["rtt_p50_us"] for row in rows("delayed") if row["subject"] == "plain"]
    # A busy machine is late; a whole delay more would be one too many.
    assert plain and all(us < 3000 * delay for us in plain), plain
    interrupted(*of, "--set", "delay_ms=1", "--out", "broken-off", when=after(4))


if __name__ == "__main__":
    sys.exit(run_cases("lab", globals(), WANTED))
