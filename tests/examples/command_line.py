# SPDX-License-Identifier: Apache-2.0
"""command_line.py EXAMPLES BIN: every program of examples/ answers --help and names a wrong option before it trains."""
import subprocess
import sys
from pathlib import Path

examples, programs = Path(sys.argv[1]), Path(sys.argv[2])
# Sources of programs with another name.
NAMES = {"plain_libtorch/mnist": "plain_mnist"}
FEATURES = sorted(path.stem for path in (examples / "by_feature").glob("*.cpp") if path.stem != "programs")
# Options of each program besides --help. Every program has an entry, so that a new one is not forgotten.
LISTED = {
    "big_model": ["FOLDER", "--memory", "--blocks"], "checkpoint": ["--project-dir", "--resume"], "cifar10": ["FOLDER"], "custom_dataset": [],
    "fashion_resnet": ["--num_devices", "--lr"], "mnist": ["--data-dir", "--lr"], "pipeline": [],
    "model_parallel": ["--devices", "--micro_batches"], "tensor_parallel": [],
    "plain_mnist": ["--data-dir", "--lr"],
    "text_blocks": ["FILE"], "tracking": ["FOLDER"], "trainer": ["--learning_rate"],
}
LISTED_BY_FEATURE = {"checkpoint": ["FOLDER", "EPOCHS"], "torchscript": ["FILE"], "tracking": ["FOLDER"],
                     "launch_workers": ["RANKS"]}
UNEXPECTED = "The following argument was not expected: --no_such_option\nRun with --help for more information.\n"


def ended(command):
    ran = subprocess.run([str(programs / command[0]), *command[1:]], timeout=60, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    return ran.returncode, ran.stdout, ran.stderr


def check_one(command, listed):
    code, out, err = ended([*command, "--help"])
    assert code == 0 and not err, (command, code, err)
    assert f"Usage: {' '.join(command) if command[0] == 'by_feature' else programs / command[0]}" in out, out
    for word in ["-h,--help", *listed]:
        assert word in out, f"{command} does not list {word}:\n{out}"
    assert ended([*command, "--no_such_option"]) == (109, "", UNEXPECTED), (command, ended([*command, "--no_such_option"]))


sources = {str(path.relative_to(examples).with_suffix("")) for path in examples.glob("**/*.cpp")}
expected = {NAMES.get(name, name) for name in sources if not name.startswith("by_feature/")}
assert expected == set(LISTED), f"examples/ and the table differ by {expected ^ set(LISTED)}"
for program, listed in LISTED.items():
    check_one([program], listed)
for feature in FEATURES:
    check_one(["by_feature", feature], LISTED_BY_FEATURE.get(feature, []))

code, out, err = ended(["by_feature", "--help"])
assert code == 0 and not err and all(f"  {feature}\n" in out for feature in FEATURES), out
code, out, err = ended(["by_feature", "accumulate"])
assert code == 2 and err.startswith("by_feature has no program 'accumulate'. NAME is one of\n  accumulation\n"), (code, err)
code, out, err = ended(["by_feature", "checkpoint", "folder", "many"])
assert code == 105 and err == "EPOCHS: Value many not in range 1 to 1000000\nRun with --help for more information.\n", (code, err)
print(f"{len(LISTED) + len(FEATURES)} programs answer --help and name a wrong option")
