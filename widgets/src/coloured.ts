// A line of code as spans, cut where tokens, changes and the repair term begin and end.

import { h } from "./dom";
import { type Token, tokenise } from "./tokens";

/** What of a line colours it: its text, the parts that changed, and the part that is a repair term. */
export interface Painted {
  text: string;
  spans?: [number, number][];
  repair?: [number, number] | null;
}

/** Constants that lines are not cut in, which browsers would do at the sign. */
export const UNCUT = /^(-inf|".?-\w{1,12}")$/;

const tokens = new Map<string, Token[]>();

function tokensOf(text: string): Token[] {
  let found = tokens.get(text);
  if (!found) {
    if (tokens.size > 5000) tokens.clear();
    tokens.set(text, (found = tokenise(text)));
  }
  return found;
}

/** The line's text as spans, cut where tokens, changes and the repair term begin and end. */
export function coloured(line: Painted, quoted: boolean): Node[] {
  if (quoted) return [h("span", { class: "t-s" }, line.text)];
  const out: Node[] = [];
  let at = 0;
  const cuts = [...(line.spans ?? []).flat(), ...(line.repair ?? [])].sort((a, b) => a - b);
  const inside = (spans: readonly [number, number][], n: number) => spans.some(([a, b]) => a <= n && n < b);
  for (const t of tokensOf(line.text)) {
    let from = at;
    const end = at + t.text.length;
    for (const cut of [...cuts.filter((c) => c > at && c < end), end]) {
      const part = line.text.slice(from, cut);
      const name = [t.kind && `t-${t.kind}`, UNCUT.test(t.text) && "uncut", inside(line.spans ?? [], from) && "w", line.repair && inside([line.repair], from) && "rep"]
        .filter(Boolean)
        .join(" ");
      if (name) {
        const span = document.createElement("span");
        span.className = name;
        span.textContent = part;
        out.push(span);
      } else out.push(document.createTextNode(part));
      from = cut;
    }
    at = end;
  }
  return out;
}

export const spansOf = (line: Painted): string => (line.repair || line.spans?.length ? `${line.repair}|${line.spans}` : "");
