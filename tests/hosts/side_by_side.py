# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a table concurrently. Each has its own hosts and mostly waits."""
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 5


def side_by_side(test, cells):
    """cells   {title: function}; each function is a separate subtest"""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {title: pool.submit(cell) for title, cell in cells.items()}
    for title, cell in running.items():
        with test.subTest(title):
            cell.result()
