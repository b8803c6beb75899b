"""`python -m devtools`, from the repository's root: what keeps looking for bugs of the compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tools of the people who build Tilewright."""


@main.command()
@click.option("--count", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option(
    "--targets",
    default="interp,cpu",
    show_default=True,
    help="cpu, cuda, cuda-build (compiles only), host, host-sm80, host-drawn (the emitted source "
    "on this machine); each is compared with interp.",
)
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--each", type=float, default=60.0, show_default=True, help="Seconds a program.")
@click.option("--shrink", type=float, default=40.0, show_default=True, help="Seconds a finding.")
@click.option("--findings", type=int, default=20, show_default=True, help="Then the run ends.")
@click.option("--kind", default="any", show_default=True, help="Of programs: rings, gathers …")
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
    kind: str,
    refusals: bool,
    out: str | None,
) -> None:
    """Run random programs on TARGETS and compare them with the checking interpreter.

    Programs that differ, crash or hang are shrunk and printed as kernels.
    """
    from devtools.fuzz.programs import KINDS
    from devtools.fuzz.run import Plan, run_command

    if kind not in KINDS:
        raise click.BadParameter(f"one of {', '.join(KINDS)}", param_hint="--kind")

    plan = Plan(
        count, seed, tuple(targets.split(",")), seconds, jobs, each, shrink, out or "", findings,
        refusals=refusals, kind=kind,
    )  # fmt: skip
    sys.exit(run_command(plan))


@main.command()
@click.option("--count", type=click.IntRange(0), default=100, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option("--targets", default="host,host-sm80", show_default=True)
def extremes(count: int, seed: int, targets: str) -> None:
    """Run every operation of every type, and COUNT random programs of several, on least and
    largest values: emitted sources on the host, compared with the interpreter."""
    from devtools.host.build import NoCompiler
    from devtools.host.extremes import run_command

    try:
        sys.exit(run_command(count, seed, targets.split(",")))
    except NoCompiler as error:
        print(f"skipped: {error}")


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
    from devtools.schedules import run as tool

    if program:
        recipe = tool.Recipe(program, target, without, seed, threads >= 1, file or "")
        sys.exit(tool.repeat(recipe))
    sys.exit(tool.run_command(tool.Plan(count, seed, seconds, jobs, each, threads, file or "")))


@main.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="An earlier record.")
@click.option("--drawn", type=int, default=4, show_default=True, help="Sizes of each zoo kernel.")
@click.option("--fuzzed", type=int, default=100, show_default=True, help="Random programs.")
@click.option("--cubin", is_flag=True, help="Registers, spills and instructions, by NVRTC.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
def freeze(
    out: Path, against: Path | None, drawn: int, fuzzed: int, cubin: bool, jobs: int
) -> None:
    """Write hashes of the CUDA of many kernels to OUT, and tell which differ from a record."""
    from devtools.freeze import freeze as run

    count = run(out, against, drawn=drawn, fuzzed=fuzzed, cubin=cubin, jobs=jobs)
    sys.exit(1 if count else 0)


@main.command()
@click.option("--record", is_flag=True, help="Keep the figures as the new record.")
def size(record: bool) -> None:
    """Print how large the package is; fail where it has grown past its record."""
    from devtools.size import report

    sys.exit(report(record))


@main.command()
@click.option("--arch", default="", help="Names with commas between; all of them by default.")
@click.option("--family", default="", help="Names with commas between; all of them by default.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
def chips(arch: str, family: str, jobs: int) -> None:
    """Compile every kernel of the zoo for every GPU architecture, and print what spills."""
    from devtools.chips import ARCHITECTURES, KERNELS, run_command

    archs = arch.split(",") if arch else ARCHITECTURES
    sys.exit(run_command(archs, family.split(",") if family else KERNELS, jobs))


@main.command()
@click.argument("folder", type=click.Path(file_okay=False), default="docs/reference")
def reference(folder: str) -> None:
    """Write the reference of the language, made from docstrings, into FOLDER as Markdown."""
    from devtools.reference import write

    for path in write(Path(folder)):
        click.echo(path)


@main.command()
@click.option("--count", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first value.")
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
def identity(count: int, seed: int, seconds: float) -> None:
    """Compare the keys of random values, and jitted kernels with fresh traces.

    Values that differ must have two keys, equal ones one, wherever a factory reads them.
    """
    from devtools.fuzz.identity import search

    found = search(count, seed, seconds)
    print(found or "nothing found")
    sys.exit(bool(found))


@main.command()
@click.option("--count", type=click.IntRange(1), default=400, show_default=True, help="Wrong ones.")
@click.option("--each", type=click.IntRange(1), default=10, show_default=True, help="Of a kernel.")
@click.option("--fuzz", "random", type=int, default=70, show_default=True, help="Random kernels.")
@click.option("--seed", type=int, default=0, show_default=True, help="Picks the mutants.")
@click.option("--small", is_flag=True, help="Only mutants of the small kernels.")
def mutants(count: int, each: int, random: int, seed: int, small: bool) -> None:
    """Make wrong kernels of right ones and count those that are found.

    The exit status is 1 where less than 97 % are, or a right kernel is accused.
    """
    from devtools.mutants import judge, subjects

    chosen = subjects.small() if small else subjects.all_subjects(random)
    report = judge.measure(
        chosen, count, each, seed, lambda text: print(text, file=sys.stderr, flush=True)
    )
    for line in report.lines():
        print(line)
    sys.exit(int(report.share() < 0.97 or bool(report.accused)))


@main.command()
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option("--target", default="interp", show_default=True, help="interp or cpu.")
def meaning(count: int, seed: int, target: str) -> None:
    """Run random Python as a kernel's text and as plain Python, and compare the results.

    A kernel that is refused at one of its lines is fine; the first that differs is shrunk.
    """
    from devtools.fuzz.python_meaning import hunt

    kinds, finding = hunt(count, seed, target)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
    if finding is not None:
        print(f"{finding.kind}: {finding.said}\n\n{finding.source}")
    sys.exit(finding is not None)


@main.command()
@click.argument("out", type=click.Path(dir_okay=False))
def imports(out: str) -> None:
    """Draw which folders of the package import which, as SVG."""
    from devtools.imports import SRC, drawing

    Path(out).write_text(drawing(SRC), encoding="utf-8")


@main.command()
@click.argument("page", type=click.Path(exists=True, dir_okay=False), default="docs/ops.md")
def ops(page: str) -> None:
    """Write the table of ops into PAGE, as their records have it."""
    from devtools.ops import with_table

    path = Path(page)
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


@main.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False))
@click.argument("after", type=click.Path(exists=True, file_okay=False))
@click.option("--out", type=click.Path(dir_okay=False), help="Write raw times here, as JSON.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sizes.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Of a family.")
@click.option("--target", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--kind", default="", help="Only kernels whose name contains this.")
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
def trees(**plan: Any) -> None:
    """Race two trees of the repository on the zoo's kernels: compile times and run times."""
    from devtools.trees import command

    sys.exit(command(**plan))


if __name__ == "__main__":
    main()
