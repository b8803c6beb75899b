"""`tilewright studio`: see a kernel run."""

from __future__ import annotations

import json
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import click

from tilewright.tools.collect import parse_arguments
from tilewright.tools.out_file import OutFile


@click.command("studio")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--kernel", default=None, help="The function to begin with. [default: the first]")
@click.option("--sizes", default="", help="Sizes of the model, e.g. 'M=4096, N=4096'.")
@click.option("--small", default="", help="Sizes of the run that shows values, e.g. 'M=96, N=96'.")
@click.option("--args", "arguments", default="", help="Other compile-time arguments.")
@click.option("--schedule", default="", help="What is chosen, e.g. 'stages=3, tiles=dict(m=128)'.")
@click.option("--target", default="", help="[default: the kernel's, or cuda -arch=sm_90a]")
@click.option(
    "--gallery",
    "lesson",
    default=None,
    help="A kernel of the gallery, e.g. gemm; with --export, also 'all'.",
)
@click.option("--export", "out", type=OutFile(),
              help="Write one page that works offline, and stop.")  # fmt: skip
@click.option("--json", "data", type=OutFile(),
              help="Write the recording as JSON, and stop.")  # fmt: skip
@click.option("--no-edit", is_flag=True, help="Take no text from the page.")
@click.option("--no-open", is_flag=True, help="Print the link only.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
def studio_command(
    file: str | None,
    kernel: str | None,
    sizes: str,
    small: str,
    arguments: str,
    schedule: str,
    target: str,
    lesson: str | None,
    out: str | None,
    data: str | None,
    no_edit: bool,
    no_open: bool,
    port: int,
) -> None:
    """Open a page in which a kernel of FILE is watched while it runs: tiles on their way, roles
    that wait, rings, values. Without FILE, the gallery. No GPU is needed."""
    from tilewright.tools.studio.gallery import LESSONS, told_of
    from tilewright.tools.studio.server import Studio, serve

    first: dict[str, Any] = {
        "kernel": kernel,
        "target": target,
        "sizes": parse_arguments(sizes, {}),
        "small": parse_arguments(small, {}),
        "args": parse_arguments(arguments, {}),
        "schedule": parse_arguments(schedule, {}),
    }
    requests = [first]
    if file is not None and not (kernel or sizes or small or arguments or schedule):
        path = Path(file).resolve()
        if own := [name for name, one in LESSONS.items() if one.path.resolve() == path]:
            file, lesson = None, own[0]  # with the sizes that it has in the gallery
    if file is None:
        names = [*LESSONS] if lesson == "all" and out else [lesson or "gemm"]
        if not set(names) <= LESSONS.keys():
            raise click.BadParameter(f"one of {', '.join(LESSONS)}", param_hint="--gallery")
        requests = [dict(told_of(name)["request"]) for name in names]
        first = requests[0]
    studio = Studio(file and str(Path(file).resolve()), first, edit=not no_edit)
    if out is None and data is None:
        serve(studio, port, partial(_opened, by_itself=sys.stdout.isatty() and not no_open))
        return
    from tilewright.tools.studio.child import Refused

    try:
        if data is not None:
            Path(data).write_text(json.dumps(studio.record(first)), encoding="utf-8")
        if out is not None:
            Path(out).write_text(studio.export({"requests": requests}), encoding="utf-8")
    except Refused as error:
        click.echo(error.told["text"], err=True)
        sys.exit(1)
    finally:
        studio.close()


def _opened(link: str, by_itself: bool) -> None:
    click.echo(f"the studio is at {link}")
    if by_itself:
        webbrowser.open(link)
