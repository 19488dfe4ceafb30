#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reason why a machine cannot run tests on several hosts is one sentence."""
import os
import unittest
from unittest import mock

import hosts


class Need(unittest.TestCase):
    def test_without_root_the_error_explains_why_root_is_needed(self):
        with mock.patch.object(os, "geteuid", return_value=1000), self.assertRaises(hosts.Missing) as raised:
            hosts.need("ip")
        self.assertEqual(str(raised.exception), "tests on several hosts make network namespaces, which needs root")

    def test_missing_packages_are_named_once_each(self):
        with mock.patch.object(os, "geteuid", return_value=0), mock.patch.object(hosts.shutil, "which", return_value=None), \
                self.assertRaises(hosts.Missing) as raised:
            hosts.need("ip", "tc", "sshd", "srun")
        self.assertEqual(str(raised.exception),
                         "tests on several hosts need Debian packages: apt-get install iproute2 openssh-server slurm-client")

    def test_a_machine_with_all_packages_passes(self):
        with mock.patch.object(os, "geteuid", return_value=0), mock.patch.object(hosts.shutil, "which", return_value="/usr/sbin/ip"):
            hosts.need("ip", "tc")


if __name__ == "__main__":
    unittest.main()
