#!/usr/bin/env python3
"""Writes the tables of the documentation that show figures of docs/results: each follows a comment
`<!-- results FOLDER FIGURE: column | column | … -->`, with columns of the data of that figure in FOLDER's report.html. A column that
has an interval is shown with it; `column=value` selects rows. FOLDER may be a file that scripts/vpp.py has
written. With --check, writes nothing and ends with 1 if a table differs from its figure."""

import base64
import csv
import io
import re
import sys
from pathlib import Path

import vpp

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"(<!-- results (\S+) (\S+):\s+([^>]+?)\s+-->)\n\n(?:\|.*\n)*\n?")


def short(cell):
    """A number with three significant digits; other text as it is."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    if value == int(value) and "." not in cell:
        return cell
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def between(low, high):
    return f" ({short(low)}–{short(high)})"


def table(folder, figure, columns):
    if folder.endswith(".jsonl"):
        head, *rows = vpp.rows(ROOT / "docs" / "results" / folder)
    else:
        page = (ROOT / "docs" / "results" / folder / "report.html").read_text(encoding="utf-8")
        [data] = re.findall(rf'download="{figure}\.csv" href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)
        head, *rows = csv.reader(io.StringIO(base64.b64decode(data).decode()))
    wanted = dict(column.split("=") for column in columns if "=" in column)
    columns = [column for column in columns if "=" not in column]
    rows = [row for row in rows if all(row[head.index(column)] == value for column, value in wanted.items())]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = []
        for column in columns:
            at = head.index(column)
            cell = row[at].removeprefix("weir-") if column == "subject" else short(row[at])
            if head[at + 1:at + 3] == ["low", "high"] and row[at + 1] != row[at + 2]:
                cell += between(row[at + 1], row[at + 2])
            cells.append(cell)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def main():
    check, wrong = "--check" in sys.argv[1:], 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        new = MARK.sub(lambda m: f"{m[1]}\n\n{table(m[2], m[3], ' '.join(m[4].split()).split(' | '))}", text)
        if new != text and check:
            print(f"{path.relative_to(ROOT)}: a table differs from docs/results; run scripts/results.py")
            wrong = 1
        elif new != text:
            path.write_text(new, encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
