"""The command line: look at IR, check programs, run races, list flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tilewright.ir.analysis.accesses import print_graphs
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.lang.where import set_root
from tilewright.runtime.backends import resolve
from tilewright.runtime.timing import BACKENDS, Settings
from tilewright.support import env
from tilewright.support.errors import TilewrightError, in_json
from tilewright.tools.cache_cli import cache
from tilewright.tools.collect import (
    Collected,
    Found,
    Skipped,
    collect_all,
    missing_text,
    parse_arguments,
)
from tilewright.tools.export_cli import export_command
from tilewright.tools.out_file import OutFile
from tilewright.tools.studio_cli import studio_command
from tilewright.tools.tune_cli import tune_command, tuned


class _Group(click.Group):
    """Tilewright's own errors end a command with their text, never a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            _echo(error)
            sys.exit(1)
        except (OSError, UnicodeError) as error:  # a file that cannot be read or written
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


def _echo(error: TilewrightError) -> None:
    click.echo(str(error) if in_json() else f"error: {error}", err=True)


set_root(_Group.invoke.__code__)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    sys.modules["tilewright"].__version__, prog_name="tilewright", message="%(prog)s %(version)s"
)
def main() -> None:
    """Tilewright: a tile language for GPU kernels."""


main.add_command(cache)
main.add_command(export_command)
main.add_command(tune_command)
main.add_command(tuned)
main.add_command(studio_command)

_file = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_args = click.option(
    "--args",
    "--sizes",
    "arguments",
    default="",
    help="Sizes, arguments of a factory, arrays: 'M=1024, N=512', 'x=\"float32[8, 64]\"'.",
)
_kernel = click.option(
    "--kernel", "name", default=None, help="Only the kernel of this name, or those of a function."
)


@main.command()
@_file
@click.option(
    "--stage",
    default=None,
    help="'math' (a formula), 'tile' (as written), or a pass. [default: tile]",
)
@click.option("--stages", is_flag=True, help="List the stages there are, and which change what.")
@click.option("--diff", nargs=2, default=None, metavar="A B", help="What changed from A to B.")
@click.option("--changed", is_flag=True, help="What each pass changed.")
@click.option("--graph", is_flag=True, help="Of each loop, which statements wait for which.")
@click.option("--target", default="auto", show_default=True)
@_kernel
@_args
def ir(
    file: str,
    stage: str | None,
    stages: bool,
    diff: tuple[str, str] | None,
    changed: bool,
    graph: bool,
    target: str,
    name: str | None,
    arguments: str,
) -> None:
    """Print the IR of the kernels that FILE (Python, or IR text ending in .tw) makes.

    What is printed parses back. Where a pass fails, what the passes before it left is shown.
    """
    from tilewright.tools import stages as tool

    if sum((stage is not None, stages, diff is not None, changed)) > 1:
        raise click.UsageError("choose one of --stage, --stages, --diff and --changed")
    if stage == "math":
        from tilewright.tools.collect import formulas

        math, missing = formulas(file, name, arguments)
        if not math:
            raise _nothing(file, name, missing, "formula")
        for formula in math:
            click.echo(str(formula))
        return
    resolve(target)
    made = _collected(file, name, arguments)
    status = _left_out(made, name)
    shown = print_graphs if graph else print_program
    for found in made.found:
        if stage in (None, "tile") and not (stages or diff or changed):
            click.echo(shown(found.program).rstrip("\n"))
            continue
        passed = tool.passed(found.program, target)
        try:
            if stages:
                click.echo(tool.listing(passed))
            elif changed:
                click.echo(tool.changes(passed))
            elif diff:
                click.echo(tool.difference(passed, *diff))
            else:
                click.echo(shown(passed.program(stage or "tile")), nl=False)
        except tool.UnknownStage as error:
            raise click.ClickException(str(error)) from None
        if passed.error is not None:
            click.echo(f"error: {passed.error}", err=True)
            status = 1
    sys.exit(status)


@main.command()
@_file
@click.option("--target", default="auto", show_default=True)
@_kernel
@_args
def explain(file: str, target: str, name: str | None, arguments: str) -> None:
    """Say what became of each line of the kernels that FILE makes, and why.

    `--target cuda` needs no GPU.
    """
    from tilewright.runtime.kernel import CompiledKernel

    made = _collected(file, name, arguments)
    status = _left_out(made, name)
    for found in made.found:
        click.echo(CompiledKernel(found.program, target=target).explain())
    sys.exit(status)


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


@main.command()
@click.argument(
    "files",
    type=click.Path(exists=True, dir_okay=False),
    nargs=-1,
    required=True,
    metavar="FILE...",
)
@click.option("--out", type=OutFile(), help="Write the figures here, as JSON.")
@click.option("--rounds", type=click.IntRange(1), default=12, show_default=True)
@click.option(
    "--burst-ms", type=click.FloatRange(0), default=2.0, show_default=True, help="Length of a turn."
)
@click.option(
    "--pause-ms", type=click.FloatRange(0), default=None, help="Between turns; 5 on a GPU, else 0."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="CUDA events, CUDA graphs, or the clock.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Races of this name ('gemm*').")
@click.option(
    "--timeout", type=click.FloatRange(0), default=300.0, show_default=True, help="Seconds a race."
)
@click.option("--force", is_flag=True, help="Time what failed its check, too.")
@_args
def bench(
    files: tuple[str, ...],
    out: str | None,
    rounds: int,
    burst_ms: float,
    pause_ms: float | None,
    backend: str,
    only: tuple[str, ...],
    timeout: float,
    force: bool,
    arguments: str,
) -> None:
    """Run the races of FILE: contenders in turn, checked before they are timed.

    FILE is Python and defines a function `races` that gives `tilewright.profiler.Race`s.
    """
    from tilewright.tools.bench import Job, command_line, run_files

    pause = None if pause_ms is None else pause_ms / 1e3
    settings = Settings(rounds, burst_ms / 1e3, pause, backend, force)
    chosen = parse_arguments(arguments, {})
    jobs = [Job(file, chosen, settings, only, timeout) for file in files]
    command = command_line("tilewright", sys.argv[1:])
    sys.exit(run_files(jobs, command=command, out=Path(out) if out else None))


@main.command()
@_file
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Of the data.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="Compare with this one (cpu, cuda, threads; may be repeated) rather than with cpu and, "
    "where there is a GPU, cuda.",
)
@click.option("--time", "seconds", type=click.FloatRange(0), default=60.0, show_default=True)
@click.option("--nan", is_flag=True, help="Report a NaN born where no input had one, too.")
@_kernel
@_args
def check(
    file: str,
    seeds: int,
    targets: tuple[str, ...],
    seconds: float,
    nan: bool,
    name: str | None,
    arguments: str,
) -> None:
    """Run the kernels of FILE on inputs made for them, under the sanitizer and on targets.

    Sizes known at launch take several values within their contracts; --args fixes them, too.
    Exit status 1 means findings. `--target threads` runs what would run on a GPU, without one.
    """
    from tilewright.tools import check as tool

    made = _collected(file, name, arguments)
    wanted = tuple(map(tool.known_target, targets)) or tool.default_targets()
    plan = tool.Plan(seeds, wanted, seconds, nan)
    skipped = made.skipped if name is None else []
    texts = [f"{each.name}: {each.error or each.why}" for each in skipped]
    status = tool.run_command(made.found, texts, made.chosen, plan)
    sys.exit(status or int(any(each.error for each in skipped)))


@main.command()
@_file
@click.option("--block", default="", help="Stop in this block only, e.g. '0,1'.")
@click.option("--break", "stops", multiple=True, metavar="LINE", help="Stop here first.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the data.")
@click.option("--data", type=click.Choice(["integers", "floats"]), default="integers")
@_kernel
@_args
def step(
    file: str,
    block: str,
    stops: tuple[str, ...],
    seed: int,
    data: str,
    name: str | None,
    arguments: str,
) -> None:
    """Run a kernel of FILE under pdb, line by line, its tiles as arrays.

    Inputs are made as `check` makes them.
    """
    from tilewright.tools.inputs import arguments as make
    from tilewright.tools.inputs import sizes
    from tilewright.tools.step import run_command

    made = _collected(file, name, arguments)
    _left_out(made, name)
    if len(made.found) > 1:
        names = ", ".join(dict.fromkeys(f.name or f.program.name for f in made.found))
        raise click.ClickException(f"{file} makes several kernels: choose by --kernel ({names})")
    program = made.found[0].program
    given = make(program, sizes(program, made.chosen)[0], data, seed, made.chosen)
    try:
        where = tuple(int(i) for i in block.split(",")) if block else None
    except ValueError:
        raise click.BadParameter(f"{block!r} is not numbers", param_hint="--block") from None
    sys.exit(run_command(program, given, where, stops))


def _collected(file: str, name: str | None, arguments: str) -> Collected:
    if file.endswith(".tw"):
        with open(file, encoding="utf-8") as handle:
            found = [Found(parse_program(handle.read(), file))]
        return Collected(found, [], parse_arguments(arguments, {}))
    made = collect_all(file, arguments, name)
    names = dict.fromkeys([f.name or f.program.name for f in made.found])
    made.found = [f for f in made.found if name in (None, f.program.name, f.name)]
    if not made.found:
        for each in made.skipped:
            if each.error is not None and name in (None, each.name):
                raise each.error
        raise _nothing(file, name, made.skipped, names=[*names])
    return made


def _left_out(made: Collected, name: str | None) -> int:
    """Say which functions of a file have no kernel; the exit status: 1 where one has an error."""
    skipped = [each for each in made.skipped if name in (None, each.name)]
    for each in skipped:
        if each.error is not None:
            _echo(each.error)
        else:
            click.echo(f"left out: {each.name}: {each.why}", err=True)
    return int(any(each.error for each in skipped))


def _nothing(
    file: str,
    name: str | None,
    skipped: Sequence[Skipped],
    what: str = "kernel",
    names: Sequence[str] = (),
) -> click.ClickException:
    text = f"{file} made no {what}" + (f" named {name!r}" if name else "")
    if name and names:
        text += f"; it has {', '.join(names)}"
    if skipped:
        text += f"; it has functions that need arguments:\n{missing_text(skipped)}"
    return click.ClickException(text)
