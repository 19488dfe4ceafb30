# SPDX-License-Identifier: Apache-2.0
"""Tests python_imports.py on texts of scripts."""
import ast
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_imports

MODES = python_imports.defined_names(ast.parse("PORT = 1\ndef by_hand(): pass\nif PORT:\n    class Slurm: pass\n"))


def problems(text):
    return list(python_imports.problems_in(ast.parse(text), {"launch_modes": [MODES]}))


class Imports(unittest.TestCase):
    def test_modules_and_names_that_exist(self):
        self.assertEqual(problems("import os, torch.nn\nimport launch_modes\nlaunch_modes.by_hand(launch_modes.PORT)\n"
                                  "from launch_modes import Slurm\nimport launch_modes as modes\nmodes.Slurm()\n"), [])

    def test_a_module_that_was_renamed(self):
        self.assertEqual(problems("import os\nimport ways\n"), ["2: there is no module ways"])
        self.assertEqual(problems("from ways import by_hand\n"), ["1: there is no module ways"])

    def test_a_name_that_was_renamed(self):
        self.assertEqual(problems("import launch_modes\nlaunch_modes.manual()\n"), ["2: launch_modes.py has no manual"])
        self.assertEqual(problems("from launch_modes import PORT, manual\n"), ["1: launch_modes.py has no manual"])


if __name__ == "__main__":
    unittest.main()
