# SPDX-License-Identifier: Apache-2.0
"""Tests cmake/setup/site_pages.py: the pages of the site and the targets of their links."""
import sys
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cmake" / "setup"))
import site_pages  # noqa: E402

PAGES = {"README.md": "readme.md", "accelerate/comm/README.md": "components/comm.md", "docs/design/step.md": "design/step.md"}
URL = "https://example.org/accelerate-cpp"


def rewritten(text, path, url=URL):
    return site_pages.rewritten(text, path, PAGES, url)


class SitePages(unittest.TestCase):
    def test_each_readme_has_a_page_of_its_own(self):
        self.assertEqual(site_pages.page_of_readme("accelerate/README.md"), "components/accelerate.md")
        self.assertEqual(site_pages.page_of_readme("accelerate/comm/README.md"), "components/comm.md")
        self.assertEqual(site_pages.page_of_readme("examples/by_feature/README.md"), "components/examples_by_feature.md")
        pages = site_pages.outside_pages()
        self.assertEqual(len(pages), len(set(pages.values())))
        for readme in (TOP / "accelerate").rglob("README.md"):
            self.assertIn(readme.relative_to(TOP).as_posix(), pages)

    def test_a_link_to_a_page_refers_to_the_page_of_the_site(self):
        self.assertEqual(rewritten("[comm](accelerate/comm/README.md#files)", "README.md"), "[comm](components/comm.md#files)")
        self.assertEqual(rewritten("[top](../../README.md)", "accelerate/comm/README.md"), "[top](../readme.md)")
        self.assertEqual(rewritten("[comm](../../accelerate/comm/README.md)", "docs/design/step.md"), "[comm](../components/comm.md)")

    def test_a_link_to_another_file_refers_to_the_repository_or_becomes_text(self):
        self.assertEqual(rewritten("[license](LICENSE)", "README.md"), f"[license]({URL}/blob/main/LICENSE)")
        self.assertEqual(rewritten("[license](LICENSE)", "README.md", url=""), "license")

    def test_images_addresses_and_anchors(self):
        self.assertEqual(rewritten("![page](../tracking/report.png)", "accelerate/comm/README.md"),
                         "![page](../accelerate/tracking/report.png)")
        for same in ("[a](https://example.org/b.md)", "[a](#files)"):
            self.assertEqual(rewritten(same, "README.md"), same)

    def test_code_blocks_are_not_changed(self):
        block = "```cpp\nauto call = [this](LICENSE) {};\n```"
        self.assertEqual(rewritten(f"[license](LICENSE)\n{block}\n", "README.md", url=""), f"license\n{block}\n")

    def test_long_code_in_table_cells_breaks_at_underscores_and_no_code_at_hyphens(self):
        self.assertEqual(site_pages.with_breaks("<td><code>--num_cpu_threads_per_process 4</code></td>"),
                         '<td><code><span class="unbroken">--num_</span><wbr>cpu_<wbr>threads_<wbr>per_<wbr>process 4</code></td>')
        self.assertEqual(site_pages.with_breaks("<th>a_b <code>data::read_numbered_samples</code></th>"),
                         "<th>a_b <code>data::<wbr>read_<wbr>numbered_<wbr>samples</code></th>")
        for same in ("<td><code>num_processes</code></td>", "<p><code>--num_cpu_threads_per_process</code></p>"):
            self.assertEqual(site_pages.with_breaks(same), same)

    def test_the_navigation_contains_every_page_and_no_other(self):
        navigation = (TOP / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:", 1)[1]
        named = {line.split(":")[-1].strip(" -") for line in navigation.splitlines()}
        named = {page for page in named if page.endswith(".md") and not page.startswith("api/")}
        self.assertEqual(named, set(site_pages.outside_pages().values()) - {"components/examples_data.md"})


if __name__ == "__main__":
    unittest.main()
