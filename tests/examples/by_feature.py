# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/by_feature.

by_feature.py differences FOLDER            each differs from its base only in lines about its feature
by_feature.py run NAME FOLDER COMMAND...    checks the output of COMMAND (by_feature NAME, on any number of ranks)
"""
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ANY = r"accuracy 0\.\d\d\d"
# name: maximum number of different lines (removed and added); pattern that each differing place must match.
FEATURES = {
    "accumulation": (3, r"accumulat"),
    "accumulation_by_tokens": (9, r"accumulat|kUnknown|tokens"),
    "character_gpt": (28, r"[Gg]pt|text|tokens|continued|file"),
    "checkpoint": (11, r"argv|folder|epochs|save_state"),
    "comm_hook": (4, r"comm_hook"),
    "cross_validation": (16, r"fold|data::|accelerate::data|held_out|train, test"),
    "early_stopping": (7, r"stop"),
    "embedded": (16, r"accelerat"),
    "find_batch_size": (13, r"batch_size|check_memory"),
    "gradient_clipping": (1, r"clip_grad_norm_"),
    "inference": (7, r"split_between_processes"),
    "local_sgd": (3, r"local"),
    "metrics": (15, r"losses|met\b"),
    "mixed_precision": (2, r"mixed_precision"),
    "profiler": (5, r"profiler"),
    "several_models": (26, r"maker|judge|made|brightness|double|Each"),
    "torchscript": (18, r"script|argv|jit|answers"),
    "tracking": (9, r"argv|logging_dir|trackers|logged|end_training"),
    "launch_workers": (6, r"argv|workers|rank_main|^};$"),
}
BASES = {"base", "embed_in_program"}


def code(path):
    """The lines from the first #include on, without indentation."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("#include"))
    return [line for line in lines[first:] if line]


def difference(base, other, most, feature):
    """Returns the error of the difference, or ""."""
    count = 0
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, base, other, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        lines = base[i1:i2] + other[j1:j2]
        count += len(lines)
        if not any(re.search(feature, line) for line in lines):
            return "differs where it does not speak of its feature:\n" + "\n".join(lines)
    return f"differs in {count} lines, {most} are allowed" if count > most else "" if count else "is the base itself"


def check_differences(folder):
    there = {path.stem for path in folder.glob("*.cpp")} - BASES - {"programs"}
    assert there == set(FEATURES), f"the folder and the table differ by {there ^ set(FEATURES)}"
    wrong = []
    for name, (most, feature) in FEATURES.items():
        base = code(folder / ("embed_in_program.cpp" if name == "embedded" else "base.cpp"))
        other = code(folder / f"{name}.cpp")
        message = difference(base, other, most, feature)
        wrong += [f"{name} {message}"] if message else []
        # An unrelated change must be detected.
        for i, line in enumerate(other):
            if line in base and len(line) > 8:
                spoilt = other[:i] + ["torch::manual_seed(7);"] + other[i:]
                assert difference(base, spoilt, most, feature), f"{name}: a line before {line!r} goes unnoticed"
    assert not wrong, "\n".join(wrong)
    print(f"{len(FEATURES)} programs differ from their base in their feature alone")


class Run:
    def __init__(self, folder, command):
        self.folder, self.command = folder, command

    def ended(self, code, *arguments):
        """returns the finished run, which ended with that code"""
        ran = subprocess.run([*self.command, *map(str, arguments)], cwd=self.folder.parents[1], timeout=240, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert ran.returncode == code, f"ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"
        return ran

    def __call__(self, *arguments):
        ran = self.ended(0, *arguments)
        print(ran.stdout, end="")
        return ran.stdout

    def learned(self, *arguments, least=0.75):
        """Checks the test accuracy and returns the output before it."""
        before, found, accuracy = self(*arguments).rpartition("test accuracy ")
        assert found and float(accuracy) > least, f"{before}{found}{accuracy}"
        return before


def checkpoint(run, scratch):
    whole = run(scratch / "whole", 3)
    run(scratch / "parts", 2)
    resumed = run(scratch / "parts", 3)
    assert resumed == "2 epochs of the checkpoint are done\n" + whole, f"{resumed!r} after {whole!r}"


def tracking(run, scratch):
    run.learned(scratch)
    lines = (scratch / "by_feature" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) in (97, 49), f"{len(lines)} lines: the configuration and a loss for each step"
    assert list((scratch / "by_feature").glob("events.out.tfevents.*"))


def torchscript(run, scratch):
    assert "torchscript FILE; examples/by_feature/export_net.py FILE writes one\n" in (message := run.ended(2).stderr), message
    subprocess.run([sys.executable, run.folder / "export_net.py", scratch / "net.pt"], check=True, timeout=120)
    run.learned(scratch / "net.pt")


def several_models(run, _):
    brightness = float(re.fullmatch(r"made digits differ by (-?\d\.\d\d\d) in brightness\n", run())[1])
    assert abs(brightness) < 0.3, brightness


def character_gpt(run, _):
    sample = run()
    words = set("the cat a dog old man my sister sees follows likes forgets moon red ball river every word".split())
    written = re.findall(r"[a-z]+", sample)[2:-1]
    known = sum(word in words for word in written)
    assert sample.startswith("the cat ") and known >= 0.6 * len(written), sample


def embedded(run, _):
    errors = [float(line.removeprefix("mean error ")) for line in run().splitlines()]
    assert len(errors) == 1 and errors[0] < 0.1, errors


def launch_workers(run, _):
    for ranks in (1, 2):
        run.learned(ranks)


def inference(run, _):
    pairs = re.fullmatch(r"(predicted \d, is \d\n){15}", before := run.learned()) and re.findall(r"\d", before)
    assert pairs, before
    right = sum(predicted == label for predicted, label in zip(pairs[::2], pairs[1::2]))
    assert right >= 11, f"{right} of 15 are right: the predictions are not in the order of the labels\n{before}"


def prints(pattern, least=0.75):
    def check(run, _):
        before = run.learned(least=least)
        assert re.search(pattern, before), before
    return check


CHECKS = {
    "character_gpt": character_gpt, "checkpoint": checkpoint, "embedded": embedded, "embed_in_program": embedded,
    "several_models": several_models, "torchscript": torchscript, "tracking": tracking, "launch_workers": launch_workers,
    "cross_validation": prints(r"^(fold \d accuracy 0\.\d\d\d\n){4}$"),
    "early_stopping": prints(r"^stopped early\n$", least=0.6),
    "inference": inference,
    "metrics": prints(r"^(epoch \d mean loss \d\.\d\d\d\n){3}(recall of \d [01]\.\d\d\d\n){10}metrics of 510 images\n$"),
    "profiler": prints(r"^3 steps in .*\n(.*\n)*.*aten::"),
}


def find_batch_size(run, _):
    assert re.fullmatch(r"test accuracy 0\.\d\d\d\nbatch size 92\n", run())


CHECKS["find_batch_size"] = find_batch_size


def main():
    if sys.argv[1] == "differences":
        return check_differences(Path(sys.argv[2]))
    name, folder, command = sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    run = Run(folder, command)
    with tempfile.TemporaryDirectory() as scratch:
        CHECKS.get(name, lambda run, _: run.learned())(run, Path(scratch))


main()
