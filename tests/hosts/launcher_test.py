#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that accelerate_launch starts on several hosts. If one host is lost, the launchers on the others name it, stop their
ranks, and leave nothing behind. launcher_test.py [Lost | Right | Wrong | Lost.test_by_hand ...]."""
import functools
import unittest

import launch_modes
from hosts import Hosts, until
from side_by_side import side_by_side

RANKS = ["sh", "-c", "echo up; exec sleep 1000"]
# 25 s until a connection to a lost host fails, 5 s of grace time, and a margin for a busy machine.
SECONDS_TO_END = 90
# If connections end immediately: the grace time plus a margin. On an idle machine all processes ended within 1.1 s.
SECONDS_OF_GRACE = 15


class Launcher(unittest.TestCase):
    def running(self, hosts, way):
        job = way(hosts, RANKS)
        try:
            until(lambda: job.text().count("up\n") == hosts.count, 60, "the ranks")
        except TimeoutError as error:
            self.fail(f"{error}\n{job.text()}")
        return job

    def check_nothing_left(self, host, seconds=SECONDS_TO_END):
        """Processes except sshd, which waits for TCP's timeouts on a disconnected host."""
        left = lambda: [each for each in host.left_behind(0.5) if not each.startswith("sshd: ")]  # noqa: E731
        try:
            until(lambda: not left(), seconds, "the end", pause=0.5)
        except TimeoutError:
            self.fail(f"left on {host.name}: {left()}")


class Lost(Launcher):
    def lose(self, way, count, victim, fault, expected):
        with Hosts(count, **launch_modes.SERVICES.get(way, {})) as hosts:
            job = self.running(hosts, way)
            getattr(hosts[victim], fault)()
            codes = [code for rank, code in enumerate(job.codes(SECONDS_TO_END)) if rank != victim or len(job.processes) == 1]
            self.assertNotIn(None, codes, job.text())
            self.assertNotIn(0, codes, job.text())
            for each in expected if isinstance(expected, tuple) else (expected,):
                self.assertIn(each, job.text())
            for host in hosts:
                if host is not hosts[victim] or fault == "cut":
                    self.check_nothing_left(host)

    def check(self, way, *rows):
        side_by_side(self, {f"{way.__name__}, host{victim + 1} of {count}: {fault}": functools.partial(self.lose, way, count, victim, fault, expected)
                            for count, victim, fault, expected in rows})

    def test_by_hand(self):
        gone = "is gone: its launcher was killed, or its host or the network is down; the ranks of this machine were stopped"
        self.check(launch_modes.launcher_by_hand, (2, 1, "power_off", f"machine 1 (host2) {gone}"), (3, 2, "cut", f"machine 2 (host3) {gone}"),
                   (2, 0, "power_off", f"machine 0 (host1) {gone}"))

    def test_over_ssh(self):
        self.check(launch_modes.launcher_ssh, (2, 1, "power_off", "machine 1 (host2) is gone"), (2, 1, "cut", "machine 1 (host2) is gone"),
                   (3, 2, "cut", "machine 2 (host3) is gone"))

    def test_the_connection(self):
        """ssh is killed while the hosts run."""
        with Hosts(2, ssh=True) as hosts:
            job = self.running(hosts, launch_modes.launcher_ssh)
            hosts[0].run("kill -9 $(ps -eo pid,args | awk '$2 == \"ssh\" && /host2/ {print $1}')")
            self.assertNotIn(job.codes(SECONDS_OF_GRACE)[0], (None, 0), job.text())
            for host in hosts:
                self.check_nothing_left(host, SECONDS_OF_GRACE)

    def test_mpirun(self):
        """mpirun is killed while the hosts run."""
        with Hosts(2, ssh=True) as hosts:
            job = self.running(hosts, launch_modes.launcher_mpirun)
            hosts[0].run("kill -9 $(ps -eo pid,comm | awk '$2 == \"mpirun\" {print $1}')")
            self.assertEqual(job.codes(SECONDS_OF_GRACE), [137], job.text())
            self.assertIn("accelerate_launch: mpirun (host1, pid ", job.text())
            for host in hosts:
                self.check_nothing_left(host, SECONDS_OF_GRACE)

    def test_with_mpirun(self):
        """A host under mpirun is lost; with its own defaults mpirun detects it after 480 s."""
        expected = ("on node host2", "accelerate_launch: mpirun (host1, pid ")
        self.check(launch_modes.launcher_mpirun, (2, 1, "power_off", expected), (2, 1, "cut", expected))


class Right(Launcher):
    def test_restarts(self):
        """A rank on the second host is killed once, and the ranks of all hosts restart."""
        script = 'echo start $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && kill -9 $$; ' \
                 '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 1000; exit 0'
        with Hosts(2, ssh=True) as hosts:
            job = launch_modes.launcher_ssh(hosts, ["--max_restarts", 2, "sh", "-c", script])
            self.assertEqual(job.codes(SECONDS_TO_END), [0], job.text())
            self.assertEqual(job.text().count("start 1\n"), 2, job.text())
            self.assertRegex(job.text(), r"accelerate_launch: machine [01] \(host[12], .*\) ended with exit code 137.*\n"
                                         r"accelerate_launch: restart 1 of 2 in 0.5 s\n")
            for host in hosts:
                self.check_nothing_left(host)

    def test_resume_code_under_slurm(self):
        """Ranks under srun save and request a restart, on both hosts; another exit code is a failure."""
        script = 'echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit $0; sleep $SLURM_PROCID; exit 75'
        for last, code in (("0", 0), ("7", 7)):
            with self.subTest(last), Hosts(2, slurm=True) as hosts:
                job = launch_modes.launcher_salloc(hosts, ["--resume_code", 75, "sh", "-c", script, last])
                self.assertEqual(job.codes(SECONDS_TO_END), [code], job.text())
                self.assertEqual(job.text().count("start 0\n"), 2, job.text())
                self.assertGreaterEqual(job.text().count("start 1\n"), 1, job.text())
                self.assertIn("accelerate_launch: the ranks requested a restart (exit code 75) in 0.5 s\n", job.text())
                for host in hosts:
                    self.check_nothing_left(host)

    def test_first_failed_rank_under_other_runners(self):
        """The report names only the rank that failed first, with its host and last lines, for any runner."""
        script = 'rank=${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}; echo up $rank; [ $rank = 1 ] || exec sleep 1000; sleep 1; echo loss nan; exit 7'
        for way in (launch_modes.launcher_salloc, launch_modes.launcher_sbatch_pmix, launch_modes.launcher_mpirun):
            with self.subTest(way.__name__), Hosts(2, **launch_modes.SERVICES[way]) as hosts:
                job = way(hosts, ["sh", "-c", script])
                # Not 143, the code of the ranks that srun stopped. srun exits with the highest code.
                self.assertEqual(job.codes(SECONDS_TO_END)[0], 7, job.text())
                self.assertRegex(job.text(), r"accelerate_launch: worker 1 \(host2, pid \d+, .*\) ended with exit code 7. "
                                             r"Its last lines follow.\nup 1\nloss nan\n")
                self.assertNotIn("accelerate_launch: worker 0 (", job.text())
                for host in hosts:
                    self.check_nothing_left(host)

    def test_scancel_counts_as_one_request(self):
        """Slurm signals all processes of a step (launcher, guardian and rank); the ranks must have time to save."""
        script = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
        for way, ranks in ((launch_modes.launcher_per_node, 2), (launch_modes.launcher_per_task, 4)):
            with self.subTest(way.__name__), Hosts(2, slurm=True) as hosts:
                job = way(hosts, ["sh", "-c", script])
                until(lambda: job.text().count("up\n") == ranks, 60, "the ranks")
                hosts[0].run("scancel --signal=TERM 1")
                self.assertEqual(job.codes(SECONDS_TO_END), [0], job.text())
                self.assertEqual(job.text().count("saved\n"), ranks, job.text())
                for host in hosts:
                    self.check_nothing_left(host)

    def test_a_hang_over_ssh(self):
        """The report names the missing rank of the whole job, and both hosts log the state of their ranks."""
        with Hosts(2, ssh=True) as hosts:
            job = launch_modes.launcher_ssh(hosts, ["--hang_timeout", 3, "--grace_time", 1, launch_modes.BIN.resolve() / "fault_ranks", "sleeps"])
            self.assertEqual(job.codes(SECONDS_TO_END), [124], job.text())
            self.assertIn("accelerate_launch: no rank has moved for 3 s; worker 1 is missing, worker 0 waits in all_reduce, operation 2 of ", job.text())
            for rank in range(2):
                self.assertIn(f"accelerate_launch: stacks of worker {rank}:\n", job.text())
            for host in hosts:
                self.check_nothing_left(host)

    def test_special_characters(self):
        """Arguments and values reach ranks on other hosts unchanged, through sshd and a login shell."""
        words = ["a b", "it's", '"', "$(touch /tmp/never)", "`id`", "a\nb\n\nc", "", "\\", "-n", "*", "a=b", "!x", ";", "ä"]
        for way in (launch_modes.launcher_ssh, launch_modes.launcher_mpirun):
            with self.subTest(way.__name__), Hosts(2, ssh=True) as hosts:
                folder = hosts.folder / "a b'$(touch never)\n"
                folder.mkdir()
                rank = '${RANK:-$OMPI_COMM_WORLD_RANK}'
                script = f'printf "<%s>" "$@" "$HOSTILE" > "$0{rank}"'
                job = way(hosts, ["sh", "-c", script, folder / "rank", *words], HOSTILE="".join(words))
                self.assertEqual(job.codes(SECONDS_TO_END), [0], job.text())
                expected = "".join(f"<{word}>" for word in [*words, "".join(words)])
                for number in range(2):
                    self.assertEqual((folder / f"rank{number}").read_text(), expected)
                for host in hosts:
                    self.check_nothing_left(host)

    def test_accelerate_test_on_two_hosts(self):
        with Hosts(2, ssh=True) as hosts:
            job = launch_modes.on_host1(hosts, [launch_modes.LAUNCHER.parent / "accelerate_test", "--backend", "gloo", "--hosts", "host1:1,host2:1"], [], {})
            self.assertEqual(job.codes(240), [0], job.text())
            self.assertIn("2 ranks, backend gloo, device cpu\n", job.text())
            self.assertIn(" checks passed\n", job.text())

    def test_labels_of_ranks_under_mpirun(self):
        with Hosts(2, ssh=True) as hosts:
            job = launch_modes.launcher_mpirun(hosts, ["sh", "-c", "echo up"], options=["--label"])
            self.assertEqual(job.codes(SECONDS_TO_END), [0], job.text())
            self.assertEqual(sorted(line for line in job.text().splitlines() if line.endswith("up")), ["[rank 0] up", "[rank 1] up"])


class Wrong(Launcher):
    def by_hand(self, hosts, *launchers):
        """launchers   the program and its options for each host"""
        job = launch_modes.Job(hosts)
        for rank, (host, words) in enumerate(zip(hosts, launchers)):
            job.start(host, [words[0], "--backend", "gloo", "--num_machines", 2, "--machine_rank", rank, "--main_process_ip", "host1",
                             *words[1:], *RANKS])
        self.assertEqual(job.codes(SECONDS_TO_END), [1, 1], job.text())
        for host in hosts:
            self.check_nothing_left(host)
        return [path.read_text() for path in job.outputs]

    def test_different_hosts(self):
        with Hosts(2) as hosts:
            numbers = self.by_hand(hosts, [launch_modes.LAUNCHER, "--num_processes", 2], [launch_modes.LAUNCHER, "--num_processes", 4])
            for message in numbers:
                self.assertEqual(message, "accelerate_launch: machine 1 (host2) has num_processes 4, machine 0 (host1) has 2; they must be the same\n")
            version = hosts[0].run(f"{launch_modes.LAUNCHER} --version").split()[1]
            other = hosts.folder / "accelerate_launch"
            newer = version[:-1] + str((int(version[-1]) + 1) % 10)
            other.write_bytes(launch_modes.LAUNCHER.read_bytes().replace(version.encode() + b"\0", newer.encode() + b"\0"))
            other.chmod(0o755)
            versions = self.by_hand(hosts, [launch_modes.LAUNCHER, "--num_processes", 2], [other, "--num_processes", 2])
            for message in versions:
                self.assertEqual(message, f"accelerate_launch: machine 1 (host2) has accelerate_launch {newer}, machine 0 (host1) has {version}; "
                                       "they must be the same\n")

    def test_hosts(self):
        with Hosts(2, ssh=True) as hosts:
            start = lambda *words: launch_modes.on_host1(hosts, [launch_modes.LAUNCHER, *words], RANKS, {})  # noqa: E731
            nobody = start("--hosts", "host1,10.77.0.99", "--main_process_ip", "host1", "--timeout", 3)
            self.assertNotIn(nobody.codes(SECONDS_TO_END)[0], (None, 0), nobody.text())
            self.assertRegex(nobody.text(), r"accelerate_launch: ssh to 10\.77\.0\.99 ended after [34]\.\d s: the host was unreachable "
                                            r"or refused the login, the connection was lost, or a rank ended with 255\n")
            loopback = start("--num_machines", 2, "--main_process_ip", "host2")
            self.assertEqual(loopback.codes(SECONDS_TO_END), [1])
            self.assertIn("accelerate_launch: main_process_ip host2 is not an address of this machine, which is machine_rank 0; set the "
                          "address of this one, or give it another machine_rank\n", loopback.text())
            away = start("--num_machines", 2, "--machine_rank", 1, "--main_process_ip", "10.77.0.99", "--timeout", 3)
            self.assertEqual(away.codes(SECONDS_TO_END), [1])
            self.assertRegex(away.text(), r"accelerate_launch: machine 0 at 10\.77\.0\.99:29500 does not answer within 3 s: .+; "
                                          r"start accelerate_launch there, or check the network\n")
            for host in hosts:
                self.check_nothing_left(host)


if __name__ == "__main__":
    unittest.main(verbosity=2)
