# SPDX-License-Identifier: Apache-2.0
"""loader_data.py FOLDER: writes the files that both sides of the loader bench read."""
import os
import sys

import numpy
from PIL import Image

TOKENS = 20_000_000
CLASSES, IMAGES_OF_EACH = 10, 200
ROWS, ROW_BYTES = 160_000, 784

folder = sys.argv[1]
random = numpy.random.default_rng(0)
random.integers(0, 50257, TOKENS, dtype=numpy.uint16).tofile(f"{folder}/tokens.bin")
numpy.save(f"{folder}/rows.npy", random.integers(1, 256, (ROWS, ROW_BYTES), dtype=numpy.uint8))
for label in range(CLASSES):
    os.makedirs(f"{folder}/images/{label}")
    for i in range(IMAGES_OF_EACH):
        # Noise of 8 x 8 pixels, enlarged, is smooth like a photograph.
        noise = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=numpy.uint8))
        noise.resize((64, 64), Image.Resampling.BICUBIC).save(f"{folder}/images/{label}/{i}.jpg", quality=90)
