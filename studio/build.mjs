// Bundles the page into the Python package. `--check` compares it with the committed files instead,
// `--test` bundles and runs the unit tests.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtemp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "..", "src", "tilewright", "tools", "studio", "page");

const options = {
  bundle: true,
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
  absWorkingDir: here,
};

async function bundle() {
  const result = await build({
    ...options,
    entryPoints: { studio: "src/main.tsx" },
    outdir: page,
    format: "iife",
    minify: true,
    charset: "utf8",
    legalComments: "none",
    define: { "process.env.NODE_ENV": '"production"' },
    write: false,
  });
  const files = new Map(result.outputFiles.map((f) => [relative(page, f.path), f.contents]));
  files.set("index.html", await readFile(join(here, "src", "index.html")));
  files.set("NOTICE.txt", Buffer.from(await notice()));
  return files;
}

/** The licences of what is bundled. */
async function notice() {
  const wanted = Object.keys(JSON.parse(await readFile(join(here, "package.json"))).dependencies);
  const seen = new Map();
  while (wanted.length) {
    const name = wanted.pop();
    if (seen.has(name)) continue;
    const folder = join(here, "node_modules", name);
    const about = JSON.parse(await readFile(join(folder, "package.json")));
    const licence = (await readdir(folder)).find((file) => /^licen[sc]e/i.test(file));
    const text = licence ? await readFile(join(folder, licence), "utf8") : about.license;
    seen.set(name, `${name} ${about.version}\n\n${text.trim()}\n`);
    wanted.push(...Object.keys(about.dependencies ?? {}));
  }
  const names = [...seen.keys()].sort();
  const rule = `\n${"-".repeat(72)}\n\n`;
  return `The studio's page contains these packages.\n${rule}${names.map((n) => seen.get(n)).join(rule)}`;
}

async function write() {
  await mkdir(page, { recursive: true });
  let total = 0;
  for (const [name, contents] of await bundle()) {
    await writeFile(join(page, name), contents);
    total += contents.length;
    console.log(`${name.padEnd(12)} ${(contents.length / 1024).toFixed(1)} KiB`);
  }
  console.log(`${"page".padEnd(12)} ${(total / 1024).toFixed(1)} KiB`);
}

async function check() {
  const files = await bundle();
  const there = new Set(await readdir(page));
  const stale = [...files]
    .filter(([name]) => !there.has(name))
    .map(([name]) => `${name} is missing`);
  for (const name of there) {
    const wanted = files.get(name);
    if (!wanted) stale.push(`${name} is not part of the build`);
    else if (!Buffer.from(wanted).equals(await readFile(join(page, name))))
      stale.push(`${name} differs`);
  }
  if (stale.length) {
    console.error(
      `the committed page does not match studio/: ${stale.join(", ")}; run: npm run build`,
    );
    process.exit(1);
  }
  console.log("the committed page matches its source");
}

async function test() {
  const folder = await mkdtemp(join(tmpdir(), "studio-"));
  try {
    const names = (await readdir(join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
    await build({
      ...options,
      entryPoints: names.map((name) => join("test", name)),
      outdir: folder,
      outExtension: { ".js": ".mjs" },
      format: "esm",
      platform: "node",
    });
    const built = names.map((name) => join(folder, name.replace(/ts$/, "mjs")));
    process.exitCode = spawnSync(process.execPath, ["--test", ...built], {
      stdio: "inherit",
    }).status;
  } finally {
    await rm(folder, { recursive: true });
  }
}

const [mode] = process.argv.slice(2);
await ({ "--check": check, "--test": test }[mode] ?? write)();
