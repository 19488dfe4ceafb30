# SPDX-License-Identifier: Apache-2.0
"""Tests cmake/setup/prose.py on repositories with a few files."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROSE = Path(__file__).resolve().parents[2] / "cmake" / "setup" / "prose.py"
PLAIN = "// Returns the mean over all ranks.\n" * 40
HITS = {
    "who": "// The rank who has not joined is named.\n",
    "of": "// Of one rank nothing is padded.\n",
    "what": "// Returns what it was given.\n",
    "verbs": "// The launcher tells the ranks to end.\n",
    "codes": "/// Unset: the value from the config file.\n",
}


class Repository:
    def __init__(self, folder):
        self.top = Path(folder)
        self.git("init", "-q")
        self.git("config", "user.email", "test@example.org")
        self.git("config", "user.name", "test")

    def git(self, *arguments):
        subprocess.run(["git", "-C", str(self.top), *arguments], check=True, capture_output=True)

    def write(self, name, text):
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "-q", "-m", "A commit")

    def check(self, *options):
        done = subprocess.run([sys.executable, str(PROSE), str(self.top), *options], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr


class Prose(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repository = Repository(folder.name)

    def test_plain_comments_and_documents_pass(self):
        self.repository.write("accelerate/mean.hpp", PLAIN)
        self.repository.write("README.md", "The launcher starts the ranks.\n")
        self.assertEqual(self.repository.check()[0], 0)

    def test_each_pattern_fails_with_its_folder_rate_limit_and_advice(self):
        for pattern, line in HITS.items():
            with self.subTest(pattern):
                self.repository.write("accelerate/mean.hpp", PLAIN[: -len(PLAIN) // 40] + line)
                code, _, error = self.repository.check()
                self.assertEqual(code, 1)
                self.assertIn(f"prose: accelerate (code): pattern '{pattern}' has 25.0 hits per 1,000 lines, at most 5 are "
                              "allowed; ", error)
                self.assertEqual(error.count("prose: "), 1)

    def test_markdown_counts_outside_code_only(self):
        self.repository.write("docs/page.md", "A page.\n```\nwho comes\n```\nThe option `whose` is set.\n")
        self.assertEqual(self.repository.check()[0], 0)
        self.repository.write("docs/page.md", "A page.\nThe rank that stands still is named.\n")
        code, _, error = self.repository.check()
        self.assertEqual(code, 1)
        self.assertIn("docs (documents): pattern 'verbs' has 500.0 hits", error)

    def test_scripts_count_by_their_comments_and_docstrings(self):
        plain = "# Prints the ranks.\n" * 40
        self.repository.write("tools/print.sh", plain + 'echo "who comes"\n')
        self.repository.write("tools/print.py", plain + 'text = "who comes"\n')
        self.repository.write("tools/CMakeLists.txt", plain)
        self.assertEqual(self.repository.check()[0], 0)
        for name, text in {"print.sh": "ranks=2   # those who have joined\n", "print.py": 'def f():\n    """Says\n    who came."""\n',
                           "CMakeLists.txt": "# The part whose library is missing.\n", "start": "#!/bin/sh\n# Who joins.\n# whose\n"}.items():
            with self.subTest(name):
                self.repository.write(f"scripts/{name}", text)
                code, _, error = self.repository.check()
                self.assertEqual(code, 1)
                self.assertIn("scripts (scripts): pattern 'who' has", error)
                (self.repository.top / "scripts" / name).unlink()

    def test_strings_of_several_words_count_as_messages(self):
        self.repository.write("launch/text.cpp", 'fail("rank {} has \\"come\\" too late");\n' + PLAIN)
        code, _, error = self.repository.check()
        self.assertEqual(code, 1)
        self.assertIn("launch (messages): pattern 'verbs' has 1000.0 hits", error)

    def test_identifiers_and_strings_of_one_word_do_not_count(self):
        self.repository.write("launch/text.cpp", '#include "who comes.hpp"\nauto whose = find("who", who, "came");\n' + PLAIN)
        self.assertEqual(self.repository.check()[0], 0)

    def test_a_rate_at_its_baseline_passes_and_a_higher_rate_fails(self):
        self.repository.write("accelerate/mean.hpp", PLAIN + HITS["who"])
        self.assertEqual(self.repository.check()[0], 1)
        self.assertEqual(self.repository.check("--lower-baseline")[0], 0)
        self.assertEqual(self.repository.check()[0], 0)
        self.repository.write("accelerate/mean.hpp", PLAIN + HITS["who"] * 2)
        code, _, error = self.repository.check()
        self.assertEqual(code, 1)
        self.assertIn("at most 24.4 are allowed", error)

    def test_the_baseline_is_lowered_and_never_raised(self):
        baseline = self.repository.top / "cmake" / "setup" / "prose_baseline.json"
        self.repository.write("cmake/setup/prose_baseline.json", '{"accelerate": {"code": {"who": 30.0, "of": 40.0}}}')
        self.repository.write("accelerate/mean.hpp", PLAIN + HITS["who"] + HITS["verbs"])
        self.repository.check("--lower-baseline")
        self.assertEqual(json.loads(baseline.read_text()), {"accelerate": {"code": {"who": 23.9}}})
        self.repository.write("accelerate/mean.hpp", PLAIN + HITS["who"] * 3)
        self.repository.check("--lower-baseline")
        self.assertEqual(json.loads(baseline.read_text()), {"accelerate": {"code": {"who": 23.9}}})

    def test_an_empty_baseline_stays_empty(self):
        self.repository.write("cmake/setup/prose_baseline.json", "{}")
        self.repository.write("accelerate/mean.hpp", PLAIN + HITS["who"])
        self.repository.check("--lower-baseline")
        self.assertEqual(self.repository.check()[0], 1)

    def test_added_lines_are_listed_and_old_ones_are_not(self):
        self.repository.write("accelerate/mean.hpp", HITS["who"] * 3 + PLAIN)
        self.repository.commit()
        self.repository.write("accelerate/mean.hpp", HITS["who"] * 3 + PLAIN + HITS["verbs"] * 2)
        code, out, error = self.repository.check("--added", "HEAD")
        self.assertEqual(code, 1)
        self.assertEqual(out.splitlines(), ["accelerate/mean.hpp:44: verbs: The launcher tells the ranks to end.",
                                            "accelerate/mean.hpp:45: verbs: The launcher tells the ranks to end."])
        self.assertIn("2 added lines have 2 hits of pattern 'verbs', at most 1 are allowed", error)
        self.repository.write("accelerate/mean.hpp", HITS["who"] * 3 + PLAIN * 2)
        self.assertEqual(self.repository.check("--added", "HEAD")[:2], (0, ""))

    def test_files_that_git_ignores_do_not_count(self):
        self.repository.write(".gitignore", "/build/\n")
        self.repository.write("build/made.hpp", HITS["who"])
        self.assertEqual(self.repository.check()[0], 0)

    def test_the_worst_files_and_the_hits_of_a_pattern_are_shown(self):
        self.repository.write("accelerate/a.hpp", HITS["of"] * 2 + PLAIN)
        self.repository.write("launch/b.hpp", HITS["of"] + PLAIN)
        _, out, _ = self.repository.check("--worst", "1", "--show", "of")
        self.assertEqual(out.count(": of: Of one rank nothing is padded."), 3)
        self.assertEqual(out.splitlines()[-1].split(), ["2", "accelerate/a.hpp"])


if __name__ == "__main__":
    unittest.main()
