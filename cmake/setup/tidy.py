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

# Flags of GCC that clang does not know, and the build's choice of errors.
NOT_FOR_CLANG = re.compile(r" -(Werror|fpch-preprocess|Wno-restrict|Winvalid-pch)\b| --param \S+| -include \S*cmake_pch\S*")

TOP = Path(__file__).resolve().parents[2]
FOLDERS = ("accelerate", "launch", "examples")
# CMake includes sources by absolute paths: in unity files and in the programs of examples/by_feature.
INCLUDE = re.compile(r'^#include "(/[^"]+\.cpp)"', re.MULTILINE)


def compiled_sources(file):
    """The sources of the tree that compiling this file reads: itself, or those that a generated file includes."""
    if file.is_relative_to(TOP) and file.relative_to(TOP).parts[0] in FOLDERS:
        return {file.relative_to(TOP)}
    included = INCLUDE.findall(file.read_text()) if file.exists() else []
    return set().union(*(compiled_sources(Path(name)) for name in included))


def sources(build, pattern):
    """The entries to check and the sources that they read; a source may be in several entries, one is checked."""
    entries, read = [], set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        new = {path for path in compiled_sources(Path(entry["file"])) if re.search(pattern, str(path))} - read
        if new:
            read |= new
            entry["command"] = NOT_FOR_CLANG.sub("", entry["command"])
            entries.append(entry)
    return entries, read


def not_read(read, pattern):
    """Sources of the tree that this build does not compile. An absent.cpp replaces a part that is not built."""
    present = {path.relative_to(TOP) for folder in FOLDERS for path in (TOP / folder).rglob("*.cpp")}
    return sorted(str(path) for path in present - read if re.search(pattern, str(path)) and not path.stem.endswith("absent"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_intermixed_args()
    entries, read = sources(options.build, options.pattern)
    missing = not_read(read, options.pattern)
    database = options.build / "tidy"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(entries))

    def check(entry):
        return entry["file"], subprocess.run(["clang-tidy-19", "--quiet", "-p", str(database), entry["file"]],
                                             capture_output=True, text=True)

    bad = 0
    with ThreadPoolExecutor(options.j) as pool:
        for file, result in pool.map(check, entries):
            if result.returncode or result.stdout.strip():
                bad += 1
                print(result.stdout + result.stderr, flush=True)
    print(f"run: clang-tidy read {len(read)} files in {len(entries)} compilations, {bad} with findings", file=sys.stderr)
    if missing:
        print(f"run: the build does not compile {', '.join(missing)}: clang-tidy cannot read them", file=sys.stderr)
    return 1 if bad or missing or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
