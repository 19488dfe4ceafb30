# SPDX-License-Identifier: Apache-2.0
"""Writes image_folder.txt: the order of torchvision's ImageFolder, "label<TAB>path" for each sample: python record_image_folder.py
(the recorded file is from torchvision 0.26.0)."""
import pathlib
import tempfile

from torchvision.datasets import ImageFolder

names = ["Zebra/a.jpg", "ant/z.png", "ant/B.JPG", "ant/a.PnG", "ant/a.b.jpeg", "ant/b/1.png", "ant/b/10.png", "ant/b/2.png",
         "ant/b/x/1.png", "ant/b-c/1.png", "ant/b c/1.png", "ant/b.d/1.png", "ant/C/1.png", "ant-2/a.png", "ant 3/a.png",
         "\u00e4rger/a.png", "\u00e4rger/\u65e5.png", "10/a.png", "9/a.png"]
with tempfile.TemporaryDirectory() as folder:
    for name in names:
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    samples = ImageFolder(folder).samples
text = "".join(f"{label}\t{pathlib.Path(path).relative_to(folder)}\n" for path, label in samples)
(pathlib.Path(__file__).parent / "image_folder.txt").write_text(text)
