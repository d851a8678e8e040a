#!/usr/bin/env bash
# Files that are committed hold no absolute path of the machine they were written on and no stray
# conflict marker. Comments and Markdown fit 100 columns.
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths under a home belong to one machine; /tmp, /etc, /proc, /usr and the like exist everywhere.
patterns='(^|[^[:alnum:]_./$}-])/(home/[a-z]+|root|Users/[A-Za-z]+)/[[:alnum:]._-]|^(<<<<<<<|>>>>>>>) '
# Not `git grep`: a release unpacked from an archive is checked, too.
if grep -rnIE --exclude-dir={.git,target,corpus,artifacts,demo-out,__pycache__} --exclude=check-text.sh --exclude=.git "$patterns" .; then
    echo "check-text: the lines above hold a path of one machine or a conflict marker" >&2
    exit 1
fi

# Tables, code blocks and single words such as links cannot be wrapped.
python3 - <<'EOF'
import os, re, sys

COLUMNS = 100
SKIPPED = {".git", "target", "corpus", "artifacts", "demo-out", "__pycache__", "data"}
COMMENT = {".rs": r"\s*//", ".sh": r"\s*#", ".py": r"\s*#", ".lua": r"\s*--", ".toml": r"\s*#"}
faults = 0
for folder, folders, names in os.walk("."):
    folders[:] = [name for name in folders if name not in SKIPPED]
    for name in names:
        kind = os.path.splitext(name)[1]
        if kind not in COMMENT and kind != ".md":
            continue
        path, fenced = os.path.join(folder, name), False
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            line = line.rstrip("\n")
            fenced ^= kind in (".rs", ".md") and re.match(r"\s*(//[/!] ?)?```", line) is not None
            text = re.match(COMMENT[kind], line) if kind in COMMENT else line
            words = line.split()
            unbreakable = len(words) < 3 or fenced or re.match(r"\s*(//[/!] )?(\||\[[^]]*\]:|#!)", line)
            if text and len(line) > COLUMNS and not unbreakable:
                print(f"{path}:{number}: {len(line)} columns: {line.strip()[:60]}...", file=sys.stderr)
                faults += 1
if faults:
    sys.exit(f"check-text: wrap the {faults} lines above at {COLUMNS} columns")
EOF
