"""The command line: look at IR, check programs, list flags."""

from __future__ import annotations

import sys

import click

from tilewright.ir.op import Program
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.support import env
from tilewright.support.errors import TilewrightError
from tilewright.tools.collect import Found, collect


class _Group(click.Group):
    """Tilewright's own errors end a command with their text, never a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tilewright: a tile language for GPU kernels."""


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_args = click.option(
    "--args", "arguments", default="", help="Arguments for a factory, e.g. 'M=1024, N=512'."
)
_kernel = click.option("--kernel", "name", default=None, help="Only the kernel of this name.")


@main.command()
@_file
@click.option("--stage", default="tile", show_default=True, help="'tile', or the name of a pass.")
@click.option("--target", default="auto", show_default=True)
@_kernel
@_args
def ir(file: str, stage: str, target: str, name: str | None, arguments: str) -> None:
    """Print the IR of the kernels that FILE (Python, or IR text ending in .tw) makes.

    What is printed parses back.
    """
    for found in _programs(file, name, arguments):
        program = found.program if stage == "tile" else _after_pass(found, stage, target)
        click.echo(print_program(program).rstrip("\n"))


@main.command("verify")
@_file
@click.option(
    "--stage",
    type=click.Choice([s.value for s in Stage]),
    default=Stage.TILE.value,
    show_default=True,
)
def verify_command(file: str, stage: str) -> None:
    """Check IR text against the rules of a stage."""
    with open(file, encoding="utf-8") as handle:
        program = parse_program(handle.read(), file)
    verify(program, Stage(stage))
    click.echo(f"{program.name}: fine")


@main.command()
def flags() -> None:
    """List the environment variables that Tilewright reads."""
    for flag in env.FLAGS:
        click.echo(f"{flag.name:<28}{flag.help} (now {flag()!r})")


def _programs(file: str, name: str | None, arguments: str) -> list[Found]:
    if file.endswith(".tw"):
        with open(file, encoding="utf-8") as handle:
            return [Found(parse_program(handle.read(), file))]
    found = [f for f in collect(file, arguments) if name in (None, f.program.name)]
    if not found:
        raise click.ClickException(f"{file} made no kernel" + (f" named {name!r}" if name else ""))
    return found


def _after_pass(found: Found, stage: str, target: str) -> Program:
    from tilewright.runtime.kernel import CompiledKernel

    kernel = CompiledKernel(found.program, target=target)
    trace = dict(kernel.executable.trace)
    if stage not in trace:
        raise click.ClickException(
            f"no stage {stage!r} for {kernel.target}; there are: tile, {', '.join(trace)}"
        )
    return trace[stage]
