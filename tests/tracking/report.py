# SPDX-License-Identifier: Apache-2.0
"""report.py <tracked_run> <accelerate_report>: the page of a run must be well-formed and self-contained."""
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def expect(what, holds):
    if not holds:
        sys.exit(f"report.py: {what}")


def main():
    tracked_run, report = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tracked_run, folder], check=True)
        output = subprocess.run([report, folder], check=True, capture_output=True, text=True).stdout
        expect(output, output == f"{folder}/report.html: 1 run, 0 profiles\n")
        page = (Path(folder) / "report.html").read_text(encoding="utf-8")
        empty = subprocess.run([report, folder + "/none"], capture_output=True, text=True)
        expect(empty, empty.returncode == 1 and "cannot be read: No such file or directory" in empty.stderr)
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    titles = [title.text for title in tree.iter("h3")]
    expect(titles, titles[:2] == ["loss", "lr"] and "steps per second" in titles)
    curve = next(tree.iter("polyline")).get("points").split()
    expect(len(curve), 500 <= len(curve) <= 1000)
    expect("links", not re.search(r"\b(src|href)=|url\(|@import", page))
    print("the report is well formed")


main()
