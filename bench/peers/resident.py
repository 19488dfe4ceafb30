# SPDX-License-Identifier: Apache-2.0
"""bench/resident.hpp in Python: resident memory of this process on Linux with glibc."""
import ctypes

libc = ctypes.CDLL(None)


def status_bytes(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024


def resident_bytes():
    libc.malloc_trim(0)
    return status_bytes("VmRSS:")


def resident_bytes_after(work):
    work()
    return resident_bytes()


def peak_bytes_of(work):
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    work()
    return status_bytes("VmHWM:")
