# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a table concurrently: each has its own hosts, and waits for most of its time."""
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 5


def side_by_side(test, cells):
    """cells   title to function; each is a subtest of its own"""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {title: pool.submit(cell) for title, cell in cells.items()}
    for title, cell in running.items():
        with test.subTest(title):
            cell.result()
