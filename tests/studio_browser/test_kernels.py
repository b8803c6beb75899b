"""Each kernel of the gallery, from its start to its end."""

from __future__ import annotations

import os
import runpy
import time

import numpy as np
import pytest

from tests.studio_browser.conftest import number, settled, stepped, total
from tilewright import machine
from tilewright.tools.inputs import arguments
from tilewright.tools.studio.gallery import LESSONS
from tilewright.tools.studio.subject import Request, subject_of

CHANGED = """
before => +document.querySelector('[data-total=cycles]').textContent.replace(/\\D/g, '') !== before
"""
NOWHERE = """
() => [...document.querySelectorAll('svg *')].flatMap(e => [...e.attributes])
  .filter(a => /NaN|Infinity|undefined/.test(a.value)).map(a => `${a.name}=${a.value}`)
"""
STEP = 100.0  # milliseconds that a step may take


def opened(page, served, name):
    """Opens a kernel of the gallery; what the page was told of it, one section after another."""
    told = []

    def heard(reply):
        if f'"gallery":"{name}"' in (reply.request.post_data or ""):
            told.append(reply)

    page.goto(served.url)
    page.wait_for_selector(".top button")
    page.keyboard.press("g")
    page.on("response", heard)
    page.locator(f"[data-gallery='{name}']").click()
    page.wait_for_selector(".lesson")
    settled(page)
    page.remove_listener("response", heard)
    return [reply.json() for reply in told]


@pytest.mark.parametrize("name", list(LESSONS))
def test_gallery(page, served, name):
    """Stepping ends at the end; totals are the recording's; steps are fast, each tried once."""
    told = opened(page, served, name)
    assert LESSONS[name].text.split(".")[0] in page.locator(".lesson").text_content()
    times = stepped(page, "ArrowRight")
    assert total(page, "step") == total(page, "steps") == len(times) + 1
    if times:
        work, shown = np.percentile(times, 95, axis=0)
        print(f"{name}: {len(times)} steps; 95 of 100 take {work:.0f} ms, {shown:.0f} to the frame")
        assert work < STEP and np.median(times, axis=0)[1] < STEP
    stepped(page, "ArrowLeft", 20)
    assert total(page, "step") == len(times) + 1 - min(20, len(times))
    page.keyboard.press("End")
    # the last one knows the registers, and so how many blocks share a multiprocessor
    last = next(each for each in reversed(told) if each["parts"])
    lines = [part["timeline"] for part in last["parts"]]
    timeline = max(lines, key=lambda line: line["cycles"] if line else 0)  # the page begins with it
    if timeline and timeline["spans"]["rows"]:
        assert total(page, "cycles") == round(timeline["cycles"])
        assert total(page, "now") == round(timeline["cycles"])
        if timeline["interval"]:
            assert total(page, "interval") == round(timeline["interval"])
        if not timeline["elided"]:
            columns = timeline["spans"]["columns"]
            unit, size = columns.index("unit"), columns.index("bytes")
            moved = sum(row[size] for row in timeline["spans"]["rows"] if row[unit] == "copies")
            text = page.locator("[data-total=loaded]").text_content()
            value, word = text.split()
            scale = 1024 ** ["B", "KiB", "MiB", "GiB"].index(word)
            assert float(value) * scale == pytest.approx(moved, rel=0.006, abs=0.6 * scale)
    lesson = page.locator(".lesson").text_content()
    assert "No measured times" in lesson or last["measured"]["parts"]
    for part in last["measured"]["parts"] if last["measured"] else ():
        assert all(sentence in lesson for sentence in part["differs"])
        assert bool(part["differs"]) == ("the model is off" in lesson)
    for name in ("roofline", "chip"):
        page.get_by_role("tab", name=name).first.click()
        assert page.evaluate(NOWHERE) == []
    if errors := [error for each in told for error in each["errors"]]:
        page.get_by_role("tab", name="errors").first.click()
        shown = page.locator(".error").first.text_content()
        assert errors[0]["message"].split("\n")[0] in shown


def test_values_are_those_of_the_interpreter(page, served):
    """A kernel's result on the page, the interpreter's, and NumPy's."""
    opened(page, served, "gemm")
    page.get_by_role("tab", name="values").first.click()
    page.locator(".values input[type=checkbox]").uncheck()
    page.locator(".values input[type=range]").press("End")
    page.locator(".values .chip").get_by_text("C", exact=True).click()
    shown = number(page.locator("[data-total=sum][data-name=C]").text_content())

    file = str(LESSONS["gemm"].path)
    subject = subject_of(runpy.run_path(file), Request.of(LESSONS["gemm"].request), file)
    kernel = subject.runnable
    given = arguments(kernel.program, {}, "floats", 0, {})
    made = kernel.launcher.made
    given.update((name, np.zeros_like(given[name])) for name in made)
    machine.run(kernel.program, given, seed=0, made=made)
    a, b, c = (given[name].astype(np.float64) for name in ("A", "B", "C"))
    np.testing.assert_allclose(c, a @ b, rtol=2e-2, atol=0.2)
    assert shown == pytest.approx(c.sum(), rel=6e-3)


CHANGES = {  # what is chosen on the page, one after the other
    "tile.n": "128", "stages": "3", "tile.m": "64", "cluster": "2", "persistent": "off",
}  # fmt: skip


def test_another_schedule_within_a_second(page, served):
    """What is chosen on the page is compiled and simulated again; the assembler comes later."""
    opened(page, served, "gemm")
    page.get_by_role("tab", name="schedule").first.click()
    times = []
    for name, wanted in CHANGES.items():
        field = page.locator(f"[data-field='{name}'] select")
        start = time.monotonic()
        with page.expect_response(lambda reply: '"want":[]' in (reply.request.post_data or "")):
            field.select_option(label=wanted)
        page.wait_for_selector(f"[data-field='{name}']:not(.auto)")
        times.append(time.monotonic() - start)
        assert total(page, "cycles") > 0
    told = ", ".join(f"{t:.2f}" for t in times)
    print(f"another schedule after {told} s")
    share = os.getloadavg()[0] / (os.cpu_count() or 1)  # of a core, where others run too
    assert np.median(times) < max(1, share)
    settled(page)
