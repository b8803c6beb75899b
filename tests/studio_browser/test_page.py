"""The page itself: links between views, edits, errors, export, keys, colours, widths."""

from __future__ import annotations

import pytest

from tests.studio_browser.conftest import FILE, asked, settled, stepped, total

WIDTHS = [(1280, 800), (1600, 1000), (1920, 1080), (2560, 1440), (3840, 2160)]


def tab(page, name):
    page.locator(".panel-inspector1").get_by_role("tab", name=name).click()


def test_views_follow_each_other(studio):
    gemm = studio.locator(".panel-code1 .row", has_text="acc += A[m, k] @ B[k, n]").first
    gemm.click()
    assert gemm.get_attribute("aria-current") == "true"
    at = total(studio, "now")
    assert at > 0 and "A → tile" in studio.locator(".transport .doing").text_content()
    studio.locator(".legend .on", has_text="gemm").first.wait_for()
    # a level shows the same line
    studio.locator(".panel-code1").get_by_role("tab", name="CUDA").click()
    studio.locator(".panel-code1 .row.on").first.wait_for()
    # and a slot of the ring leads to its tile
    slot = studio.locator(".slot").first
    slot.click()
    tab(studio, "layouts")
    name = slot.get_attribute("data-slot").partition("[")[0]
    assert studio.locator(".panel-inspector1 .layouts select").first.input_value() == name
    studio.locator(".legend button").first.click()
    assert total(studio, "now") != at


def test_a_layout_names_thread_and_register(studio):
    tab(studio, "layouts")
    choice = studio.locator(".panel-inspector1 .layouts select").first
    options = choice.locator("option").all_text_contents()
    fragment = next(o for o in options if "fragment" in o)
    choice.select_option(label=fragment)
    box = studio.locator(".layouts canvas").bounding_box()
    studio.mouse.move(box["x"] + 4, box["y"] + 4)
    words = studio.locator("[data-layout=hover]")
    assert "thread 0 (warp 0, lane 0), register 0" in words.text_content()
    step = total(studio, "step")
    studio.locator(".layouts canvas").focus()
    for key in ("ArrowDown", "ArrowRight"):
        studio.keyboard.press(key)
    assert "[1, 1]" in words.text_content() and total(studio, "step") == step


def test_broken_text_shows_its_error(studio):
    studio.locator(".panel-code1").get_by_role("tab", name="edit").click()
    area = studio.locator(".editor textarea")
    text = area.input_value()
    area.fill(text.replace("T.zeros(", "T.zeroz(", 1))
    line = next(i for i, each in enumerate(text.split("\n"), 1) if "T.zeros(" in each)
    studio.get_by_role("button", name="Compile").click()
    note = studio.locator(".fault-note")
    note.wait_for()
    assert f"line {line}" in note.text_content() and "zeroz" in note.text_content()
    assert studio.locator(".sheet .fault").text_content() == str(line)
    area.fill(text)
    studio.get_by_role("button", name="Compile").click()
    settled(studio)
    note.wait_for(state="detached")
    assert total(studio, "cycles") > 0


def test_two_variants_are_compared(studio):
    tab(studio, "schedule")
    studio.get_by_role("button", name="Keep as A").click()
    studio.locator("[data-field=stages] select").select_option("2")
    studio.wait_for_selector(".pill.given")
    settled(studio)
    studio.get_by_role("button", name="Compare A with this").click()
    studio.wait_for_selector(".compare")
    studio.locator(".compare li").first.wait_for()
    assert studio.locator(".compare canvas").count() == 2


def test_the_export_works_offline(studio, browser, tmp_path):
    tab(studio, "schedule")
    with studio.expect_download() as found:
        studio.get_by_role("button", name="Export a page").click()
    file = tmp_path / "page.html"
    found.value.save_as(file)
    assert file.stat().st_size < 3 << 20
    context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda r: requests.append(r.url))
    page.goto(file.as_uri())
    settled(page)
    stepped(page, "ArrowRight")
    assert total(page, "step") == total(page, "steps") > 10
    assert total(page, "cycles") == total(studio, "cycles")
    assert requests == [file.as_uri()]
    assert not page.locator("[data-field]").count()
    context.close()


def test_keys(studio):
    studio.keyboard.press("ArrowRight")
    studio.keyboard.press("ArrowRight")
    assert total(studio, "step") == 3
    studio.keyboard.press("ArrowLeft")
    assert total(studio, "step") == 2
    studio.keyboard.press("End")
    assert total(studio, "now") == total(studio, "cycles")
    studio.keyboard.press("Home")
    assert total(studio, "now") == 0
    studio.keyboard.press(" ")
    studio.wait_for_function("+document.querySelector('[data-total=step]').textContent > 2")
    studio.keyboard.press(" ")
    studio.keyboard.press("?")
    dialog = studio.get_by_role("dialog")
    assert "next wait" in dialog.text_content()
    studio.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    # tabs by arrows, and a focus that one sees
    first = studio.locator(".panel-inspector1 [role=tab][aria-selected=true]")
    first.focus()
    before = first.text_content()
    studio.keyboard.press("ArrowRight")
    assert first.text_content() != before
    seen = studio.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert seen == "solid"
    # every control has a name
    nameless = studio.evaluate(
        """[...document.querySelectorAll('button, select, input, textarea')].filter(e =>
          !(e.textContent.trim() || e.ariaLabel || e.title || e.closest('label'))).length"""
    )
    assert nameless == 0


CONTRAST = """
() => {
  const lum = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const under = e => {
    for (let at = e; at; at = at.parentElement) {
      const c = getComputedStyle(at).backgroundColor;
      if (/^rgb\\(/.test(c)) return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const bad = [];
  const texts = 'p, b, span, button, h2, h3, dt, dd, summary, td, th, code';
  for (const e of document.querySelectorAll(texts)) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(e);
    if (!own || !e.offsetParent || e.closest('.slot, [disabled], .key')) continue;
    if (!/^rgb\\(/.test(style.color)) continue;
    const [a, b] = [lum(style.color), lum(under(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const name = `${e.className || e.tagName} ${e.textContent.slice(0, 20)}`;
    if (ratio < 4.5) bad.push(`${name} ${ratio.toFixed(1)}`);
  }
  return [...new Set(bad)];
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(page, served, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(served.url)
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    stepped(page, "ArrowRight", 30)
    for name in ("schedule", "values", "layouts", "roofline", "chip", "errors"):
        tab(page, name)
        assert page.evaluate(CONTRAST) == [], name
    # the switch goes through: as the system, light, dark
    for wanted in ("light", "dark", scheme):
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == wanted


BROKEN = """
() => {
  const bad = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) bad.push(`${wide} pixels too wide`);
  const boxes = [...document.querySelectorAll('.panel, .top, .transport, .lesson')]
    .filter(e => e.offsetParent).map(e => [e, e.getBoundingClientRect()]);
  for (const [e, r] of boxes) {
    const inside = r.right <= innerWidth + 1 && r.bottom <= innerHeight + 1 && r.left >= -1;
    if (!inside) bad.push(`${e.className} outside`);
    if (r.width < 150 || r.height < 28) bad.push(`${e.className} is ${r.width} by ${r.height}`);
  }
  for (const e of document.querySelectorAll('.tabbody, .field, .ringname')) {
    const more = e.scrollWidth - e.clientWidth;
    if (e.offsetParent && more > 1) bad.push(`${e.className} is cut by ${more}: ${e.textContent}`);
  }
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (x > 1 && y > 1) bad.push(`${a.className} over ${b.className}`);
  }));
  return bad;
}
"""


def test_no_width_breaks_the_layout(studio):
    for width, height in WIDTHS:
        studio.set_viewport_size({"width": width, "height": height})
        stepped(studio, "ArrowRight", 3)
        for name in ("values", "layouts", "roofline", "chip", "errors", "schedule"):
            tab(studio, name)
            assert studio.evaluate(BROKEN) == [], (width, name)


def test_nobody_gets_in_without_the_token(page, served):
    assert page.request.post(f"{served.root}api/record", data={}).status == 403
    assert page.goto(served.root).status == 403
    told = asked(page, served, "record", {"want": []})
    assert told["source"]["lines"] == FILE.read_text().split("\n")[: len(told["source"]["lines"])]
