#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shell_blocks_test.py <folder of the programs> [Table | Runs]: runs the shell blocks of the tutorial, as a reader would,
and checks their output. Each page has a temporary working folder with the programs that the pages before it built, and
with the files that it shows. A block without an entry in BLOCKS is a failure, and so is an entry without a block.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
TUTORIAL = TOP / "docs/tutorial"
PROGRAMS = Path()
SECONDS = 400  # limit of one block
ACCURATE = r"(?m)^test accuracy 0\.9\d+$"

# The pages in the order of a reader.
PAGES = ["first_loop.md", "two_ranks.md", "resume.md", "from_pytorch.md"]
DEMO_PROGRAMS = ["accelerate_launch", "mnist"]
BUILD_ALL = "./run build -DACCELERATE_BUILD_TESTS=OFF"

# {(page, number of the block): expressions that the output contains}
BLOCKS = {
    ("first_loop.md", 1): [ACCURATE],
    ("first_loop.md", 2): [r"(?m)^epoch 1 step 222/222 ", ACCURATE],
    ("first_loop.md", 3): [r"-- Installing: .*/AccelerateConfig\.cmake"],
    ("first_loop.md", 4): [r"(?m)^the last loss is [01]\.\d\d$"],
    ("two_ranks.md", 1): [r"(?m)^epoch 1 step 111/111 ", ACCURATE],
    ("two_ranks.md", 2): [r"(?m)^\[rank 0\] epoch 1 step 111/111 ", r"(?m)^\[rank 0\] test accuracy 0\.9\d+$"],
    ("two_ranks.md", 3): [r"(?m)^all \d+ checks passed"],
    ("resume.md", 1): [r"(?m)^continues after step [4-9]\d, from .*/checkpoint_[1-4]$", r"(?m)^trained for 222 steps$"],
    ("resume.md", 2): [r"(?m)^trained for 111 steps$"],
}


def shell_blocks(page):
    """Texts of the blocks in ```sh, and the numbers of lines that begin a block without a language."""
    blocks, unnamed, language, lines = [], [], None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, lines = line[3:].strip(), []
            unnamed += [number] if language == "" else []
        else:
            blocks += ["\n".join(lines)] if language in ("sh", "bash") else []
            language = None
    return blocks, unnamed


def shown_files(page):
    """{path: text} of the blocks that follow a paragraph with the path at its end: "`my_program/train.cpp`:"."""
    pattern = r"`(\S+)`:\n\n```(?:cpp|cmake)\n(.*?)^```"
    return dict(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def builds_all(page):
    return any(BUILD_ALL in block for block in shell_blocks(TUTORIAL / page)[0])


def demo():
    """The command that ./run demo executes after it has built, for one epoch."""
    text = (TOP / "run").read_text(encoding="utf-8")
    found = re.search(r'"\$top/build/bin/accelerate_launch" (.*) "\$top/build/bin/mnist"', text)
    assert found, "./run has no demo that starts build/bin/mnist"
    return f"build/bin/accelerate_launch {found[1]} build/bin/mnist --epochs 1"


def runnable(block, folder):
    """The block without downloads and builds, and with a temporary folder of its own."""
    block = re.sub(r"(?m)^git clone <this repository> (\S+) && cd \1$", "", block)
    block = re.sub(r"(?m)^\./run demo$", demo(), block)
    block = block.replace(BUILD_ALL, f"ln -sf {PROGRAMS}/* build/bin/")
    block = block.replace("cmake --install build ", f"cmake --install {PROGRAMS.parent} ")
    return block.replace("/tmp/accelerate", str(folder / "tutorial"))


def run(block, folder):
    # Variables of a launcher or a scheduler around the tests would start other ranks.
    environment = {name: value for name, value in os.environ.items()
                   if not re.match(r"(ACCELERATE|OMPI|PMIX|PMI|SLURM|MASTER|LOCAL|TORCHELASTIC)_|(RANK|WORLD_SIZE)$", name)}
    return subprocess.run(["bash", "-e", "-c", runnable(block, folder)], cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)


class Table(unittest.TestCase):
    def test_every_block_has_an_entry_and_every_entry_a_block(self):
        found = set()
        for page in sorted(TUTORIAL.glob("*.md")):
            blocks, unnamed = shell_blocks(page)
            self.assertEqual(unnamed, [], f"{page.name}: blocks without a language begin in these lines")
            found.update((page.name, number) for number in range(1, len(blocks) + 1))
        self.assertEqual(found, set(BLOCKS))

    def test_only_downloads_and_builds_are_replaced(self):
        folder = Path("/folder")
        self.assertEqual(runnable("git clone <this repository> a && cd a\n./run demo", folder), "\n" + demo())
        self.assertEqual(runnable("rm -rf /tmp/accelerate_x\n./run build", folder), "rm -rf /folder/tutorial_x\n./run build")

    def test_a_page_has_the_programs_that_the_pages_before_it_built(self):
        self.assertEqual(sorted(PAGES), sorted(page.name for page in TUTORIAL.glob("*.md")))
        self.assertEqual([page for page in PAGES if builds_all(page)], ["first_loop.md"])

    def test_the_files_of_the_first_page(self):
        files = shown_files(TUTORIAL / "first_loop.md")
        self.assertEqual(sorted(files), ["my_program/CMakeLists.txt", "my_program/train.cpp"])
        self.assertIn("int main() {\n", files["my_program/train.cpp"])


class Runs(unittest.TestCase):
    """One test per page, see below."""


def add_page(page, numbers):
    def test(self):
        blocks, _ = shell_blocks(TUTORIAL / page)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "build/bin").mkdir(parents=True)
            is_built = any(builds_all(before) for before in PAGES[:PAGES.index(page)])
            for program in os.listdir(PROGRAMS) if is_built else DEMO_PROGRAMS:
                (folder / "build/bin" / program).symlink_to(PROGRAMS / program)
            (folder / "examples").symlink_to(TOP / "examples")
            for path, text in shown_files(TUTORIAL / page).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
            for number in numbers:
                with self.subTest(block=number):
                    result = run(blocks[number - 1], folder)
                    self.assertEqual(result.returncode, 0, result.stdout)
                    for expected in BLOCKS[page, number]:
                        self.assertRegex(result.stdout, expected)
    setattr(Runs, f"test_{page.removesuffix('.md')}", test)


for name in sorted({page for page, _ in BLOCKS}):
    add_page(name, sorted(number for page, number in BLOCKS if page == name))


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    unittest.main()
