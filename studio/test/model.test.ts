import assert from "node:assert/strict";
import { test } from "node:test";
import type { Part, Timeline } from "../src/contract";
import { Folded, Model, brief } from "../src/model";
import { placed } from "../src/views/scale";

const columns = [
  "track",
  "unit",
  "op",
  "start",
  "end",
  "iteration",
  "tile",
  "wait",
  "bytes",
  "reads",
  "writes",
] as const;

function timeline(): Timeline {
  return {
    cycles: 1000,
    walked: { iterations: 2, of: 10, tiles: 1, complete: true },
    elided: [{ start: 300, end: 800, iterations: [2, 7] }],
    loop: null,
    interval: 100,
    steady: true,
    blocks: 1,
    busy: {},
    limit: "",
    notes: [],
    agents: [],
    bytes: 64,
    tracks: [{ role: "all", block: 0 }],
    ops: [
      { text: "copy A[k:+1] -> tile[k % 2]", kind: "copy", line: 1, lines: [1] },
      { text: "gemm tile -> acc", kind: "gemm", line: 2, lines: [2] },
    ],
    regions: [
      ["A", [0], [1]],
      ["tile", [0], [1]],
      ["A", [1], [1]],
      ["tile", [1], [1]],
    ],
    spans: {
      columns: [...columns],
      rows: [
        [0, "copies", 0, 0, 10, 0, 0, "", 64, [0], [1]],
        [0, "copies", 0, 20, 30, 1, 0, "", 64, [2], [3]],
        [0, "tensor core", 1, 120, 160, 0, 0, "", 0, [1], []],
      ],
    },
    latency: 100,
    flips: {
      columns: ["time", "barrier", "slot", "phase"],
      rows: [
        [110, "full", 0, 1],
        [130, "full", 1, 1],
        [160, "free", 0, 1],
      ],
    },
    phases: [],
  };
}

const part = {
  name: "k",
  rings: [{ buffer: "tile", slots: 2, slot_bytes: 64, full: "full", free: "free" }],
  buffers: {
    A: {
      space: "global",
      dtype: "float32",
      bits: 32,
      shape: [8],
      line: null,
      label: "",
      tensor: null,
      layout: null,
    },
    tile: {
      space: "shared",
      dtype: "float32",
      bits: 32,
      shape: [2, 16],
      line: 1,
      label: "",
      tensor: "A",
      layout: null,
    },
  },
} as unknown as Part;

test("a slot is filled, full, read and free in turn", () => {
  const model = new Model(part, timeline());
  const [first] = model.slots;
  const states = [5, 109, 110, 120, 159, 160].map((t) => model.slotAt(first!, t)?.state);
  assert.deepEqual(states, ["filling", "filling", "full", "read", "read", "free"]);
  assert.equal(model.slotAt(first!, 140)?.tile, "A[0]");
});

test("moments are the times at which something begins", () => {
  const model = new Model(part, timeline());
  assert.deepEqual(
    model.moments.map((m) => m.time),
    [0, 20, 110, 120, 130, 160, 1000],
  );
  assert.equal(model.momentAt(125), 3);
});

test("bytes that were moved, those of iterations left out included", () => {
  const model = new Model(part, timeline());
  assert.equal(model.bytesMoved("copies", 5), 32);
  assert.equal(model.bytesMoved("copies", 200), 128);
  assert.ok(Math.abs(model.bytesMoved("copies", 1000) - 128 - (128 / 3) * 5) < 1e-6);
});

test("folded time keeps the order and comes back", () => {
  const folded = new Folded(timeline());
  assert.equal(folded.length, 600);
  for (const t of [0, 299, 300, 550, 800, 999])
    assert.ok(Math.abs(folded.unfold(folded.fold(t)) - t) < 1e-6, `${t}`);
});

test("statements without their indices", () => {
  assert.equal(
    brief(
      "copy A[m_1 * 128:+128, f[k] * 64:+64] -> tile[slot, :, :] barrier=full[slot] atom=bulk_load",
    ),
    "copy A → tile",
  );
  assert.equal(brief("wait full[k % 4] phase k // 4 % 2"), "wait full");
});

test("tensors have one scale", () => {
  const places = placed(
    [
      ["A", [512, 128]],
      ["B", [128, 256]],
    ],
    400,
    300,
  );
  const [a, b] = places;
  assert.ok(Math.abs(a!.w / 128 - b!.w / 256) < 1e-9);
  assert.ok(places.every((p) => p.x + p.w <= 400 && p.y + p.h <= 300));
});

test("titles of tensors do not overlap", () => {
  const shapes: [string, number[]][] = [
    ["X", [4096, 2048]],
    ["W", [2048, 4096]],
    ["Q_rope", [128, 128, 64]],
    ["K_rope", [128, 4096, 64]],
  ];
  for (const width of [120, 240, 480])
    for (const place of placed(shapes, width, 300)) {
      const after = placed(shapes, width, 300).filter((p) => p.y === place.y && p.x > place.x);
      assert.ok(after.every((p) => p.x >= place.x + place.room));
      assert.ok(place.x + place.room <= width || place.room < 8 * place.name.length + 20);
    }
});
