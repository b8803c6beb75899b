"""`tilewright tune` and `tilewright tuned`: measure candidates, look after what was measured."""

from __future__ import annotations

import contextlib
import sys
from itertools import product
from pathlib import Path

import click

from tilewright.choose import measured
from tilewright.formula.function import MathFunction
from tilewright.runtime.jit import Jit
from tilewright.support.cache import default_store
from tilewright.support.errors import CompileError
from tilewright.tools.collect import file_names, parse_arguments, with_arrays
from tilewright.tools.out_file import OutFile
from tilewright.tune.pool import LocalPool, Pool
from tilewright.tune.progress import progress
from tilewright.tune.search import MOST, check_here, tune


@click.command("tune")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--kernel", "name", default=None, help="The kernel function of this name.")
@click.option(
    "--sizes",
    "--args",
    multiple=True,
    metavar="'M=…, N=…'",
    help="Sizes and settings, and arrays of a formula: 'x=\"float16[8, 64]\"'; may be repeated.",
)
@click.option("--target", default="auto", show_default=True)
@click.option("--most", type=click.IntRange(1), default=MOST, show_default=True,
              help="Candidates before those near the best.")  # fmt: skip
@click.option("--again", is_flag=True, help="Measure what is known, too.")
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes that compile.")
@click.option("--ray", "address", default=None, help="Use the GPUs of this Ray cluster.")
@click.option("--export", "out", type=OutFile(), help="Then write the table here.")
def tune_command(
    file: str,
    name: str | None,
    sizes: tuple[str, ...],
    target: str,
    most: int,
    again: bool,
    workers: int | None,
    address: str | None,
    out: str | None,
) -> None:
    """Measure what the kernels of FILE leave open, and keep the fastest for later calls.

    Candidates are compiled side by side, run and timed in a process of their own, and checked
    against the model's choice. Ctrl-C ends the search; what was measured stays.
    """
    found = _kernels(file, name)
    pool = _pool(address, workers)
    try:
        for kernel, each in product(found, sizes or ("",)):
            if why := _lacks(kernel, each):
                if len(found) == 1:
                    raise CompileError(why, code="arguments")
                click.echo(f"left out: {why}", err=True)
                continue
            _tune(kernel, each, target, most, again, pool)
    finally:
        pool.close()
        if out is not None:
            click.echo(f"{_entries(measured.export(Path(out)))} written to {out}")


def _lacks(kernel: Jit | MathFunction, sizes: str) -> str:
    """What to give that a formula needs."""
    if isinstance(kernel, Jit):
        return ""
    why = kernel.try_with(with_arrays(parse_arguments(sizes, {}, "--sizes")))
    return why and f"{kernel.function.__name__}: {why.replace('--args', '--sizes')}"


def _tune(
    kernel: Jit | MathFunction, sizes: str, target: str, most: int, again: bool, pool: Pool
) -> None:
    given = parse_arguments(sizes, {}, "--sizes")
    rest: dict[str, int] = {}
    on = None if target == "auto" else target
    if isinstance(kernel, MathFunction):
        name = kernel.function.__name__
        jit, arrays = kernel.jit_like(on, **with_arrays(given))
        bound = jit.calls.bind(tuple(arrays), {})
    else:
        name, jit = kernel.fn.__name__, kernel if on is None else kernel.on(on)
        bound, rest = jit.calls.bind_some((), given)
    if isinstance(pool, LocalPool):
        check_here(jit.compile_target)
    label = f"{name} {sizes}".strip()
    try:
        with progress(label) as watch:
            found = tune(jit, bound, rest, most=most, again=again, pool=pool, watch=watch)
    except KeyboardInterrupt:
        click.echo(f"{label}: stopped; candidates that were timed are kept", err=True)
        sys.exit(130)
    click.echo(f"{label}: {str(found).partition(': ')[2]}")
    for candidate, why in found.failures.items():
        click.echo(f"  left out {candidate}: {why.splitlines()[0]}", err=True)
    if not found.is_kept:
        why = "the cache is off" if default_store() is None else "its folder cannot be written"
        click.echo(f"  nothing is kept for other processes: {why}", err=True)


def _kernels(file: str, name: str | None) -> list[Jit | MathFunction]:
    with contextlib.redirect_stdout(sys.stderr):
        names = file_names(file)
    found = {
        n: v for n, v in names.items()
        if isinstance(v, MathFunction) or (isinstance(v, Jit) and v.direct)
    }  # fmt: skip
    chosen = [v for n, v in found.items() if name in (None, n)]
    if not chosen:
        raise CompileError(
            f"{file} has no kernel function" + (f" {name!r}" if name else ""),
            expected=" or ".join(found)
            or "a function with @tw.math, or with @tw.jit that opens loops over tiles",
            fix="name one of them with --kernel" if found else "see `tilewright explain`",
        )
    return chosen


def _pool(address: str | None, workers: int | None) -> Pool:
    if address is None:
        return LocalPool(workers)
    from tilewright.tune.cluster import RayPool

    return RayPool(address)


@click.group(invoke_without_command=True)
@click.pass_context
def tuned(context: click.Context) -> None:
    """List what was measured; export it, or merge another table."""
    if context.invoked_subcommand is not None:
        return
    for entry in sorted(measured.entries(), key=lambda entry: str(entry["about"])):
        best = [each[0] for each in entry["times"].values() if each]
        times = ", ".join(f"{1e6 * seconds:.1f} µs" for *_, seconds in best)
        click.echo(f"{entry['about']}  {entry['machine'] or entry['target']}  {times}")


@tuned.command("export")
@click.argument("out", type=OutFile())
def export(out: str) -> None:
    """Write the table to OUT as JSON."""
    click.echo(_entries(measured.export(Path(out))))


@tuned.command("merge")
@click.argument("files", type=click.Path(exists=True, dir_okay=False), nargs=-1, required=True)
def merge(files: tuple[str, ...]) -> None:
    """Take over the tables FILES, as `export` wrote them."""
    for file in files:
        taken, others = measured.merge(Path(file))
        click.echo(f"{file}: {_entries(taken)} taken")
        if others:
            click.echo(f"  {others} of another version of Tilewright are not used", err=True)


@tuned.command("clear")
def clear() -> None:
    """Forget all that was measured."""
    click.echo(f"{_entries(measured.clear())} removed")


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
