# SPDX-License-Identifier: Apache-2.0
"""Hook of MkDocs: adds pages that live outside of docs/ to the site, with links that work there.

The README of each component becomes components/<name>.md, and the files of PAGES become a page each. A link to a file
that is a page leads to that page. A link to another file of the repository leads to repo_url, or becomes plain text
if mkdocs.yml has no repo_url. Code in table cells gets places for line breaks, see with_breaks().
"""
import posixpath
import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}
FOLDERS = ("accelerate", "launch", "examples", "tests", "bench")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CELL = re.compile(r"<(t[dh])\b[^>]*>.*?</\1>", re.DOTALL)
CODE = re.compile(r"<code>([^<]*)</code>")
LONGEST_WORD = 22  # a longer word of code in a table cell may be broken


def page_of_readme(path):
    """accelerate/comm/README.md -> components/comm.md, examples/by_feature/README.md -> components/examples_by_feature.md"""
    folders = path.split("/")[:-1]
    if len(folders) > 1 and folders[0] == "accelerate":
        folders = folders[1:]
    return f"components/{'_'.join(folders)}.md"


def outside_pages():
    """{path in the repository: path in the site}"""
    pages = {path: page for path, page in PAGES.items() if (TOP / path).exists()}
    for folder in FOLDERS:
        for readme in sorted((TOP / folder).rglob("README.md")):
            path = readme.relative_to(TOP).as_posix()
            pages[path] = page_of_readme(path)
    for page in sorted((TOP / "docs").rglob("*.md")):
        path = page.relative_to(TOP).as_posix()
        pages[path] = page.relative_to(TOP / "docs").as_posix()
    return pages


def rewritten(text, path, pages, repo_url):
    """The text of a page with its links as they must be in the site."""
    page = pages[path]

    def link(found):
        image, label, target = found.groups()
        if re.match(r"\w+:|#", target):
            return found[0]
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if file in pages:
            target = posixpath.relpath(pages[file], posixpath.dirname(page) or ".")
            return f"{image}[{label}]({target}{'#' + anchor if anchor else ''})"
        if image:
            return f"![{label}]({posixpath.relpath(file, posixpath.dirname(page) or '.')})"
        return f"[{label}]({repo_url.rstrip('/')}/blob/main/{file})" if repo_url else label

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def images_of(text, path):
    for image, _, target in LINK.findall(text):
        if image and not re.match(r"\w+:", target):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def with_breaks(html):
    """The HTML of a page in which long words of code in table cells may break after _, / and ::, and none at hyphens. A
    wide table then fits into the page, and identifiers can still be copied."""
    def word(found):
        pieces = [found[0]]
        if len(found[0]) > LONGEST_WORD:
            pieces = re.sub(r"(?<=\w)(_|/|::)(?=\w)", r"\1<wbr>", found[0]).split("<wbr>")
        return "<wbr>".join(f'<span class="unbroken">{piece}</span>' if "-" in piece else piece for piece in pieces)

    def code(found):
        return f"<code>{re.sub(r'[^ ]+', word, found[1])}</code>"

    return CELL.sub(lambda cell: CODE.sub(code, cell[0]), html)


def on_files(files, config):
    from mkdocs.structure.files import File  # here, so that tests need no MkDocs

    pages = outside_pages()
    for path, page in pages.items():
        if path.startswith("docs/"):
            continue
        text = (TOP / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=rewritten(text, path, pages, config.repo_url or "")))
        for image in images_of(text, path):
            if files.get_file_from_path(image) is None:
                files.append(File.generated(config, image, abs_src_path=str(TOP / image)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links of pages below docs/ to files outside of it."""
    path = f"docs/{page.file.src_uri}"
    return rewritten(markdown, path, outside_pages(), config.repo_url or "") if (TOP / path).exists() else markdown


def on_post_page(output, page, config):
    return with_breaks(output)
