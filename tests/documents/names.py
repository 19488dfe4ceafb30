#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""names.py <repository>: the table "Coming from Python" must have a row for each public name of the installed Hugging Face
Accelerate, which is parsed and not imported. A name with * matches several."""
import ast
import fnmatch
import importlib.util
import re
import sys
from pathlib import Path

# Modules with public classes and functions of their own; for packages, the imported names count.
MODULES = ("tracking", "logging", "data_loader", "optimizer", "scheduler", "local_sgd", "launchers", "memory_utils",
           "big_modeling", "hooks", "inference", "parallelism_config")
PACKAGES = ("__init__", "utils/__init__")
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)


def tree(top, module):
    return ast.parse((top / f"{module}.py").read_text(encoding="utf-8"))


def public(names):
    return {name for name in names if not name.startswith("_") and name != "*"}


def imported(top, package):
    return public(alias.asname or alias.name for node in ast.walk(tree(top, package)) if isinstance(node, ast.ImportFrom)
                  for alias in node.names)


def defined(nodes):
    return public(node.name for node in nodes if isinstance(node, DEFINITIONS))


def of_accelerator(top):
    """Methods, properties and constructor arguments."""
    (body,) = [node.body for node in tree(top, "accelerator").body if getattr(node, "name", "") == "Accelerator"]
    (made,) = [node for node in body if getattr(node, "name", "") == "__init__"]
    return defined(body) | {argument.arg for argument in made.args.args + made.args.kwonlyargs} - {"self"}


def rows(text):
    """Names in the first column."""
    part = re.split(r"^## ", text.split("## Coming from Python", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    columns = (line.split("|")[1] for line in part.splitlines() if line.startswith("| "))
    return {name for column in columns for code in re.findall(r"`([^`]+)`", column) for name in re.findall(r"[\w*]+", code)}


def main():
    package = importlib.util.find_spec("accelerate")
    if package is None:
        sys.exit("Hugging Face Accelerate is not installed here")
    top = Path(package.origin).parent
    names = of_accelerator(top).union(*(imported(top, name) for name in PACKAGES),
                                      *(defined(tree(top, module).body) for module in MODULES))
    assert len(names) > 400, f"only {len(names)} names were read in {top}"
    listed = rows((Path(sys.argv[1]) / "docs/migration/hugging_face.md").read_text(encoding="utf-8"))
    patterns = [name for name in listed if "*" in name and name.strip("*")]
    missing = [name for name in sorted(names - listed)
               if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if missing:
        sys.exit(f"docs/migration/hugging_face.md: no row for {', '.join(missing)}")
    idle = [pattern for pattern in patterns if not any(fnmatch.fnmatchcase(name, pattern) for name in names)]
    if idle:
        sys.exit(f"docs/migration/hugging_face.md: no name is meant by {', '.join(idle)}")
    print(f"all {len(names)} names of Hugging Face Accelerate have a row")


main()
