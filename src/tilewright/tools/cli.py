"""The command line: look at IR, check programs, run races, list flags."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tilewright.ir.op import Program
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.runtime.race import Settings
from tilewright.runtime.timing import BACKENDS
from tilewright.support import env
from tilewright.support.errors import TilewrightError
from tilewright.tools.collect import Found, collect, parse_arguments


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


@main.command()
@click.argument(
    "files",
    type=click.Path(exists=True, dir_okay=False),
    nargs=-1,
    required=True,
    metavar="FILE...",
)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the figures here, as JSON.")
@click.option("--rounds", type=click.IntRange(1), default=12, show_default=True)
@click.option("--burst-ms", type=float, default=2.0, show_default=True, help="Length of a turn.")
@click.option("--pause-ms", type=float, default=None, help="Between turns; 5 on a GPU, else 0.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="CUDA events, CUDA graphs, or the clock.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Races of this name ('gemm*').")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds a race.")
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
@click.option("--count", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option(
    "--targets",
    default="interp,cpu",
    show_default=True,
    help="cpu, cuda, cuda-build (compiles only); each is compared with interp.",
)
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--each", type=float, default=60.0, show_default=True, help="Seconds a program.")
@click.option("--shrink", type=float, default=40.0, show_default=True, help="Seconds a finding.")
@click.option("--findings", type=int, default=20, show_default=True, help="Then the run ends.")
@click.option("--refusals", is_flag=True, help="Shrink and print what a target refuses, too.")
@click.option("--out", type=click.Path(file_okay=False), help="Write failing kernels here.")
def fuzz(
    count: int,
    seed: int,
    targets: str,
    seconds: float,
    jobs: int,
    each: float,
    shrink: float,
    findings: int,
    refusals: bool,
    out: str | None,
) -> None:
    """Run random programs on TARGETS and compare them with the checking interpreter.

    Programs that differ, crash or hang are shrunk and printed as kernels.
    """
    from tilewright.tools.fuzz import Plan, run_command

    plan = Plan(
        count, seed, tuple(targets.split(",")), seconds, jobs, each, shrink, out or "", findings,
        refusals=refusals,
    )  # fmt: skip
    sys.exit(run_command(plan))


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Number of the first one.")
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--each", type=float, default=120.0, show_default=True, help="Seconds a program.")
@click.option(
    "--threads", type=float, default=0.25, show_default=True, help="Share lowered to thread code."
)
@click.option("--program", default="", help="Only this one: what repeats a failure.")
@click.option("--target", default="cuda", show_default=True, help="With --program.")
@click.option("--without", default="", help="A feature left out; with --program.")
def schedules(
    file: str | None,
    count: int,
    seed: int,
    seconds: float,
    jobs: int,
    each: float,
    threads: float,
    program: str,
    target: str,
    without: str,
) -> None:
    """Derive random schedules and compare each with the sequential program, in the interpreter.

    Programs are random pipelines and, where FILE defines a dict `schedules`, its kernels with
    random sizes (zoo/schedules.py). A failure is printed as the command that repeats it.
    """
    from tilewright.tools import schedules as tool

    if program:
        recipe = tool.Recipe(program, target, without, seed, threads >= 1, file or "")
        sys.exit(tool.repeat(recipe))
    sys.exit(tool.run_command(tool.Plan(count, seed, seconds, jobs, each, threads, file or "")))


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
