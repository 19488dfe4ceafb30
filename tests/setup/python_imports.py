#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_imports.py FOLDER: every Python script of the repository imports modules that exist, and uses names that modules of
the repository define. Scripts for several hosts or GPUs run rarely, so a renamed file or function would be noticed late."""
import ast
import os
import subprocess
import sys

PACKAGES = {"PIL", "accelerate", "google", "lightning", "mkdocs", "numpy", "pip", "safetensors", "setuptools", "spdl", "sympy",
            "tensorboard", "torch", "torchvision", "transformers", "yaml"}


def is_script(path):
    if path.endswith(".py"):
        return True
    if os.path.splitext(path)[1] or os.path.islink(path):
        return False
    with open(path, "rb") as file:
        return b"python3" in file.readline()


def scripts(folder):
    try:
        listed = subprocess.run(["git", "-C", folder, "ls-files", "-z"], capture_output=True, text=True).stdout
    except FileNotFoundError:  # no git
        listed = ""
    names = listed.split("\0")[:-1] if listed else [
        os.path.relpath(os.path.join(root, name), folder) for root, _, files in os.walk(folder) for name in files
        if not os.path.relpath(root, folder).startswith(("build", ".git"))]
    return [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path) and is_script(path)]


def parsed(path):
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read(), path)


def defined_names(tree):
    """Names at the top level, also those in if, try, with and for."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names


def problems_in(tree, modules):
    """modules: name -> list of the names that each file of that name defines."""
    local = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name.split(".")[0], alias.asname or alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            wanted = [(node.module.split(".")[0], None)]
        else:
            continue
        for module, name in wanted:
            if module in modules:
                if name:
                    local[name] = modules[module]
                else:
                    missing = [alias.name for alias in node.names if not any(alias.name in names for names in modules[module])]
                    yield from (f"{node.lineno}: {module}.py has no {each}" for each in missing if each != "*")
            elif module not in sys.stdlib_module_names and module not in PACKAGES:
                yield f"{node.lineno}: there is no module {module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in local:
            if not node.attr.startswith("__") and not any(node.attr in names for names in local[node.value.id]):
                yield f"{node.lineno}: {node.value.id}.py has no {node.attr}"


def problems(folder):
    trees = {path: parsed(path) for path in scripts(folder)}
    modules = {}
    for path, tree in trees.items():
        if path.endswith(".py"):
            modules.setdefault(os.path.basename(path)[:-3], []).append(defined_names(tree))
    return [f"{os.path.relpath(path, folder)}:{problem}" for path, tree in trees.items() for problem in problems_in(tree, modules)]


if __name__ == "__main__":
    found = problems(sys.argv[1])
    print("\n".join(found) or "every import leads to a module")
    sys.exit(bool(found))
