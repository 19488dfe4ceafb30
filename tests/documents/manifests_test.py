#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""manifests_test.py <folder of the programs> [Manifests | Runs]: the manifests of docs/how_to/kubernetes.md. Parses them, and runs their
commands here with the variables that Kubeflow's operators set. It needs PyYAML, but no Kubernetes.
"""
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import yaml

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs/how_to/kubernetes.md"
IMAGE = "/accelerate-cpp/"  # working folder of the image: WORKDIR in Dockerfile
PROGRAMS = Path()
SECONDS = 600


def manifests():
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {manifest["metadata"]["name"]: manifest for manifest in map(yaml.safe_load, blocks)}


def container(replica):
    (only,) = replica["template"]["spec"]["containers"]
    return only


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pods(job):
    """Containers of a PyTorchJob with the operator's variables, on one host: the master is 127.0.0.1."""
    replicas = job["spec"]["pytorchReplicaSpecs"]
    names = [role for role in ("Master", "Worker") for _ in range(replicas[role]["replicas"])]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(names)),
              "PYTHONUNBUFFERED": "1"}
    return [(container(replicas[role]), shared | {"RANK": str(rank)}) for rank, role in enumerate(names)]


def here(word):
    """A word of a command with the programs of this build in place of the image's."""
    return word.replace(f"{IMAGE}build/bin", str(PROGRAMS))


def environment_of(pod, operator):
    around = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return around | operator | {each["name"]: each["value"] for each in pod.get("env", [])} | {"ACCELERATE_USE_CPU": "1"}


def run_job(job, without=()):
    """(exit code, output) of each pod."""
    started = []
    for pod, operator in pods(job):
        environment = environment_of(pod, operator)
        for name in without:
            environment.pop(name)
        started.append(subprocess.Popen([here(word) for word in pod["command"]], cwd=TOP, env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        outputs = [pod.communicate(timeout=SECONDS)[0] for pod in started]
    finally:
        for pod in started:
            pod.kill()
    return [(pod.returncode, output) for pod, output in zip(started, outputs)]


class Manifests(unittest.TestCase):
    def test_kinds_and_versions(self):
        self.assertEqual({name: (manifest["apiVersion"], manifest["kind"]) for name, manifest in manifests().items()},
                         {"digits": ("kubeflow.org/v1", "PyTorchJob"), "digits-gpu": ("kubeflow.org/v1", "PyTorchJob"),
                          "digits-mpi": ("kubeflow.org/v2beta1", "MPIJob")})

    def test_the_container_of_a_pytorchjob_has_the_name_that_the_operator_requires(self):
        for name in ("digits", "digits-gpu"):
            for pod, _ in pods(manifests()[name]):
                self.assertEqual(pod["name"], "pytorch")

    def test_values_of_variables_are_texts(self):
        for manifest in manifests().values():
            for replica in (manifest["spec"].get("pytorchReplicaSpecs") or manifest["spec"]["mpiReplicaSpecs"]).values():
                for variable in container(replica).get("env", []):
                    self.assertIsInstance(variable["value"], str)

    def test_programs_are_in_the_working_folder_of_the_image(self):
        self.assertIn(f"WORKDIR {IMAGE.rstrip('/')}\n", (TOP / "Dockerfile").read_text(encoding="utf-8"))
        self.assertIn(f"{IMAGE}build/bin/mnist", PAGE.read_text(encoding="utf-8"))


class Runs(unittest.TestCase):
    def test_a_pytorchjob_with_one_rank_per_pod_trains(self):
        master, worker = run_job(manifests()["digits"])
        self.assertEqual((master[0], worker[0]), (0, 0), master[1] + worker[1])
        self.assertRegex(master[1], r"(?m)^epoch 1 step 111/111 [^\n]*\ntest accuracy 0\.9")

    def test_a_pod_without_the_local_variables_fails_with_the_text_of_the_page(self):
        text = "RANK=0 and WORLD_SIZE=2 from torchrun without LOCAL_RANK and LOCAL_WORLD_SIZE"
        self.assertIn(text, PAGE.read_text(encoding="utf-8"))
        master, _ = run_job(manifests()["digits"], without=("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        self.assertEqual(master[0], 1)
        self.assertIn(text, master[1])

    def test_a_pytorchjob_with_a_launcher_per_pod_trains_on_the_ranks_of_all_pods(self):
        master, worker = run_job(manifests()["digits-gpu"])
        self.assertEqual((master[0], worker[0]), (0, 0), master[1] + worker[1])
        self.assertRegex(master[1], r"(?m)^epoch 1 step 56/56 [^\n]*\ntest accuracy 0\.9")  # 222 batches on 4 ranks

    def test_the_launcher_of_an_mpijob_passes_the_operators_hosts_to_mpirun(self):
        job = manifests()["digits-mpi"]
        slots, workers = job["spec"]["slotsPerWorker"], job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        hosts = [f"digits-mpi-worker-{number}.digits-mpi.default.svc" for number in range(workers)]
        launcher = container(job["spec"]["mpiReplicaSpecs"]["Launcher"])
        with tempfile.TemporaryDirectory() as folder:
            hostfile = Path(folder) / "hostfile"
            hostfile.write_text("".join(f"{host} slots={slots}\n" for host in hosts), encoding="utf-8")
            command = [here(word).replace("/etc/mpi/hostfile", str(hostfile)) for word in launcher["command"]]
            command.insert(1, "--dry_run")
            result = subprocess.run(command, env=environment_of(launcher, {}), text=True, capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f" mpirun -n {slots * workers} -H {','.join(f'{host}:{slots}' for host in hosts)} ", result.stdout)
        self.assertIn(f" MASTER_ADDR={hosts[0]} ", result.stdout)


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    unittest.main()
