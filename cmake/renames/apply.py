#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""apply.py TREE [renames.tsv]: applies the rows of renames.tsv to a git tree. It edits files and moves them with git mv. Not applied
yet; to be deleted after use.

Code tokens change outside of string literals, comments and #include paths. In comments and Markdown a token changes inside
backticks and before "(". CMake, Python and shell files change as whole words, for rows with a distinctive name only
(an underscore, a capital inside, or two colons).
"""
import re, subprocess, sys, collections
from pathlib import Path
top = Path(sys.argv[1]); tsv = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("renames.tsv")
rows = [l.rstrip("\n").split("\t") for l in tsv.read_text().splitlines() if not l.startswith("#")][1:]
tracked = subprocess.check_output(["git", "-C", top, "ls-files"], text=True).split("\n")[:-1]
SKIP = re.compile(r"/recorded/|_recorded\.json|results/|^docs/glossary|^CHANGELOG|^LICENSE|prose_baseline")
CPP = (".hpp", ".cpp", ".c", ".h", ".def")
def inscope(f, s): return s == "*" or f == s or f.startswith((s + "/", s + ".", s + "_test."))
moves = {}
for f in tracked:
    g = f
    for k, o, n, s, p in rows:
        if k == "file" and not o.endswith("/") and f == o: g = n
    if g == f:
        for k, o, n, s, p in rows:
            if k == "file" and o.endswith("/") and f.startswith(o): g = n + f[len(o):]
    if g != f: moves[f] = g
PART = re.compile(r'(?P<inc>^[ \t]*#[ \t]*include[^\n]*)|(?P<com>//[^\n]*)|(?P<str>R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*")|(?P<chr>\'(?:\\.|[^\'\\\n])\')', re.M)
def distinctive(n): return "_" in n.strip("_") or re.search(r"[a-z][A-Z]", n) or "::" in n
def table_for(f):
    words, literal = {}, []
    for k, o, n, s, p in rows:
        if k == "file" or not inscope(f, s): continue
        if "::" in o or "(" in o: literal.append((o, n))
        elif k == "cmake" and o.endswith("_"): literal.append((o, n))
        else: words.setdefault(o, n)
    return words, literal
def code(t, words, literal):
    for o, n in literal: t = re.sub(r"(?<![\w:])" + re.escape(o) + (r"\b" if o[-1].isalnum() else ""), n, t)
    # Names in namespaces of other libraries stay.
    return re.sub(r"(?<![\w:])(?:torch|at|c10|c10d|std|fmt|nlohmann)(?:::\w+)+|[A-Za-z_]\w*", lambda m: words.get(m[0], m[0]), t)
def comment(t, words, literal):
    t = re.sub(r"`[^`\n]*`", lambda m: m[0] if "\0" in m[0] else code(m[0], words, literal), t)
    return re.sub(r"\b([A-Za-z_]\w*)(?=\()", lambda m: words.get(m[1], m[1]), t)
bypath = sorted(((o, n) for o, n in moves.items()), key=lambda x: -len(x[0]))
stems = {re.sub(r"\.\w+$", "", o): re.sub(r"\.\w+$", "", n) for o, n in bypath}
def paths(t):
    return re.sub(r"(?<![\w/.-])(?:accelerate|launch|tests|examples|cmake|bench)/[\w./-]+", lambda m: moves.get(m[0]) or stems.get(m[0]) or m[0], t)
changed = 0
for f in tracked:
    if SKIP.search(f) or not (top / f).is_file(): continue
    try: t = (top / f).read_text()
    except UnicodeDecodeError: continue
    old = t; words, literal = table_for(f)
    if f.endswith(CPP):
        out, at = [], 0
        for m in PART.finditer(t):
            out.append(code(t[at:m.start()], words, literal)); at = m.end()
            if m["inc"]: out.append(paths(m[0]))
            elif m["com"]: out.append(paths(comment(m[0], words, literal)))
            elif m["str"]:
                out.append(paths(m[0]))
            else: out.append(m[0])
        t = "".join(out) + code(t[at:], words, literal)
    elif f.endswith(".md"):
        here = f.rsplit("/", 1)[0] + "/" if "/" in f else ""
        def cell(m):  # file names in the first column of a table, relative to the folder of the page
            def one(q):
                whole = here + q[1]
                new = moves.get(whole) or stems.get(whole)
                return f"`\0{new[len(here):]}\0`" if new and new.startswith(here) else q[0]
            return re.sub(r"`([\w/.]+)`", one, m[0])
        t = re.sub(r"^\|[^|\n]*\|", cell, t, flags=re.M)
        t = paths(comment(t, words, literal))
        t = t.replace("\0", "")
    elif f.endswith((".txt", ".cmake", ".py", ".sh", ".in", ".yml", ".json")) or f == "run":
        d = {o: n for o, n in words.items() if distinctive(o)}
        t = paths(t)
        if f.endswith("CMakeLists.txt"):
            here = f[: -len("CMakeLists.txt")]
            for o, n in bypath:
                if o.startswith(here) and n.startswith(here):
                    a, b = o[len(here):], n[len(here):]
                    t = re.sub(r"(?<![\w/.-])" + re.escape(a) + r"(?![\w])", b, t)
                    if a.endswith("_test.cpp"): t = re.sub(r"(?<![\w/.-])" + re.escape(a[:-4]) + r"(?![\w])", b[:-4], t)
        for o, n in literal: t = re.sub(r"(?<![\w:])" + re.escape(o), n, t)
        t = re.sub(r"[\w/.-]+\.(?:cpp|hpp|py|sh|md|def)\b|[A-Za-z_]\w*", lambda m: d.get(m[0], m[0]), t)
    if t != old: (top / f).write_text(t); changed += 1
for o, n in moves.items():
    (top / n).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "-C", top, "mv", o, n], check=True)
print(changed, "files changed,", len(moves), "files moved")
