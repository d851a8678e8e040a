#!/usr/bin/env python3
"""Lists, for machine code of the kernel (`cuobjdump -sass`), what each address, branch and predicated instruction depends on:
parameters, fields of the descriptor, the number of rounds, or secrets (KEY, BODY, AAD, NONCE, SUM). Ends with 1 if one depends
on a secret. Follows data through registers and predicates, along every path; all that is loaded from shared memory is SUM."""

import re
import sys
from collections import Counter

SECRET = {"KEY", "BODY", "AAD", "NONCE", "SUM"}
PARAMETERS = {0x210: "keys", 0x214: "keys", 0x218: "slot", 0x21C: "slot", 0x220: "data", 0x224: "tags", 0x228: "packets",
              0x22C: "lanes", 0x230: "key slots"}
FIELDS = {0x0: "body at", 0x4: "length", 0x8: "AAD length", 0xC: "key slot", 0x10: "NONCE", 0x14: "NONCE", 0x18: "NONCE",
          0x1C: "direction"}
NO_RESULT = {"BRA", "EXIT", "STG", "STS", "BSSY", "BSYNC", "BAR", "NOP"}


def read(path):
    found = []
    for line in open(path, encoding="utf-8"):
        if match := re.match(r"\s+/\*([0-9a-f]{4})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z0-9]\S*)\s*(.*?)\s*;", line):
            operands = [operand.strip() for operand in match[4].split(",")] if match[4] else []
            found.append((int(match[1], 16), match[2], match[3], operands))
    return found


def registers(operand, pair=False):
    """Names of the registers in an operand."""
    names = []
    for kind, number, wide in re.findall(r"\b(UR|R|UP|P)(\d+)((?:\.reuse)?(?:\.64)?)", operand):
        names.append(f"{kind}{number}")
        if (pair or wide.endswith(".64")) and kind in ("R", "UR"):
            names.append(f"{kind}{int(number) + 1}")
    return names


def step(instruction, state):
    """State after an instruction, and the dependencies that it reveals, as (kind, labels)."""
    _, guard, whole, operands = instruction
    op, wide = whole.split(".")[0], ".WIDE" in whole
    labels = lambda names: set().union(*(state.get(name, set()) for name in names))
    condition, shown = labels(registers(guard or "")), []
    if guard:
        shown.append(("branch" if op in ("BRA", "EXIT") else "predicated", condition))
    results, sources = [], list(operands)
    if op not in NO_RESULT:
        results = [sources.pop(0)]
        carries = op in ("ISETP", "PLOP3") or results[0].startswith(("P", "UP"))
        while sources and re.fullmatch(r"U?P[0-9T]", sources[0]) and (carries or op in ("IADD3", "LEA", "IMAD")):
            results.append(sources.pop(0))
            if carries:
                break
        if carries and len(results) == 1:
            results.append(sources.pop(0))
    value = set(condition)
    for at, operand in enumerate(sources):
        value |= labels(registers(operand, pair=wide and at == 2))
        for parameter in re.findall(r"c\[0x0\]\[0x([0-9a-f]+)\]", operand):
            words = 2 if ".64" in whole else 1
            value |= {PARAMETERS[int(parameter, 16) + 4 * i] for i in range(words) if int(parameter, 16) + 4 * i in PARAMETERS}
        if operand.startswith("SR_"):
            value.add("position")
    if op in ("LDG", "STG", "LDS", "STS"):
        place = next(operand for operand in operands if "[" in operand)
        address = labels(registers(re.sub(r"desc\[UR\d+\]", "", place)))
        shown.append((op, address))
        offset = re.search(r"\+0x([0-9a-f]+)\]", place)
        offset = int(offset[1], 16) if offset else 0
        if op == "LDS":
            value = {"SUM"}
        elif "keys" in address:
            value = {"rounds" if offset == 0x1E0 else "KEY"}
        elif "body at" in address:
            value = {"BODY"}
        else:
            value = {FIELDS.get(offset, "AAD")}
    after = dict(state)
    # Uniform parameters of 64 bits are two: a load of both has the labels of each.
    pair = wide or op == "CS2R" or ".64" in whole
    for result in results:
        for i, name in enumerate(registers(result, pair)):
            new = set(value)
            if op in ("ULDC", "LDC") and pair and (match := re.search(r"c\[0x0\]\[0x([0-9a-f]+)\]", operands[-1])):
                label = PARAMETERS.get(int(match[1], 16) + 4 * i)
                new = {label} if label else set()
            after[name] = new | state.get(name, set()) if guard else new
    return after, shown


def main():
    code = read(sys.argv[1])
    index = {instruction[0]: at for at, instruction in enumerate(code)}
    states, work, found = {0: {}}, [0], {}
    while work:
        at = work.pop()
        address, guard, whole, operands = code[at]
        after, shown = step(code[at], states[at])
        found[at] = shown
        op, next_at = whole.split(".")[0], []
        if op == "BRA":
            next_at.append(index[int(operands[-1], 16)])
        if op not in ("BRA", "EXIT") or guard:
            next_at.append(at + 1)
        for to in next_at:
            old = states.get(to)
            new = {name: after.get(name, set()) | (old or {}).get(name, set()) for name in after.keys() | (old or {}).keys()}
            if new != old:
                states[to] = new
                work.append(to)
    kinds, wrong = Counter(), 0
    for at in sorted(found):
        for kind, labels in found[at]:
            kinds[kind, ", ".join(sorted(labels))] += 1
            if labels & SECRET:
                wrong = 1
                print(f"{code[at][0]:04x} {code[at][2]} {', '.join(code[at][3])}: {', '.join(sorted(labels))}")
    for (kind, labels), count in sorted(kinds.items()):
        print(f"{count:3} {kind:10} {labels}")
    print(f"{len(code)} instructions, {len(found)} reached")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
