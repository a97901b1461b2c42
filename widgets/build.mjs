// Two ES modules, minified, the same bytes from the same sources, style sheets inside: neptune_widgets/static/explorer.js,
// and solver.js beside it.
import { build } from "esbuild";
import { statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const outfile = process.argv[2] ?? resolve(here, "neptune_widgets/static/explorer.js");
const LIMIT = 500_000;

const bundle = (entry, outfile) => build({
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
});
for (const [entry, path] of [["src/index.ts", outfile], ["src/solver.ts", resolve(dirname(outfile), "solver.js")]]) {
  await bundle(entry, path);
  const size = statSync(path).size;
  console.log(`${path}: ${size} bytes`);
  if (size > LIMIT) {
    console.error(`the bundle has ${size} bytes, at most ${LIMIT} are allowed`);
    process.exit(1);
  }
}
