// One ES module, minified, the same bytes from the same sources: neptune_widgets/static/explorer.js, style sheet inside.
import { build } from "esbuild";
import { statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const outfile = process.argv[2] ?? resolve(here, "neptune_widgets/static/explorer.js");
const LIMIT = 500_000;

await build({
  absWorkingDir: here,
  entryPoints: ["src/index.ts"],
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
const size = statSync(outfile).size;
console.log(`${outfile}: ${size} bytes`);
if (size > LIMIT) {
  console.error(`the bundle has ${size} bytes, at most ${LIMIT} are allowed`);
  process.exit(1);
}
