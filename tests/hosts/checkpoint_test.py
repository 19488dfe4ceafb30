#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of two hosts without a shared disk (each has its own /tmp): checkpoint_test.py [Gloo.test_own_disks | Mpi.test_own_disks]"""
import unittest

import launch_modes
from hosts import Hosts

PROGRAM = [launch_modes.BIN / "own_disks", "/tmp/own/project"]


class Checkpoints(unittest.TestCase):
    def check(self, way):
        with Hosts(2, **launch_modes.SERVICES.get(way, {})) as hosts:
            job = way(hosts, PROGRAM, OMP_NUM_THREADS=1)
            codes = job.codes(120)
            self.assertEqual(codes, [0] * len(codes), job.text())
            for host in hosts:
                self.assertEqual(host.left_behind(), [], host.name)


class Gloo(Checkpoints):
    def test_own_disks(self):
        self.check(launch_modes.launcher_by_hand)


class Mpi(Checkpoints):
    def test_own_disks(self):
        self.check(launch_modes.mpirun)


if __name__ == "__main__":
    unittest.main()
