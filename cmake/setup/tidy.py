#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over the library's own sources in compile_commands.json: tidy.py <build folder> [-j N] [REGEX]."""
import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Flags of GCC that clang does not know.
UNKNOWN_TO_CLANG = re.compile(r" -(fpch-preprocess|Wno-restrict|Winvalid-pch)\b| -include \S*cmake_pch\S*")


def sources(build, pattern):
    top = Path(__file__).resolve().parents[2]
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"]).relative_to(top) if Path(entry["file"]).is_relative_to(top) else None
        if path and path.parts[0] in ("accelerate", "launch", "examples") and re.search(pattern, str(path)):
            entry["command"] = UNKNOWN_TO_CLANG.sub("", entry["command"])
            found.append(entry)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_intermixed_args()
    entries = sources(options.build, options.pattern)
    database = options.build / "tidy"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(entries))

    def check(entry):
        return entry["file"], subprocess.run(["clang-tidy", "--quiet", "-p", str(database), entry["file"]],
                                             capture_output=True, text=True)

    bad = 0
    with ThreadPoolExecutor(options.j) as pool:
        for file, result in pool.map(check, entries):
            if result.returncode or result.stdout.strip():
                bad += 1
                print(result.stdout + result.stderr, flush=True)
    print(f"run: clang-tidy read {len(entries)} files, {bad} with findings", file=sys.stderr)
    return 1 if bad or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
