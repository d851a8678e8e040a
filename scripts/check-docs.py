#!/usr/bin/env python3
"""Checks the Markdown files that git tracks: relative links lead to a file, fragments to a heading of it, README.md has at most
140 lines, prose has at most 100 columns, docs/SUMMARY.md has every page of docs/ once, and the index of decisions is complete.
With `--site FOLDER`, checks instead that relative links in the HTML pages of a site lead to a file and an anchor. Prints one
line per finding; ends with 1 if there is any."""

import functools
import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README_LINES, COLUMNS = 140, 100
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def prose(text):
    """Lines outside of fenced code, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def slug(heading):
    """The fragment that GitHub and mdbook give a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@functools.cache
def fragments(path):
    found, seen = set(), {}
    for _, line in prose(path.read_text(encoding="utf-8")):
        if match := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            name = slug(match[1])
            again = seen.get(name, 0)
            seen[name] = again + 1
            found.add(name if again == 0 else f"{name}-{again}")
    return found


def findings(name):
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    if name == "README.md" and len(text.splitlines()) > README_LINES:
        yield f"{name}: {len(text.splitlines())} lines; at most {README_LINES}"
    for number, line in prose(text):
        if len(line) > COLUMNS and not line.lstrip().startswith("|"):
            yield f"{name}:{number}: {len(line)} columns; at most {COLUMNS}"
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = match[1] or match[2]
            if re.match(r"[a-z]+:", target):
                continue
            file, _, fragment = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            if not to.exists():
                yield f"{name}:{number}: {target}: no such file"
            elif fragment and to.suffix == ".md" and fragment not in fragments(to):
                yield f"{name}:{number}: {target}: no such heading"


def summary():
    """Pages of docs/ that the table of contents lacks, has twice, or has although there is no such page."""
    docs = ROOT / "docs"
    listed = [target for _, target in re.findall(r"\[([^\]]*)\]\(([^)]+)\)", (docs / "SUMMARY.md").read_text(encoding="utf-8"))]
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"SUMMARY.md"}
    for page in sorted(pages - set(listed)):
        yield f"docs/SUMMARY.md: {page} is missing"
    for page in sorted({page for page in listed if listed.count(page) > 1}):
        yield f"docs/SUMMARY.md: {page} is listed twice"


def site(folder):
    """Relative links of HTML pages that lead nowhere."""
    pages = sorted(folder.rglob("*.html"))
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in pages}
    ids = {path: set(re.findall(r'\bid="([^"]*)"', text)) for path, text in texts.items()}
    if not texts:
        yield f"{folder}: no pages"
    for path, text in texts.items():
        # The page for errors has a base address of its own; the page for printing repeats the
        # anchors of all others.
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for target in re.findall(r'<a[^>]*\shref="([^"]*)"', text):
            target = html.unescape(target)
            if re.match(r"[a-z]+:", target):
                continue
            file, _, fragment = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            if to.is_dir():
                to /= "index.html"
            if not to.exists():
                yield f"{path.relative_to(folder.resolve())}: {target}: no such page"
            elif fragment and to in ids and fragment not in ids[to]:
                yield f"{path.relative_to(folder.resolve())}: {target}: no such anchor"


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--site":
        found = sorted(set(site(Path(sys.argv[2]))))
        print("".join(f"{line}\n" for line in found), end="")
        return 1 if found else 0
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = [line for name in tracked if (ROOT / name).exists() for line in findings(name)]
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    missing = [path.name for path in sorted((ROOT / "docs/decisions").glob("0*.md")) if path.name not in index]
    found += [f"docs/decisions/README.md: {name} is missing" for name in missing]
    found += summary()
    print("".join(f"{line}\n" for line in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
