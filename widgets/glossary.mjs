// The module "glossary:terms": the terms of docs/glossary.md with their definitions. The build and the tests both resolve
// it, so that the explorer explains a term in the words of the documentation.
import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const NAME = "glossary:terms";
const FILE = resolve(dirname(fileURLToPath(import.meta.url)), "../docs/glossary.md");

const source = () => {
  const [, ...parts] = readFileSync(FILE, "utf8").split(/^## /m);
  const terms = parts.map((part) => {
    const [name, ...text] = part.split("\n");
    return [name.trim(), text.join("\n").trim().replace(/\s*\n\s*/g, " ")];
  });
  return `export const TERMS = ${JSON.stringify(Object.fromEntries(terms))};\n`;
};

export const forEsbuild = {
  name: NAME,
  setup(build) {
    build.onResolve({ filter: new RegExp(`^${NAME}$`) }, () => ({ path: NAME, namespace: NAME }));
    build.onLoad({ filter: /.*/, namespace: NAME }, () => ({ contents: source(), loader: "js", watchFiles: [FILE] }));
  },
};

export const forVite = {
  name: NAME,
  resolveId: (id) => (id === NAME ? `\0${NAME}` : undefined),
  load: (id) => (id === `\0${NAME}` ? source() : undefined),
};
