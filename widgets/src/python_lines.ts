// The user's Python that an operator was traced from: its lines, and the rows of a listing that shows them above the stages.

import type { Shown } from "./listing_rows";
import type { Doc } from "./record";
import type { PythonFunction } from "./record_types";

/** A line of the user's Python; its id is "py:", the function's place, ":" and the line's number. */
export interface UserLine {
  node: string;
  number: number;
  text: string;
  /** Ids of the lines of the definition that it became, and of others that compute something of it. */
  definition: readonly string[];
  within: readonly string[];
}
export interface UserFunction {
  title: string;
  lines: readonly UserLine[];
}

export const isPython = (id: string): boolean => id.startsWith("py:");

/** The functions of a record. An empty line has no id. */
export function userFunctions(functions: readonly PythonFunction[]): UserFunction[] {
  return functions.map(({ title, lines }, at) => ({
    title,
    lines: lines.map((l) => ({ ...l, node: l.text.trim() ? `py:${at}:${l.number}` : "" })),
  }));
}

/** Every line of the user's, by its id. */
export const userLines = (doc: Doc): UserLine[] => doc.python.flatMap((f) => [...f.lines]);

/** The stages of ids such as "def:s_max". */
export const stagesOf = (ids: readonly string[]): string[] => ids.map((id) => id.slice(id.indexOf(":") + 1));

/** What is said of a line that has no link. */
export function withoutStage(text: string): string {
  const line = text.trim();
  if (/^(?:@|(?:async )?def )/.test(line)) return "Your function, which was traced: press one of its lines to see the stages that it became.";
  return `No stage comes from this line: ${line.startsWith("#") ? "it is a comment." : "Python ran it when the function was traced, and the kernel computes nothing of it."}`;
}

const HEADING: Pick<Shown, "node" | "number" | "op"> = { node: "", number: null, op: "same" };

/** The rows of the definition: the user's functions, each under its title, then one line per stage. */
export function definitionRows(doc: Doc): Shown[] {
  const stages = doc.definition.map((l, n): Shown => ({ node: l.node, text: l.text, number: n + 1, op: "same" }));
  if (!doc.python.length) return stages;
  const functions = doc.python.flatMap((f): Shown[] => {
    const depth = Math.min(...f.lines.filter((l) => l.node).map((l) => l.text.length - l.text.trimStart().length));
    return [
      { ...HEADING, text: `# ${f.title}` },
      ...f.lines.map((l): Shown => ({ node: l.node, text: l.text.slice(depth), number: l.number, op: "same", faint: !l.definition.length && !l.within.length })),
      { ...HEADING, text: "" },
    ];
  });
  return [...functions, { ...HEADING, text: "# its stages" }, ...stages];
}
