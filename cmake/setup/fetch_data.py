#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Downloads a full data set: fetch_data.py mnist|fashion-mnist [folder]. ACCELERATE_DATA_URL sets the mirror."""
import hashlib
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

NAMES = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]

# mirror, md5 of the four files
SETS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ["f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
         "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"],
    ),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ["8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
         "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"],
    ),
}


class Refused(Exception):
    """An error with a text for the user."""


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def fetch_file(url, path, expected):
    """Downloads url to path, unless a file with the expected checksum exists there. path is never an incomplete file."""
    if path.exists() and md5(path) == expected:
        return
    part = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as out:
            while block := answer.read(1 << 20):
                out.write(block)
        found = md5(part)
        if found != expected:
            raise Refused(f"{url} has md5 {found}, expected {expected}; another mirror: ACCELERATE_DATA_URL=<folder of the files>")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def fetch(name, folder, sets=None):
    mirror, sums = (sets or SETS)[name]
    mirror = os.environ.get("ACCELERATE_DATA_URL", mirror).rstrip("/") + "/"
    print(f"run: downloads {name} from {mirror} into {folder}", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for file, expected in zip(NAMES, sums):
        try:
            fetch_file(mirror + file, folder / file, expected)
        except (urllib.error.URLError, OSError) as why:
            raise Refused(f"could not download {mirror}{file} ({getattr(why, 'reason', None) or why}); "
                          f"without network put {', '.join(NAMES)} into {folder}") from why


def main(arguments):
    if not 1 <= len(arguments) <= 2 or arguments[0] not in SETS:
        raise Refused(f"data takes one of {', '.join(SETS)}, then a folder if you like; got '{' '.join(arguments)}'")
    fetch(arguments[0], Path(arguments[1] if len(arguments) == 2 else f"data/{arguments[0]}"))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as why:
        sys.exit(f"run: {why}")
