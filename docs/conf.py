"""The documentation as a site: `make site` writes build/site/index.html.

Its pages are README.md, docs/ and the pages that these link to. Its menu is the list in
docs/README.md, so a page that is not listed there fails the build. Links to source files and
folders lead to pages that show them. Search, fonts and pictures need no server.
"""

import re
from collections.abc import Iterator
from html import escape
from os.path import relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/README.md"
PARENTS = ("docs/tutorial/README.md", "docs/reference/README.md")  # list the pages below them
GALLERY = (  # the page and the heading under which the site shows what a forge cannot
    "docs/studio.md",
    "## The gallery\n",
    """```{raw} html
<p><a href="../gallery.html">Open the gallery on a page of its own.</a></p>
<iframe src="../gallery.html" title="The gallery of the studio" loading="lazy"
 style="width: 100%; height: 48rem; border: 1px solid var(--color-background-border)"></iframe>
```
""",
)

project = html_title = "Tilewright"
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**.md",
    "examples/puzzles/README.md",
    "benchmarks/notes/*.md",
]
nitpicky = True
myst_heading_anchors = 6  # links name headings as forges do
myst_url_schemes = {"http": None, "https": None, "source": {"url": "{{path}}"}}
highlight_language = "text"  # of blocks that name none

html_theme = "furo"
html_copy_source = html_show_copyright = html_show_sphinx = html_use_index = False
html_show_search_summary = False  # it fetches pages, which browsers refuse where there is no server
pygments_style, pygments_dark_style = "default", "github-dark"

LEXERS = {".py": "python", ".cpp": "cpp", ".txt": "cmake", ".tw": "text"}
sources: set[str] = set()  # files and folders that pages link to


def listed(page: str) -> Iterator[tuple[str, list[str]]]:
    """The captions on a page of lists, each with the pages under it. A page is listed once."""
    seen = {page, INDEX}
    for part in re.split(r"^(?=## |\*\*)", (ROOT / page).read_text(encoding="utf-8"), flags=re.M):
        caption = re.match(r"(?:\*\*|## \[?)([^]*\n]*)", part)
        targets = [target(page, link) for link in re.findall(r"\]\(([^)#:\s]+\.md)", part)]
        fresh = [link for link in dict.fromkeys(targets) if link not in seen]
        seen.update(fresh)
        yield caption[1] if caption else "", fresh


def beside(page: str) -> list[str]:
    """The pages listed on this one that are in its folder."""
    here = Path(page).parent
    return [link for _, pages in listed(page) for link in pages if Path(link).parent == here]


def target(page: str, link: str) -> str:
    """Where a link on a page leads, from the root."""
    return relpath(ROOT / Path(page).parent / link, ROOT)


def menu(pages: list[str], caption: str = "") -> str:
    """Pages below the one that this stands on, as a directive that shows nothing."""
    lines = "".join(f"/{page.removesuffix('.md')}\n" for page in pages)
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n\n```{{toctree}}\n{options}\n{lines}```\n" if pages else ""


def read(app: Any, name: str, source: list[str]) -> None:
    """Add to a page what only the site has: menus, the gallery, links to pages of sources."""
    page, text = f"{name}.md", source[0]
    if name == root_doc:
        text += menu([INDEX]) + "".join(menu(pages, caption) for caption, pages in listed(INDEX))
    elif page in PARENTS:
        text += menu(beside(page))
    elif page == GALLERY[0]:
        before, heading, after = text.partition(GALLERY[1])
        assert heading, f"{page} has no {heading!r}"
        text = f"{before}{heading}\n{GALLERY[2]}{after}"

    def shown(link: re.Match[str]) -> str:
        path = target(page, link[2])
        if path.endswith(".md") or not (ROOT / path).exists():
            return link[0]
        sources.add(path)
        return f"{link[1]}(source:{relpath(f'code/{path}.html', Path(page).parent)})"

    source[0] = re.sub(r"((?<!!)\[[^]]*\])\(([^)#:\s]+)\)", shown, text)


def source_pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """A page for each file that is linked, and for each folder with the files in it."""
    for path in sorted(sources):
        files = [path]
        if (ROOT / path).is_dir():
            found = (ROOT / path).rglob("*.*")
            files = sorted(relpath(f, ROOT) for f in found if "__pycache__" not in f.parts)
            items = "".join(f"<li>{row(path, file)}</li>" for file in files)
            yield a_page(path, f"<ul>{items}</ul>")
        for file in filter(readable, files):
            code = app.builder.highlighter.highlight_block(
                (ROOT / file).read_text(encoding="utf-8"), LEXERS[Path(file).suffix]
            )
            yield a_page(file, code)


def a_page(path: str, body: str) -> tuple[str, dict[str, str], str]:
    return f"code/{path}", {"title": path, "body": f"<h1>{path}</h1>{body}"}, "page.html"


def readable(file: str) -> bool:
    return Path(file).suffix in LEXERS


def row(folder: str, file: str) -> str:
    """A file in the list of a folder."""
    name, page = escape(relpath(file, folder)), f"{relpath(file, Path(folder).parent)}.html"
    return f'<a href="{page}">{name}</a>' if readable(file) else name


def begin_at_the_readme(app: Any, error: Exception | None) -> None:
    """A folder that is opened shows index.html."""
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", begin_at_the_readme)
    return {"parallel_read_safe": False}
