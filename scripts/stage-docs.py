#!/usr/bin/env python3
"""Copies docs/ to the folder FOLDER for mdbook. Links that leave docs/ (README, crates, tests) have no page in the site: with
WEIR_SOURCE_URL they lead to the repository there, otherwise they become text. mdbook makes README.md the page index.html of its
folder, but does not change the links to it: here they lead to index.md, which mdbook turns into index.html."""

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
README = re.compile(r"\bREADME\.md(?=#|$)")


def outside(page, target):
    """Path in the repository of a link that leaves docs/, or None."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return None
    to = (page.parent / target.partition("#")[0]).resolve()
    return None if to.is_relative_to(DOCS) and to.is_file() else to.relative_to(ROOT)


def staged(page, text):
    base = os.environ.get("WEIR_SOURCE_URL", "").rstrip("/")

    def link(match):
        path = outside(page, match[2])
        if path is None:
            # The table of contents names files, not pages.
            return match[0] if page.name == "SUMMARY.md" else f"[{match[1]}]({README.sub(r'index.md', match[2])})"
        return f"[{match[1]}]({base}/{path})" if base else match[1]

    fenced, lines = False, []
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        lines.append(line if fenced else LINK.sub(link, line))
    return "\n".join(lines) + "\n"


def main():
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    for page in sorted(DOCS.rglob("*")):
        if page.is_file():
            to = out / page.relative_to(DOCS)
            to.parent.mkdir(parents=True, exist_ok=True)
            if page.suffix == ".md":
                to.write_text(staged(page, page.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copy(page, to)


main()
