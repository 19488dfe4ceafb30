#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that comments and documents are written in plain technical English.

Five patterns mark sentences that a reader has to parse twice. The check counts them per 1,000 lines of prose, for
each top folder, separately for code (comment lines of C++), messages (string literals of C++ with several words),
scripts (comments and docstrings of Python, shell and CMake files) and documents (Markdown lines outside code blocks). A
rate fails if it is above LIMIT and above the rate in the baseline file. So a rate can only fall, until all are below
LIMIT.

  prose.py                   checks the repository against cmake/setup/prose_baseline.json
  prose.py --show codes      also prints every hit of one pattern
  prose.py --worst 10        also prints the files with most hits
  prose.py --added main      checks only the lines that were added since that commit, and prints their hits
  prose.py --lower-baseline  writes rates that have fallen into the baseline
"""
import argparse
import json
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

LIMIT = 5.0  # hits per 1,000 lines; abseil and TensorStore are below 2
PATTERNS = {
    "who": (r"\b(?:who|whoever|whose|whom)\b", "name the subject: a rank, a process, the caller"),
    "of": (r"(?:^|[.:;] )Of\b", "begin the sentence with its subject"),
    "what": (r"\bwhat (?:it|they|the|a|an|this|that|we|you|is|was|were|are|comes?|came|lies|has|had|others|somebody|"
             r"nobody|ranks?|stands|follows)\b", "use a noun in place of the clause"),
    "verbs": (r"\b(?:stands?(?!-in\b)|stood|lies|lay|lain|comes?|came|goes on|went on|tells?|told|hears?|heard|says?|"
              r"said|asks?|asked)\b", "a function returns, throws, logs, sends or waits; it does not speak"),
    "codes": (r"(?:^|[.;(] ?|   )(?:None|Unset|Empty|Undefined|0|true|false|not set): ",
              "write the default as a sentence"),
}
COMPILED = {name: re.compile(pattern) for name, (pattern, _) in PATTERNS.items()}
CODE = (".cpp", ".hpp", ".c", ".h", ".def")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt")
BASELINE = "cmake/setup/prose_baseline.json"


def git(top, *arguments):
    return subprocess.run(["git", "-C", str(top), *arguments], capture_output=True, text=True, errors="replace",
                          check=True).stdout


def kind_of(path):
    """"code", "scripts" or "documents"; None for other files."""
    if path.name.endswith(CODE):
        return "code"
    if path.name.endswith(".md"):
        return "documents"
    if path.name.endswith(SCRIPTS):
        return "scripts"
    with path.open("rb") as file:
        return "scripts" if "." not in path.name and file.read(2) == b"#!" else None


def files_of(top):
    """{path in the repository: kind} of the files with prose that git tracks or would track."""
    names = git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    kinds = {name: kind_of(top / name) for name in sorted(set(names)) if (top / name).is_file()}
    return {name: kind for name, kind in kinds.items() if kind}


def comment_lines(text):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"(?:^|\s)//[/!]?<?\s?(.*)$", line)
        if found and "SPDX" not in line and "http" not in line:
            yield number, found.group(1)


def message_lines(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("//", "#include")):
            continue
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            if " " in literal.strip():
                yield number, literal


def script_lines(text):
    in_docstring = False
    for number, line in enumerate(text.splitlines(), 1):
        quotes = line.count('"""')
        if in_docstring or line.lstrip().startswith('"""'):
            yield number, line.strip().strip('"')
        elif (found := re.search(r"(?:^|\s)#\s(.*)$", line)) and "SPDX" not in line and "http" not in line:
            yield number, found.group(1)
        in_docstring = in_docstring != (quotes == 1)


def document_lines(text):
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block and line.strip():
            yield number, re.sub(r"`[^`]*`", "`code`", line)


def added_lines(top, commit):
    """{path: numbers of the lines that the working tree has and the commit has not}"""
    added, path = defaultdict(set), None
    for line in git(top, "diff", "-U0", "--no-color", "--no-ext-diff", commit).splitlines():
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") else None
        found = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if found and path:
            first, count = int(found[1]), int(found[2] or 1)
            added[path].update(range(first, first + count))
    return added


READERS = {"code": {"code": comment_lines, "messages": message_lines}, "scripts": {"scripts": script_lines},
           "documents": {"documents": document_lines}}


class Count:
    """Lines and hits of one folder and kind."""

    def __init__(self):
        self.lines = 0
        self.hits = Counter()

    def rate(self, pattern):
        return 1000 * self.hits[pattern] / max(self.lines, 1)


def count_prose(top, added=None):
    """{folder: {kind: Count}} and the hits as (path, line number, pattern, text)."""
    counts, hits = defaultdict(lambda: defaultdict(Count)), []
    for path, kind in files_of(top).items():
        if added is not None and path not in added:
            continue
        text = (top / path).read_text(encoding="utf-8", errors="replace")
        for label, read_lines in READERS[kind].items():
            count = counts[path.split("/")[0] if "/" in path else "."][label]
            for number, line in read_lines(text):
                if added is not None and number not in added[path]:
                    continue
                count.lines += 1
                for pattern, compiled in COMPILED.items():
                    found = len(compiled.findall(line))
                    count.hits[pattern] += found
                    hits += [(path, number, pattern, line.strip())] * bool(found)
    return counts, hits


def rounded_up(rate):
    return math.ceil(10 * rate) / 10


def lowered(baseline, counts):
    """The baseline with every rate that has fallen. Rates up to LIMIT need no entry. Without a file, all rates are new."""
    result, is_new = {}, baseline is None
    for folder, kinds in sorted(counts.items()):
        for kind, count in sorted(kinds.items()):
            for pattern in PATTERNS:
                before = None if is_new else baseline.get(folder, {}).get(kind, {}).get(pattern)
                rate = rounded_up(count.rate(pattern))
                if before is not None or is_new:
                    rate = rate if before is None else min(rate, before)
                    if rate > LIMIT:
                        result.setdefault(folder, {}).setdefault(kind, {})[pattern] = rate
    return result


def too_high(baseline, counts):
    for folder, kinds in sorted(counts.items()):
        for kind, count in sorted(kinds.items()):
            for pattern, (_, advice) in PATTERNS.items():
                allowed = max(LIMIT, baseline.get(folder, {}).get(kind, {}).get(pattern, 0))
                if count.rate(pattern) > allowed:
                    yield (f"prose: {folder} ({kind}): pattern '{pattern}' has {count.rate(pattern):.1f} hits per 1,000 "
                           f"lines, at most {allowed:g} are allowed; {advice}")


def too_many_added(counts):
    """Few added lines may have one hit of a pattern; LIMIT holds for many."""
    total = Count()
    for kinds in counts.values():
        for count in kinds.values():
            total.lines += count.lines
            total.hits += count.hits
    for pattern, (_, advice) in PATTERNS.items():
        allowed = max(1, math.floor(LIMIT * total.lines / 1000))
        if total.hits[pattern] > allowed:
            yield (f"prose: {total.lines} added lines have {total.hits[pattern]} hits of pattern '{pattern}', at most "
                   f"{allowed} are allowed; {advice}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("top", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--added", metavar="COMMIT", help="check only lines added since this commit")
    parser.add_argument("--show", choices=PATTERNS, help="print every hit of this pattern")
    parser.add_argument("--worst", metavar="N", type=int, default=0, help="print the N files with most hits")
    parser.add_argument("--lower-baseline", action="store_true", help="write rates that have fallen")
    options = parser.parse_args()

    path = options.top / BASELINE
    baseline = json.loads(path.read_text()) if path.exists() else None
    added = added_lines(options.top, options.added) if options.added else None
    counts, hits = count_prose(options.top, added)
    for file, number, pattern, text in hits:
        if added is not None or pattern == options.show:
            print(f"{file}:{number}: {pattern}: {text}")
    for file, number in Counter(file for file, *_ in hits).most_common(options.worst):
        print(f"{number:5d} {file}")
    if options.lower_baseline:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(lowered(baseline, counts), indent=2) + "\n")
        return
    wrong = list(too_many_added(counts) if options.added else too_high(baseline or {}, counts))
    if wrong:
        sys.exit("\n".join(wrong))
    print("prose: all rates are within their limits", file=sys.stderr)


if __name__ == "__main__":
    main()
