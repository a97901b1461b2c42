// A tiny tokeniser for loop programs, HTile and Python: enough for colours.

export type TokenKind = "k" | "n" | "c" | "s" | "f" | "";
export interface Token {
  kind: TokenKind;
  text: string;
}

const KEYWORDS = new Set(
  ("for in if else elif def return import from as and or not is None True False while with lambda class pass " +
    "program input output chip kernel grid_of").split(" "),
);
const PATTERN =
  /(#.*$)|("""|'''|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b|(?<![\p{L}\p{N}_)\]] ?)-inf\b)|([\p{L}_@][\p{L}\p{N}_.]*)|(\s+|.)/gu;

/** The line's tokens; adjacent plain ones are one. */
export function tokenise(text: string): Token[] {
  const found: Token[] = [];
  const put = (kind: TokenKind, part: string) => {
    const last = found[found.length - 1];
    if (last && last.kind === kind && kind === "") last.text += part;
    else found.push({ kind, text: part });
  };
  for (const m of text.matchAll(PATTERN)) {
    if (m[1] !== undefined) put("c", m[1]);
    else if (m[2] !== undefined) put("s", m[2]);
    else if (m[3] !== undefined) put("n", m[3]);
    else if (m[4] !== undefined) {
      const call = text[(m.index ?? 0) + m[4].length] === "(";
      put(KEYWORDS.has(m[4]) ? "k" : call ? "f" : "", m[4]);
    } else put("", m[5] ?? "");
  }
  return found;
}

/** Where the factor of `factor * buffer[` stands in a statement: the repair term of a block that carries `buffer`. */
export function repairSpan(text: string, buffer: string): [number, number] | null {
  const at = text.search(new RegExp(`\\*\\s+${buffer.replace(/[^\p{L}\p{N}_]/gu, "\\$&")}(?![\\p{L}\\p{N}_])`, "u"));
  if (at < 0) return null;
  let end = at;
  while (end > 0 && /\s/.test(text[end - 1]!)) end--;
  let from = end;
  if (text[from - 1] === ")" || text[from - 1] === "]") {
    let depth = 0;
    while (from > 0) {
      const c = text[--from]!;
      if (c === ")" || c === "]") depth++;
      if (c === "(" || c === "[") depth--;
      if (depth === 0) break;
    }
    if (depth !== 0) return null;
  }
  while (from > 0 && /[\p{L}\p{N}_.]/u.test(text[from - 1]!)) from--;
  return from < end ? [from, end] : null;
}
