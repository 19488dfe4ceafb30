# SPDX-License-Identifier: Apache-2.0
"""Cells of a table at the same time: each has hosts of its own, and most of its time waits."""
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 5


def side_by_side(test, cells):
    """cells   title to function; each is a subtest of its own"""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {title: pool.submit(cell) for title, cell in cells.items()}
    for title, cell in running.items():
        with test.subTest(title):
            cell.result()
