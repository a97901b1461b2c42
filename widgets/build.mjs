// Two ES modules, minified, the same bytes from the same sources, style sheets inside: neptune_widgets/static/explorer.js,
// and solver.js, training.js, live.js and live_worker.js beside it. And panes.json, the panes and keys that the documentation lists.
import { build } from "esbuild";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { forEsbuild as panes } from "./find_panes.mjs";
import { forEsbuild as glossary } from "./glossary.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const outfile = process.argv[2] ?? resolve(here, "neptune_widgets/static/explorer.js");
const LIMIT = 560_000;

const bundle = (entry, outfile, more = {}) => build({
  absWorkingDir: here,
  entryPoints: [entry],
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  loader: { ".css": "text" },
  outfile,
  logLevel: "warning",
  plugins: [
    panes,
    glossary,
    {
      // The editor uses none of CodeMirror's parsing; these packages do nothing but declare, which they do not say.
      name: "parsers-only-if-used",
      setup(b) {
        b.onResolve({ filter: /^(@lezer\/|@codemirror\/language$)/ }, async ({ path, resolveDir, kind, pluginData }) => {
          if (pluginData === "resolved") return undefined;
          return { ...(await b.resolve(path, { resolveDir, kind, pluginData: "resolved" })), sideEffects: false };
        });
      },
    },
    {
      name: "small-css",
      setup(b) {
        b.onLoad({ filter: /\.css$/ }, async ({ path }) => {
          const { transform } = await import("esbuild");
          const { readFile } = await import("node:fs/promises");
          const { code } = await transform(await readFile(path, "utf8"), { loader: "css", minify: true });
          return { contents: code.trim(), loader: "text" };
        });
      },
    },
  ],
  ...more,
});

// The licences of what a bundle contains, from the packages themselves: a comment at its head, which goes wherever the
// bundle goes (saved pages too), and LICENSES.txt beside it.
const licences = (metafile) => {
  const found = new Map();
  const [{ inputs }] = Object.values(metafile.outputs);
  for (const input of Object.keys(inputs).filter((name) => inputs[name].bytesInOutput > 0)) {
    const name = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1];
    if (name === undefined || found.has(name)) continue;
    const folder = resolve(here, "node_modules", name);
    const file = readdirSync(folder).find((n) => /^licen[cs]e/i.test(n));
    if (file === undefined) throw new Error(`${name} has no licence file`);
    const { version, license } = JSON.parse(readFileSync(resolve(folder, "package.json"), "utf8"));
    if (license !== "MIT") throw new Error(`${name} has the licence ${license}: look at what it asks for`);
    const text = readFileSync(resolve(folder, file), "utf8").replaceAll("\r", "").replace(/^MIT License\n+/, "").trim();
    found.set(name, { version, head: text.split("\n\n")[0].replaceAll("\n", " "), body: text.split("\n\n").slice(1).join("\n\n") });
  }
  const bodies = new Map();
  for (const [name, { version, head, body }] of [...found].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const key = body.replace(/\s+/g, " ");
    if (!bodies.has(key)) bodies.set(key, { body, heads: [] });
    bodies.get(key).heads.push(`${name} ${version}: ${head}`);
  }
  const parts = [...bodies.values()].map(({ heads, body }) => `${heads.join("\n")}\n\n${body}\n`);
  return `This file contains the following software, under the MIT License.\n\n${parts.join("\n")}`;
};

const { metafile } = await bundle("src/index.ts", outfile, { metafile: true, write: false });
const notice = licences(metafile);
writeFileSync(resolve(dirname(outfile), "LICENSES.txt"), notice.replace("This file contains", "explorer.js contains"));
const { outputFiles } = await bundle("src/list_panes.ts", "list_panes.js", { write: false, platform: "node" });
const { LIST } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`);
writeFileSync(resolve(dirname(outfile), "panes.json"), `${JSON.stringify(LIST, null, 1)}\n`);
const banner = { js: `/*!\n${notice}*/` };

const beside = (name) => resolve(dirname(outfile), name);
const BUNDLES = [
  ["src/index.ts", outfile, { banner }],
  ["src/solver.ts", beside("solver.js"), {}],
  ["src/training.ts", beside("training.js"), {}],
  ["src/live.ts", beside("live.js"), {}],
  ["src/live_worker.ts", beside("live_worker.js"), { format: "iife" }],  // it follows Pyodide's scripts, which are no modules
];
for (const [entry, path, more] of BUNDLES) {
  await bundle(entry, path, more);
  const size = statSync(path).size;
  console.log(`${path}: ${size} bytes`);
  if (size > LIMIT) {
    console.error(`the bundle has ${size} bytes, at most ${LIMIT} are allowed`);
    process.exit(1);
  }
}
