// The module "panes:found": the panes that the files in src/panes/ declare. The build and the tests both resolve it, so
// that a new pane is a file there and no list names it.
import { readdirSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const NAME = "panes:found";
const FOLDER = resolve(dirname(fileURLToPath(import.meta.url)), "src/panes");

const source = () => {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts")).sort();
  const imports = files.map((name, n) => `import { pane as pane${n} } from ${JSON.stringify(`${FOLDER.replaceAll("\\", "/")}/${name}`)};`);
  return `${imports.join("\n")}\nexport const FOUND = [${files.map((_, n) => `pane${n}`).join(", ")}];\n`;
};

export const forEsbuild = {
  name: NAME,
  setup(build) {
    build.onResolve({ filter: new RegExp(`^${NAME}$`) }, () => ({ path: NAME, namespace: NAME }));
    build.onLoad({ filter: /.*/, namespace: NAME }, () => ({ contents: source(), loader: "js", resolveDir: FOLDER }));
  },
};

export const forVite = {
  name: NAME,
  resolveId: (id) => (id === NAME ? `\0${NAME}` : undefined),
  load: (id) => (id === `\0${NAME}` ? source() : undefined),
};
