# SPDX-License-Identifier: Apache-2.0
"""examples/fashion_resnet prints its devices and accuracy; batch and learning rate scale with the devices; two devices of
one process and two ranks give the same result.

fashion.py FASHION_RESNET DATA LAUNCH...
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

IMAGES = 128  # of --quick
EPOCHS = 1


def run(count, devices, *command):
    with tempfile.TemporaryDirectory() as folder:
        svg = pathlib.Path(folder) / "curve.svg"
        options = ["--quick", "--num_epochs", str(EPOCHS), "--batch_size", "16", "--svg", str(svg)]
        out = subprocess.run([*command, *options], check=True, timeout=500, stdout=subprocess.PIPE, text=True).stdout
        points = [element for element in xml.parse(svg).iter() if element.tag.endswith("circle")]
    print(out, end="")
    first, *lines = out.splitlines()
    assert first == f"batch {count * 16}, learning rate {count * 0.1:g}", first
    curve = [float(re.fullmatch(rf"test accuracy [▁-█]{{{epoch}}} (\d\.\d\d\d) \(epoch {epoch} of {EPOCHS}\)", line)[1])
             for epoch, line in enumerate(lines[:EPOCHS], 1)]
    assert len(points) == EPOCHS, "the SVG has a point for each epoch"
    last = re.fullmatch(r"test accuracy (\d\.\d\d), \d+\.\d s/epoch, on \[(.*)\]", lines[EPOCHS])
    assert last and last[2] == devices and abs(float(last[1]) - curve[-1]) <= 0.0051, lines[EPOCHS]
    return curve


def refused(reason, *command):
    done = subprocess.run(command, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0 and reason in done.stdout, (done.returncode, done.stdout)


def main():
    program, data, launch = sys.argv[1], ["--data-dir", sys.argv[2]], sys.argv[3:]
    refused("--lr: nan is not a finite number above 0", program, "--lr", "nan")
    refused("/nowhere/curve.svg cannot be written: No such file", program, *data, "--quick", "--svg", "/nowhere/curve.svg")
    run(1, "cpu", program, *data)
    threads = run(2, "cpu, cpu", program, *data, "--num_devices", "2")
    ranks = run(2, "cpu, cpu", *launch, program, *data)
    # The parts of a batch are the same, and so is what BatchNorm sees; the order of sums is not.
    assert abs(threads[0] - ranks[0]) <= 4.5 / IMAGES, (threads, ranks)


main()
