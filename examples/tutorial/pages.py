"""The tutorial as pages: docs/tutorial/*.md from the files beside this one.

python examples/tutorial/pages.py

A file's docstring is the title and the beginning; comments that begin a line after a blank one
are text, the rest is code. Text that is indented by four is what the code above it prints.
"""

import re
from pathlib import Path

STEPS = sorted(Path(__file__).parent.glob("[0-9]*.py"))
PAGES = Path(__file__).parent.parent.parent / "docs" / "tutorial"


def page(path, before=None, after=None):
    """The Markdown of one step, with links to its neighbours."""
    docstring, code = re.fullmatch(r'"""(.*?)"""\n(.*)', path.read_text(), re.S).groups()
    title, text = docstring.strip().split("\n", 1)
    out = [f"# {int(path.stem[:2])}. {title}", "", text.strip(), ""]
    file = f"examples/tutorial/{path.name}"
    out += [f"This page is the file [`{file}`](../../{file}): run it, and change it.", ""]
    for block in re.split(r"\n\n+(?=# )", "\n\n" + code.strip()):
        out += block_lines(block.strip("\n"))
    links = [f"[before: {title_of(before)}]({before.stem}.md)"] if before else []
    links += [f"[next: {title_of(after)}]({after.stem}.md)"] if after else []
    return "\n".join([*out, " · ".join([*links, "[all steps](README.md)"])]) + "\n"


def block_lines(block):
    """Text of the comment that a block begins with, then what follows as code."""
    lines = block.split("\n")
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    text = [line[2:] for line in lines[:count]]
    code = "\n".join(lines[count:]).strip("\n")
    return [*text, *[""] * bool(text), *(["```python", code, "```", ""] if code else [])]


def title_of(path):
    return path.read_text().split("\n", 1)[0].strip('"')


def pages():
    """Path → text of every page."""
    around = zip([None, *STEPS[:-1]], STEPS, [*STEPS[1:], None], strict=True)
    return {PAGES / f"{at.stem}.md": page(at, before, after) for before, at, after in around}


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
