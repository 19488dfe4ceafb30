# SPDX-License-Identifier: Apache-2.0
"""multi_node.py ssh|slurm BIN: the script of examples/by_feature starts base.cpp on two hosts, two ranks each."""
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
os.environ["HOSTS_BIN"] = sys.argv[2]
import launch_modes  # noqa: E402
from hosts import Hosts  # noqa: E402


def main():
    way, program = sys.argv[1], [Path(sys.argv[2]) / "by_feature", "base"]
    script = ROOT / "examples" / "by_feature" / f"multi_node_{way}.sh"
    os.chdir(ROOT)
    with Hosts(2, **{way: True}) as hosts:
        launcher = {"ACCELERATE_LAUNCH": launch_modes.LAUNCHER, "OMP_NUM_THREADS": 1}
        if way == "ssh":
            job = launch_modes.on_host1(hosts, [script, "host1:2,host2:2"], program, launcher)
        else:
            output = hosts.folder / "batch.out"
            words = ["sbatch", "--wait", "--nodes", 2, "--ntasks-per-node", 2, "-o", output, script]
            job = launch_modes.on_host1(hosts, words, program, launcher)
            job.outputs.append(output)
        codes = job.codes(300)
        assert codes == [0], job.text()
        # Each machine's first rank prints.
        accuracies = [line for line in job.text().splitlines() if "test accuracy 0." in line]
        assert len(accuracies) == 2, job.text()
        print(*accuracies, sep="\n")
        for host in hosts:
            assert host.left_behind() == [], host.name


main()
