# SPDX-License-Identifier: Apache-2.0
"""Writes the images in images/ and the pixels that Pillow decodes from each: python record_images.py (the recorded files
are from Pillow 13.0.0 and NumPy)."""
import pathlib

import numpy as np
from PIL import Image

folder = pathlib.Path(__file__).parent / "images"
folder.mkdir(exist_ok=True)
height, width = 17, 23
y, x = np.mgrid[0:height, 0:width]
noise = np.random.default_rng(0).integers(0, 40, (height, width, 3))
pixels = (np.stack([x * 9, y * 12, (x + y) * 5], axis=2) + noise).astype("u1")
rgb = Image.fromarray(pixels)
rgba = rgb.copy()
rgba.putalpha(Image.fromarray((x * 11).astype("u1")))

rgb.save(folder / "rgb.jpg")
rgb.save(folder / "rgb_444.jpg", quality=95, subsampling=0)
rgb.save(folder / "progressive.jpg", progressive=True)
rgb.convert("L").save(folder / "grey.jpg")
rgb.save(folder / "rgb.png")
rgba.save(folder / "rgba.png")
rgb.convert("L").save(folder / "grey.png")
rgba.convert("LA").save(folder / "grey_alpha.png")
rgb.convert("1").save(folder / "black_and_white.png")
rgb.quantize(16).save(folder / "palette.png")
rgb.quantize(16).save(folder / "palette_transparent.png", transparency=3)

# CMYK, as Adobe's programs write it (inverted, with a marker) and without the marker; YCCK has an additional colour transform.
rgb.convert("CMYK").save(folder / "cmyk.jpg")
inks = Image.fromarray(np.dstack([pixels, (x * 7 + y * 3).astype("u1")]), "CMYK")
inks.save(folder / "cmyk_black.jpg", quality=90)
cmyk = (folder / "cmyk_black.jpg").read_bytes()
marker = cmyk.index(b"\xff\xee\x00\x0eAdobe")
assert cmyk[marker + 15] == 0
(folder / "ycck.jpg").write_bytes(cmyk[: marker + 15] + b"\x02" + cmyk[marker + 16 :])
(folder / "cmyk_without_marker.jpg").write_bytes(cmyk[:marker] + cmyk[marker + 16 :])
inks.save(folder / "cmyk_progressive.jpg", progressive=True)
for path in sorted(folder.iterdir()):
    if path.suffix != ".npy":
        np.save(path.with_suffix(path.suffix + ".npy"), np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1).copy())
