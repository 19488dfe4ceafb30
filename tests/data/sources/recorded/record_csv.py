# SPDX-License-Identifier: Apache-2.0
"""Writes python.csv with Python's csv module, the same with CR line ends as python_cr.csv, and their numbers as NumPy reads
them: python record_csv.py."""
import csv
import pathlib

import numpy as np

here = pathlib.Path(__file__).parent
random = np.random.default_rng(0)
numbers = random.standard_normal((40, 3)) * 10.0 ** random.integers(-300, 300, (40, 3))
notes = ["plain", "a, b", 'say "c"', "two\nlines", "two\r\nlines", '"', "", " ", '",\n"']
# Before Python 3.13 the writer does not quote a field with LF if lines end with CR, so all fields are quoted there.
for name, line_end, quoting in (("python.csv", "\r\n", csv.QUOTE_MINIMAL), ("python_cr.csv", "\r", csv.QUOTE_ALL)):
    with open(here / name, "w", newline="") as file:
        writer = csv.writer(file, lineterminator=line_end, quoting=quoting)
        writer.writerow(["x", "note", "the \"y\", quoted", "z"])
        for i, (x, y, z) in enumerate(numbers):
            writer.writerow([repr(float(x)), notes[i % len(notes)], f"{y:.17e}", f"{z:+.20g}"])
np.save(here / "python.csv.npy", numbers)
