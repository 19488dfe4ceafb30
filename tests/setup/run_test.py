# SPDX-License-Identifier: Apache-2.0
"""Tests ./run and cmake/setup/ on simulated machines without tools: folders with a fake apt-get, sudo and python3."""
import functools
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cmake" / "setup"))
import fetch_data  # noqa: E402

TOOLS = "bash dirname readlink cat sort tr sed tail env mkdir mktemp rm ln mv basename flock cmp cp grep sleep touch awk nproc chrt".split()

# A fake python3 that creates "environments" and "installs" into them. It records its actions in $RECORD.
PYTHON = """#!/bin/bash
echo "python3 $*" >> "$RECORD"
case "$1 $2" in
  "-c import ensurepip") exit ${ENSUREPIP:-0} ;;
  "-m venv") mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; cp "$0" "$3/bin/python" ;;
  "-m pip")
    site=${0%/bin/python}/lib/python3.11/site-packages
    mkdir -p "$site/torch" "$site/torch-2.11.0.dist-info"
    touch "$site/torch/half"
    sleep ${PIP_TAKES:-0}
    touch "$site/torch-2.11.0.dist-info/RECORD"
    exit ${PIP_ENDS:-0} ;;
esac
"""


class Machine:
    """A separate PATH with standard tools and the programs of a test."""

    def __init__(self, folder):
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.record = folder / "record"
        self.record.touch()
        self.environment = {"PATH": str(self.bin), "HOME": str(folder), "RECORD": str(self.record), "TMPDIR": str(folder)}
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.add("id", "echo 1000")

    def add(self, name, body):
        path = self.bin / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def add_real(self, *names):
        for name in names:
            (self.bin / name).symlink_to(shutil.which(name))

    def command(self, *words):
        return dict(args=["bash", *words], env=self.environment, text=True, cwd=TOP)

    def run(self, *words):
        return subprocess.run(**self.command(*words), capture_output=True, timeout=60)

    def script(self, text):
        sources = "set -euo pipefail; source cmake/setup/log.sh; source cmake/setup/packages.sh; source cmake/setup/libtorch.sh; "
        return ["-c", sources + text]

    def recorded(self):
        return self.record.read_text().splitlines()


class OnAMachine(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="accelerate-run-test-"))
        self.machine = Machine(self.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)


class Commands(OnAMachine):
    def test_alone_it_prints_one_line_for_each_command(self):
        result = self.machine.run("run")
        self.assertEqual(result.returncode, 0)
        self.assertEqual([line.split()[1] for line in result.stdout.splitlines()],
                         ["demo", "test", "build", "bench", "docs", "data", "format", "lint"])

    def test_an_unknown_command_is_named_and_ends_with_1(self):
        result = self.machine.run("run", "dance")
        self.assertEqual((result.returncode, result.stderr.splitlines()[-1]), (1, "run: there is no command 'dance'"))


    def test_options_that_it_does_not_know_are_named_before_anything_is_installed(self):
        for words, error in ((["format", "--chek"], "format takes --check or nothing, not '--chek'"),
                             (["bench", "speed"], "there is no bench 'speed'; bench/README.md lists them")):
            result = self.machine.run("run", *words)
            self.assertEqual((result.returncode, result.stderr), (1, f"run: {error}\n"))

    def test_an_unknown_preset_is_refused_with_the_known_ones(self):
        result = self.machine.run("-c", "source cmake/setup/log.sh; source cmake/setup/build.sh; build_all quick")
        self.assertEqual((result.returncode, result.stderr),
                         (1, "run: there is no preset 'quick'; there are release, debug, asan and tsan\n"))

    def test_ninja_is_used_if_it_is_installed_also_during_the_run(self):
        self.machine.add("cmake", 'echo "$*" >> "$RECORD"')
        self.machine.add("not-yet-ninja", "")
        self.machine.run("-c", "source cmake/setup/build.sh; configure release; "
                               f"mv {self.machine.bin}/not-yet-ninja {self.machine.bin}/ninja; configure release")
        self.assertEqual(self.machine.recorded(), ["--preset release -G Unix Makefiles", "--preset release"])

    def test_it_works_through_a_symbolic_link_and_without_home(self):
        del self.machine.environment["HOME"]
        (self.folder / "link").symlink_to(TOP / "run")
        self.assertEqual(self.machine.run(str(self.folder / "link")).returncode, 0)


class Packages(OnAMachine):
    needs = 'set_up_packages "g++ cmake python3"'

    def test_without_root_the_apt_get_line_is_printed_and_the_code_is_1(self):
        self.machine.add("apt-get", 'echo "apt-get $*" >> "$RECORD"')
        result = self.machine.run(*self.machine.script(self.needs))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "run: these Debian packages are missing; as root: "
                                        "apt-get install -y --no-install-recommends cmake g++ python3\n")
        self.assertEqual(self.machine.recorded(), [])

    def test_only_missing_packages_are_requested(self):
        self.machine.add("apt-get", "")
        self.machine.add("cmake", "")
        self.machine.add("python3", "")
        result = self.machine.run(*self.machine.script(self.needs))
        self.assertTrue(result.stderr.endswith("--no-install-recommends g++\n"), result.stderr)

    def test_root_installs_and_prints_the_packages_in_one_line(self):
        self.machine.add("id", "echo 0")
        self.machine.add("apt-get", 'echo "apt-get $*" >> "$RECORD"')
        result = self.machine.run(*self.machine.script(self.needs))
        self.assertEqual((result.returncode, result.stderr),
                         (0, "run: installs Debian packages into the system: cmake g++ python3\n"))
        self.assertEqual(self.machine.recorded()[0], "apt-get update -qq")
        self.assertIn("apt-get install -y --no-install-recommends cmake g++ python3", self.machine.recorded()[1])

    def test_a_user_with_sudo_installs_with_it(self):
        self.machine.add("sudo", 'echo "sudo $*" >> "$RECORD"; exec "$@"')
        self.machine.add("apt-get", 'echo "apt-get $*" >> "$RECORD"')
        self.assertEqual(self.machine.run(*self.machine.script(self.needs)).returncode, 0)
        self.assertEqual(self.machine.recorded()[:2], ["sudo apt-get update -qq", "apt-get update -qq"])

    def test_the_apt_get_line_is_printed_if_sudo_refuses(self):
        self.machine.add("sudo", "echo 'not in the sudoers file' >&2; exit 1")
        self.machine.add("apt-get", "")
        result = self.machine.run(*self.machine.script(self.needs))
        self.assertEqual(result.returncode, 1)
        self.assertIn("not in the sudoers file", result.stderr)
        self.assertIn("as root: apt-get install -y --no-install-recommends cmake g++ python3\n", result.stderr)

    def test_on_another_system_the_missing_packages_are_named(self):
        result = self.machine.run(*self.machine.script('set_up_packages "g++ cmake libgloo-dev zlib1g-dev"'))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.splitlines(), [
            "run: not Debian or Ubuntu; continues without these packages of Debian: libgloo-dev (gloo/rendezvous/store.h)",
            "run: not Debian or Ubuntu; install the equivalents of these packages of Debian: "
            "cmake (cmake), g++ (c++), zlib1g-dev (zlib.h)"])

    def test_another_system_without_optional_packages_continues(self):
        self.machine.add_real("c++")
        result = self.machine.run(*self.machine.script('set_up_packages "g++ ccache libopenmpi-dev"; echo on'))
        self.assertEqual((result.returncode, result.stdout), (0, "on\n"))


class IdleServices(OnAMachine):
    needs = 'policy=$HOME/policy; install_without_services "procps openssh-server munge"'

    def setUp(self):
        super().setUp()
        self.machine.add("ps", "")
        self.machine.add("apt-get", 'echo "apt-get $* $([ -x $HOME/policy ] && $HOME/policy; echo policy $?)" >> "$RECORD"')
        self.machine.add_real("chmod")
        for command in ("update-rc.d", "deb-systemd-helper"):
            self.machine.add(command, f'echo "{command} $*" >> "$RECORD"; exit 1')

    def test_services_are_neither_started_nor_enabled(self):
        self.machine.add("id", "echo 0")
        self.assertEqual(self.machine.run(*self.machine.script(self.needs)).returncode, 0)
        installs = [line for line in self.machine.recorded() if "install" in line]
        self.assertEqual(len(installs), 1)
        self.assertIn("munge openssh-server", installs[0])
        self.assertTrue(installs[0].endswith("policy 101"), installs[0])
        disabled = [line for name in ("ssh", "munge") for line in (
            f"update-rc.d {name} disable", f"deb-systemd-helper disable {name}.service", f"deb-systemd-helper disable {name}.socket")]
        self.assertEqual(self.machine.recorded()[-6:], disabled)
        self.assertFalse((self.folder / "policy").exists())

    def test_an_existing_policy_is_kept(self):
        self.machine.add("id", "echo 0")
        (self.folder / "policy").write_text("theirs")
        self.machine.run(*self.machine.script(self.needs))
        self.assertEqual((self.folder / "policy").read_text(), "theirs")

    def test_without_root_nothing_is_installed(self):
        self.assertEqual(self.machine.run(*self.machine.script(self.needs)).returncode, 0)
        self.assertEqual(self.machine.recorded(), [])


class Environment(OnAMachine):
    def setUp(self):
        super().setUp()
        self.machine.add("python3", PYTHON)
        self.cache = self.folder / ".cache/accelerate"
        self.venv = self.cache / "venv-2.11.0"

    def make(self, **environment):
        self.machine.environment.update(environment)
        return self.machine.run(*self.machine.script("make_venv"))

    def assert_whole(self):
        self.assertTrue((self.venv / "lib/python3.11/site-packages/torch-2.11.0.dist-info/RECORD").exists())
        self.assertEqual(len(list(self.cache.glob(".made-*"))), 1)

    def test_the_installed_packages_and_the_folder_are_printed(self):
        result = self.make()
        self.assertEqual((result.returncode, result.stderr),
                         (0, f"run: installs LibTorch (torch 2.11.0 and what it needs, 4.7 GB) from PyPI into {self.venv}\n"))
        self.assert_whole()
        self.assertTrue(any("torch==2.11.0" in line for line in self.machine.recorded()))

    def test_a_complete_environment_does_not_change(self):
        self.make()
        before = self.machine.recorded()
        self.assertEqual(self.make().stderr, "")
        self.assertEqual(self.machine.recorded(), before)

    def test_the_next_run_creates_the_environment_after_an_interrupted_run(self):
        self.machine.environment["PIP_TAKES"] = "30"
        process = subprocess.Popen(**self.machine.command(*self.machine.script("make_venv")), start_new_session=True)
        while not any("torch==" in line for line in self.machine.recorded()):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.assertFalse(self.venv.exists())
        self.assertEqual(self.make(PIP_TAKES="0").returncode, 0)
        self.assert_whole()

    def test_an_incomplete_environment_is_created_again(self):
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "lib/python3.11/site-packages/torch").mkdir(parents=True)
        self.make()
        self.assert_whole()

    def test_a_failed_download_prints_the_cause_and_the_remedy(self):
        result = self.make(PIP_ENDS="1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("a LibTorch of your own: Torch_DIR=<libtorch>/share/cmake/Torch ./run", result.stderr)
        self.assertFalse(self.venv.exists())

    def test_the_second_of_two_concurrent_runs_waits_and_uses_the_result(self):
        self.machine.environment["PIP_TAKES"] = "1"
        command = self.machine.command(*self.machine.script("make_venv"))
        first = subprocess.Popen(**command, stderr=subprocess.PIPE)
        while not any("torch==" in line for line in self.machine.recorded()):
            time.sleep(0.01)
        second = self.machine.run(*self.machine.script("make_venv"))
        _, output = first.communicate(timeout=60)
        self.assertIn("installs LibTorch", output)
        self.assertEqual(second.stderr, f"run: waits for another ./run that prepares {self.cache}\n")
        self.assertEqual(sum("torch==" in line for line in self.machine.recorded()), 1)
        self.assert_whole()

    def test_a_torch_dir_without_libtorch_fails_before_any_download(self):
        self.machine.add_real("cmake")
        self.machine.environment["Torch_DIR"] = str(self.folder / "nothing")
        result = self.machine.run(*self.machine.script('set_up ""'))
        self.assertEqual(result.returncode, 1)
        self.assertIn("there is no LibTorch three folders above it", " ".join(result.stderr.split()))
        self.assertFalse(self.cache.exists())


class Full(OnAMachine):
    parts = ["every test", "address and undefined sanitizers", "thread sanitizer", "without MPI, JPEG and PNG", "without gloo and CUDA",
             "LibTorch 2.15.0"]
    stand_ins = "source cmake/setup/test.sh; build_all() { :; }; build_tsan() { :; }; build_libtorch_2_15() { :; }; build_in() { [[ $1 != build-no-gloo-cuda ]]; }; "

    def run_full(self, text):
        return self.machine.run(*self.machine.script(self.stand_ins + text))

    def test_a_failed_part_is_named_and_the_others_still_run(self):
        result = self.run_full("test_in() { :; }; test_tsan() { false; echo goes on; }; test_full")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr.splitlines(), [f"run: full: {part}" for part in self.parts] +
                         ["run: full: failed: thread sanitizer, without gloo and CUDA"])

    def test_all_parts_passed_is_printed(self):
        result = self.run_full("test_in() { :; }; test_tsan() { :; }; build_in() { :; }; test_full")
        self.assertEqual((result.returncode, result.stderr.splitlines()[-1]), (0, "run: full: all parts passed"))

    def test_parts_can_be_selected_and_unknown_ones_are_refused(self):
        result = self.run_full('test_in() { :; }; test_tsan() { :; }; check_parts tsan asan; test_full tsan asan; check_parts msan')
        self.assertEqual((result.returncode, result.stderr.splitlines()), (1, [
            "run: full: thread sanitizer", "run: full: address and undefined sanitizers", "run: full: passed: tsan asan",
            "run: full has no part 'msan'; its parts are release asan tsan without_mpi_jpeg_png without_gloo_cuda libtorch_2_15"]))

    def test_the_next_parts_are_compiled_during_a_test_and_stopped_at_their_turn(self):
        (self.folder / "built").touch()
        result = self.run_full(
            f'built={self.folder}/built; '
            'build_in() { echo "$1" >> $built; if [[ $1 == build-no-mpi* && $(grep -c mpi $built) == 1 ]]; then sleep 600; fi; }; '
            'build_all() { build_in build-$1; }; build_tsan() { build_in build-tsan; }; '
            'test_in() { until grep -q mpi $built; do sleep 0.01; done; }; test_tsan() { :; }; test_full')
        self.assertEqual((result.returncode, result.stderr.splitlines()[-1]), (0, "run: full: all parts passed"))
        self.assertEqual((self.folder / "built").read_text().split()[:5],
                         ["build-asan", "build-tsan", "build-no-mpi-jpeg-png", "build-asan", "build-tsan"])

    def test_an_interrupted_full_stops_its_compilations(self):
        lock = self.folder / "lock"
        text = (f'build_all() {{ exec 9>{lock}; flock 9; sleep 600; }}; test_in() {{ until [ -e {lock} ]; do sleep 0.01; done; sleep 0.1; '
                'kill -INT $$ $BASHPID; sleep 600; }; test_full')
        self.assertNotEqual(self.run_full(text).returncode, 0)
        subprocess.run(["flock", "--timeout", "5", lock, "true"], check=True)  # the lock is free, so all processes have ended


class Server(http.server.ThreadingHTTPServer):
    """A mirror on 127.0.0.1."""

    def __init__(self, folder):
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class Data(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="accelerate-data-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.mirror = self.folder / "mirror"
        self.mirror.mkdir()
        for name in fetch_data.NAMES:
            (self.mirror / name).write_bytes(name.encode() * 1000)
        self.sums = [hashlib.md5((self.mirror / name).read_bytes()).hexdigest() for name in fetch_data.NAMES]
        self.server = Server(self.mirror)
        self.addCleanup(self.server.close)
        self.here = self.folder / "here"

    def fetch(self, sums=None):
        return fetch_data.fetch("mnist", self.here, {"mnist": (self.server.url, sums or self.sums)})

    def run_data(self, url, *arguments, cwd=None):
        return subprocess.run([TOP / "run", "data", *arguments], env={**os.environ, "ACCELERATE_DATA_URL": url, "no_proxy": "*"},
                              capture_output=True, text=True, timeout=120, cwd=cwd)

    def test_only_the_four_files_are_downloaded(self):
        self.fetch()
        self.assertEqual(sorted(os.listdir(self.here)), sorted(fetch_data.NAMES))
        for name in fetch_data.NAMES:
            self.assertEqual((self.here / name).read_bytes(), (self.mirror / name).read_bytes())

    def test_only_missing_and_broken_files_are_downloaded(self):
        self.fetch()
        first, second = (self.here / name for name in fetch_data.NAMES[:2])
        untouched = first.stat().st_mtime_ns
        second.write_bytes(b"broken")
        self.fetch()
        self.assertEqual(first.stat().st_mtime_ns, untouched)
        self.assertEqual(second.read_bytes(), (self.mirror / second.name).read_bytes())

    def test_a_wrong_checksum_is_refused_with_both_sums_and_without_a_file(self):
        result = self.run_data(self.server.url, "mnist", str(self.here))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.splitlines()[-1],
                         f"run: {self.server.url}/train-images-idx3-ubyte.gz has md5 {self.sums[0]}, expected "
                         "f68b3c2dcbeaaa9fbdd348bbdeb94873; another mirror: ACCELERATE_DATA_URL=<folder of the files>")
        self.assertEqual(os.listdir(self.here), [])

    def test_without_network_the_files_and_their_folder_are_printed(self):
        self.server.close()
        result = self.run_data(self.server.url, "fashion-mnist", str(self.here))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.splitlines()[-1],
                         f"run: could not download {self.server.url}/train-images-idx3-ubyte.gz ([Errno 111] Connection refused); "
                         "without network put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
                         f"t10k-labels-idx1-ubyte.gz into {self.here}")
        self.assertEqual(os.listdir(self.here), [])

    def test_a_folder_is_relative_to_the_working_directory(self):
        result = self.run_data(self.server.url, "mnist", "here", cwd=self.folder)
        self.assertEqual(result.returncode, 1)   # the checksums are not those of MNIST
        self.assertTrue(self.here.is_dir(), result.stderr)
        self.assertFalse((TOP / "here").exists())

    def test_a_file_that_is_missing_on_the_mirror_is_named(self):
        (self.mirror / fetch_data.NAMES[2]).unlink()
        with self.assertRaisesRegex(fetch_data.Refused, r"t10k-images-idx3-ubyte.gz \(File not found\)"):
            self.fetch()

    def test_an_unknown_dataset_is_refused_with_the_known_ones(self):
        result = self.run_data(self.server.url, "cifar")
        self.assertEqual((result.returncode, result.stderr),
                         (1, "run: data takes one of mnist, fashion-mnist, then a folder if you like; got 'cifar'\n"))


if __name__ == "__main__":
    unittest.main()
