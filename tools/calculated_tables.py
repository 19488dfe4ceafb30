# SPDX-License-Identifier: Apache-2.0
"""Tables of a page that a script calculates: between <!-- calculated: NAME --> and <!-- end -->."""
import argparse
import difflib
import re
import sys
from pathlib import Path


def number(value):
    """Three digits."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(" --- ", "---")


def with_tables(page, tables):
    seen = []

    def calculated(match):
        seen.append(match[1])
        return f"<!-- calculated: {match[1]} -->\n{tables.get(match[1])}\n<!-- end -->"

    result = re.sub(r"<!-- calculated: (.*?) -->\n.*?<!-- end -->", calculated, page, flags=re.DOTALL)
    if sorted(seen) != sorted(tables):
        sys.exit(f"the page has the tables {sorted(seen)}, must have {sorted(tables)}")
    return result


def main(description, tables):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="writes the tables into the page")
    options = parser.parse_args()
    before = options.page.read_text(encoding="utf-8")
    after = with_tables(before, tables)
    if options.write:
        options.page.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit("".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(options.page), "calculated")))
    else:
        print(f"{len(tables)} tables are as calculated")
