"""`tilewright export`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("export")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--kernel", "names", multiple=True, help="Only these kernels; may be repeated.")
@click.option(
    "--sizes",
    "--args",
    multiple=True,
    help="Arguments for factories and formulas, e.g. 'M=1024, N=512' or 'x=\"float32[8, 64]\"'; "
    "repeated, each kernel is exported for each.",
)
@click.option("--arch", "archs", multiple=True, help="GPUs, e.g. sm_90a; may be repeated.")
@click.option("--target", default=None, help="'cuda' (the default) or 'cpu'.")
@click.option("--name", default=None, help="Of the library. [default: as FILE]")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), required=True)
def export_command(
    file: str,
    names: tuple[str, ...],
    sizes: tuple[str, ...],
    archs: tuple[str, ...],
    target: str | None,
    name: str | None,
    out: Path,
) -> None:
    """Write the kernels of FILE as machine code with a C header and a C++ launcher.

    Nothing of it needs Python. No GPU is needed to export for one.
    """
    from tilewright.tools.export.collect import collect
    from tilewright.tools.export.write import c_name, export, functions

    if target is not None and archs and target.split()[0] != "cuda":
        raise click.UsageError(f"--arch is for CUDA, not for {target}")
    if target is not None and target.split()[0] not in ("cpu", "cuda"):
        raise click.UsageError(f"{target} has no machine code: export for 'cuda' or 'cpu'")
    kind = target or "cuda"
    targets = [f"{kind} -arch={arch}" for arch in archs]
    if not targets:
        targets = [f"{kind} -arch=sm_90a" if kind == "cuda" else kind]
    library = c_name(name or Path(file).stem)
    found, skipped = collect(file, names, sizes, targets)
    made = functions(found, library)
    version = str(sys.modules["tilewright"].__version__)
    written = export(library, made, out, version)
    for each in skipped:
        click.echo(f"left out: {each.name}: {each.why}", err=True)
    for function in made:
        click.echo(f"{function.signature()};")
    click.echo(f"{len(written)} files in {out}: link tilewright::{library}")
