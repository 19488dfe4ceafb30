#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""blocks.py <repository> <output folder> <harness.cpp ...>: creates programs from the C++ blocks of the READMEs.

A harness is C++ with lines "// block: accelerate/README.md: Clipping". Each such line is replaced by the C++ block below
that heading ("Clipping, 2": the second one), with #line so that the compiler names the README. Every ```cpp block of
every README and of every page below docs/ must be in exactly one harness.
"""
import re
import sys
from pathlib import Path

PLACE = re.compile(r"^\s*// block: (?P<file>\S+): (?P<heading>.+?)(?:, (?P<number>\d+))?$")


def readmes(top):
    skipped = re.compile(r"^(build|\.)")
    found = {*top.rglob("README.md"), *(top / "docs").rglob("*.md")}
    return sorted(path for path in found if not skipped.match(path.relative_to(top).parts[0]))


def blocks_of(path):
    """{(heading, number): (line, text)} of the C++ blocks of a page."""
    found, heading, begin, lines = {}, "", None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if begin is None and line.startswith("```cpp"):
            begin, lines = number + 1, []
        elif begin is not None and line.startswith("```"):
            count = 1 + sum(1 for known, _ in found if known == heading)
            found[heading, count] = (begin, "\n".join(lines))
            begin = None
        elif begin is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
    return found


def filled(harness, top, blocks, used):
    out = [f'#line 1 "{harness}"']
    for number, line in enumerate(harness.read_text(encoding="utf-8").splitlines(), 1):
        place = PLACE.match(line)
        if not place:
            out.append(line)
            continue
        name = (place["file"], place["heading"], int(place["number"] or 1))
        if name not in blocks:
            sys.exit(f"{harness}:{number}: there is no such block: {name}")
        used.add(name)
        begin, text = blocks[name]
        out += [f'#line {begin} "{top / place["file"]}"', text, f'#line {number + 1} "{harness}"']
    return "\n".join(out) + "\n"


def main():
    top, folder, harnesses = Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]
    blocks, used = {}, set()
    for path in readmes(top):
        for (heading, number), block in blocks_of(path).items():
            blocks[str(path.relative_to(top)), heading, number] = block
    texts = {harness.name: filled(harness, top, blocks, used) for harness in harnesses}
    left_out = [f"{file}:{blocks[file, heading, number][0]}" for file, heading, number in sorted(set(blocks) - used)]
    if left_out:
        sys.exit(f"blocks without a place in {', '.join(texts)}: {', '.join(left_out)}")
    for name, text in texts.items():
        target = folder / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:  # unchanged files are not compiled again
            target.write_text(text, encoding="utf-8")


main()
