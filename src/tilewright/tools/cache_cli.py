"""`tilewright cache`: what compiled kernels take on disk, and whether they are whole."""

from __future__ import annotations

import sys
import time

import click

from tilewright.support import env
from tilewright.support.cache import Entry, Store, default_root, size_limit


@click.group()
def cache() -> None:
    """Look after the compiled kernels on disk."""


def _store() -> Store:
    return Store(default_root(), size_limit())


@cache.command("ls")
@click.option("--all", "everything", is_flag=True, help="Also what belongs to no one kernel.")
def ls(everything: bool) -> None:
    """List the kernels, the last used first."""
    entries = _store().entries()
    sizes = {entry.key: entry.bytes for entry in entries}
    rows = []
    for entry in entries:
        header = entry.header or {"kind": "damaged"}
        if everything or header.get("kind") in ("kernel", "damaged"):
            code = 0 if everything else sizes.get(str(header.get("code")), 0)
            rows.append(_row(entry, header, code))
    titles = ["kind", "kernel", "target", "size", "age", "used", "entry"]
    first = 0 if everything else 1
    _table(titles[first:], [row[first:] for row in rows])


def _row(entry: Entry, header: dict[str, object], code: int) -> list[str]:
    """`code`: bytes that another entry holds for this one."""
    now, made = time.time(), header.get("made")
    return [
        str(header.get("kind", "?")),
        str(header.get("kernel") or ("(damaged)" if entry.header is None else "-")),
        str(header.get("target") or "-"),
        size_text(entry.bytes + code),
        age_text(now - made) if isinstance(made, (int, float)) else "?",
        age_text(now - entry.used),
        entry.key[:12],
    ]


@cache.command()
def size() -> None:
    """Say where the cache is, what it takes and what it may take."""
    store = _store()
    count, total = store.size()
    click.echo(f"folder   {store.root}")
    click.echo(f"files    {count}")
    click.echo(f"size     {size_text(total)}")
    limit = size_text(store.limit) if store.limit else "none"
    click.echo(f"limit    {limit} ({env.CACHE_SIZE.name}, in MiB)")
    if not env.CACHE.on():
        click.echo(f"not used: {env.CACHE.name}={env.CACHE()}")


@cache.command()
@click.option("--remove", is_flag=True, help="Delete what is damaged.")
def verify(remove: bool) -> None:
    """Read every entry and compare it with its checksum. Damaged ones are harmless: they are
    compiled again."""
    store = _store()
    damaged = store.damaged()
    for path in damaged:
        click.echo(f"damaged: {path}")
        if remove:
            path.unlink(missing_ok=True)
    click.echo(f"{store.size()[0]} files, {len(damaged)} damaged{' and removed' if remove else ''}")
    sys.exit(1 if damaged and not remove else 0)


@cache.command()
def clear() -> None:
    """Delete every compiled kernel."""
    store = _store()
    _, total = store.size()
    click.echo(f"removed {store.clear()} files, {size_text(total)}, from {store.root}")


def size_text(size: float) -> str:
    """
    >>> size_text(100), size_text(3 << 20)
    ('100 B', '3.0 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(seconds: float) -> str:
    """
    >>> age_text(5), age_text(7200)
    ('5 s', '2 h')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _table(titles: list[str], rows: list[list[str]]) -> None:
    """With rich where it is installed and somebody looks, else columns that other tools read."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        Console = None  # type: ignore[assignment,misc]
    if Console is None or not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        for row in [titles, *rows]:
            line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            click.echo(line.rstrip())
        return
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in ("size", "age", "used") else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)
