#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""links.py <repository>: checks that the targets of the pages exist: links and their anchors, files, lines of diffs, the
READMEs in accelerate/, the files that an all-reduce passes, and each C++ name in the table "Coming from Python"."""
import re
import sys
from pathlib import Path

TOP = Path(sys.argv[1])
FOLDERS = ("accelerate", "launch", "examples", "tests", "bench", "cmake", "tools")
ARCHITECTURE, CHAIN, NAMES = (TOP / "docs" / page for page in
                              ("design/architecture.md", "design/collectives.md", "migration/hugging_face.md"))
wrong = []


def expect(holds, page, what):
    if not holds:
        wrong.append(f"{page.relative_to(TOP)}: {what}")


def pages():
    found = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").rglob("*.md"))]
    for folder in FOLDERS:
        found += sorted((TOP / folder).rglob("README.md"))
    return found


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """The anchors that GitHub creates from headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def check_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        expect(there.exists(), page, f"a link to {target}, which is not there")
        if anchor and there.suffix == ".md" and there.exists():
            expect(anchor in anchors(there), page, f"a link to {target}: no such heading")


def check_files(page, text):
    for path in re.findall(r"`((?:%s)/[\w./-]+)`" % "|".join(FOLDERS), text):
        beside = [TOP / path, *(TOP.glob(path + ".*"))]
        expect(any(one.exists() for one in beside), page, f"{path} is not there")


def check_diffs(page, text):
    """Removed lines must be in the plain program, added lines in the Accelerate program."""
    of = {sign: (TOP / file).read_text() for sign, file in
          (("-", "examples/plain_libtorch/mnist.cpp"), ("+", "examples/mnist.cpp"))}
    for block in re.findall(r"^```diff\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            for sign in of if line[0] == " " else line[0] if line[0] in of else "":
                expect(line[1:] in of[sign].splitlines(), page, f"a line of a diff that is not there: {line}")


def file_table(page):
    """Names in backticks in the first column of the tables "| file | what |"."""
    names, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside = line == "| file | what |" or inside and line.startswith("|")
        names += re.findall(r"`([^`]+)`", line.split(" | ")[0]) if inside else []
    return names


def check_file_table(component, deep=True):
    """Every file must be in the table, by its path without extension or by its folder: `schedules/`."""
    page = component / "README.md"
    sources = [file for ending in ("*.cpp", "*.hpp", "*.def") for file in (component.rglob(ending) if deep else component.glob(ending))]
    there = {str(file.relative_to(component).with_suffix("")) for file in sources}
    listed = file_table(page)
    folders = tuple(name for name in listed if name.endswith("/"))
    for name in sorted(there):
        expect(name in listed or name.startswith(folders), page, f"{name} is not in the table of files")
    for name in listed:
        is_folder = name in folders and (component / name).is_dir()
        expect(name in there or is_folder, page, f"{name} is in the table of files and not there")


def check_components(page, text):
    for cmake in sorted((TOP / "accelerate").glob("*/CMakeLists.txt")):
        component = cmake.parent
        expect((component / "README.md").exists(), page, f"{component.name} has no README.md")
        expect(f"](../../accelerate/{component.name}/README.md)" in text, page, f"no link to {component.name}'s README.md")
        check_file_table(component)
    check_file_table(TOP / "launch")
    check_file_table(TOP / "examples")
    check_file_table(TOP / "accelerate", deep=False)


def check_chain(page, text, most=8):
    """Each file of the table "| file | entry | continues with |" contains both, and continues with the name of the next
    entry; there are at most `most` files."""
    rows = re.search(r"^\| file \| entry \|.*\n\|[-|]*\|\n((?:\|.*\n)*)", text, flags=re.MULTILINE)
    chain = [re.findall(r"`([^`]+)`", row) for row in rows.group(1).splitlines()] if rows else []
    expect(0 < len(chain) <= most, page, f"an all-reduce passes {len(chain)} files, at most {most} may be")
    for file, *code in chain:
        path = TOP / "accelerate/comm" / file
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        for each in code:
            expect(each in there, page, f"{file} of the chain has no {each}")
    for (file, *_, on), (following, came, *_) in zip(chain, chain[1:]):
        name = re.search(r"(\w+)(?:\(| = \[)", came).group(1)
        expect(re.search(rf"\b{name}\(", on), page, f"{file} of the chain goes on by {on}, and {following} comes in as {came}")


def check_names(page, text):
    """Second column of the tables below "Coming from Python": every identifier is in a header or an option's name."""
    known = set()
    for folder in ("accelerate", "launch"):
        for header in [*(TOP / folder).rglob("*.hpp"), *(TOP / folder).rglob("*.def")]:
            known.update(re.findall(r"\w+", header.read_text(encoding="utf-8")))
    known.update(program.stem for program in (TOP / "launch/programs").glob("*.cpp"))
    known.update({"main", "int", "auto", "const", "std", "torch", "at"})
    part = text.split("## Coming from Python", 1)[1]
    part = re.split(r"^## ", part, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split("|") for line in part.splitlines() if line.startswith("| ") and not line.startswith("| Python")]
    expect(len(rows) > 100, page, f"only {len(rows)} rows below Coming from Python")
    for row in rows:
        for code in re.findall(r"`([^`]+)`", row[2]):
            for name in re.findall(r"[A-Za-z_]\w+", re.sub(r'"[^"]*"|\S+\.(?:cpp|hpp|json|yaml)\b', "", code)):
                expect(name in known, page, f"{name} of {code} is in no header")


for each in pages():
    everything = each.read_text(encoding="utf-8")
    check_links(each, without_code(everything))
    check_files(each, without_code(everything))
    check_diffs(each, everything)
check_components(ARCHITECTURE, ARCHITECTURE.read_text(encoding="utf-8"))
check_chain(CHAIN, CHAIN.read_text(encoding="utf-8"))
check_names(NAMES, NAMES.read_text(encoding="utf-8"))
if wrong:
    sys.exit("\n".join(wrong))
print("all links and names lead somewhere")
