# SPDX-License-Identifier: Apache-2.0
"""Writes the .npy files beside it with NumPy: python record_npy.py (NumPy 2.4.6 wrote those that are here)."""
import pathlib
import shutil

import numpy as np

here = pathlib.Path(__file__).parent
six = np.arange(6).reshape(2, 3)
for name in ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]:
    array = six % 2 == 1 if name == "b1" else six - 3 if name[0] == "i" else six / 4 if name[0] == "f" else six
    if name[0] == "c":
        array = six - 1j * six
    if name[0] == "u":
        array = six.astype(name) + np.array(1 << (8 * int(name[1]) - 1), name)  # the upper half of the range, which is negative in a signed type
    np.save(here / f"{name}.npy", array.astype(name))

for major in (2, 3):
    with open(here / f"version{major}.npy", "wb") as file:
        np.lib.format.write_array(file, six.astype("f4"), version=(major, 0))
np.save(here / "column_in_fortran_order.npy", np.asfortranarray(np.arange(3.0).reshape(3, 1)))
np.save(here / "number.npy", np.float32(2.5))
np.save(here / "empty.npy", np.zeros((0, 3), "f4"))

# A file of Python 2 with shape "(2L,)", from NumPy's tests.
shutil.copy(pathlib.Path(np.__file__).parent / "lib" / "tests" / "data" / "win64python2.npy", here / "python2.npy")

np.save(here / "fortran.npy", np.asfortranarray(six.astype("f4")))
np.save(here / "big_endian.npy", six.astype(">f4"))
np.save(here / "objects.npy", np.array([1, "two"], dtype=object))
np.save(here / "text.npy", np.array(["one", "two"]))
np.save(here / "records.npy", np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]))
