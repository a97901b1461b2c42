// The end of the line: Triton, HTile and the definition, linked to whatever is selected.

import type { Context, Pane } from "../context";
import { copyText } from "../copy";
import { h, reveal } from "../dom";
import { Listing } from "../listing";
import { definePane } from "../pane";
import { definitionRows, userLines, withoutStage } from "../python_lines";
import { ranges } from "../ranges";
import type { Doc, Line } from "../record";
import { tabs } from "../tabs";

function codePane(ctx: Context): Pane {
  const names = ["triton", "htile", "definition"] as const;
  type Name = (typeof names)[number];
  const label: Record<Name, string> = { triton: "Triton", htile: "HTile", definition: "Definition" };
  const bar = tabs(ctx, "code", "Kernel code", names.map((id) => ({ id, label: label[id] })));
  const listings = new Map(names.map((n) => [n, new Listing(ctx, n, label[n])]));
  const linked = h("span", { class: "dim" });
  const copied = h("button", { type: "button", class: "small", onclick: () => void copy() }, "Copy");
  bar.extra.append(linked, copied);
  const body = h("div", { class: "body", role: "tabpanel" });
  const empty = h("p", { class: "note" }, "No kernel was emitted for this schedule.");
  // What belongs to the selection in the stages whose tabs are not open, so that all stages are in sight at once.
  const others = h("div", { class: "stages", role: "group", "aria-label": "the same in the other stages" });
  const el = h("section", { class: "pane", "aria-label": "kernel code" }, bar.el, body, others);
  const drawn = new Map<Name, Doc>();
  let now: Name = "triton";
  let lit: unknown = null;
  let shown = "";
  /** The listing that is in the page, and where the others were scrolled to: out of the page, the browser forgets it. */
  let inPage: Name | null = null;
  const tops = new Map<Name, number>();

  const lines = (name: Name): Line[] => ({ triton: ctx.doc.triton, htile: ctx.doc.htile, definition: ctx.doc.definition })[name];

  async function copy(): Promise<void> {
    const text = now === "triton" ? (ctx.doc.trace.kernel?.source ?? "") : (now === "definition" ? definitionRows(ctx.doc) : lines(now)).map((l) => l.text).join("\n");
    await copyText(ctx, text);
    copied.textContent = "Copied";
    ctx.announce(`${label[now]} copied`);
    setTimeout(() => (copied.textContent = "Copy"), 1500);
  }

  let othersFor: unknown = null;
  let othersOf = "";
  function drawOthers(): void {
    if (othersFor === ctx.related && othersOf === now) return;
    othersFor = ctx.related;
    othersOf = now;
    const ids: Record<Name, ReadonlySet<string>> = { triton: ctx.related.triton, htile: ctx.related.htile, definition: ctx.related.definition };
    const rows: HTMLElement[] = names.filter((name) => name !== now).flatMap((name) => {
      const at = lines(name).flatMap((l, n) => (l.node && ids[name].has(l.node) ? [n] : []));
      if (!at.length) return [];
      // Of what is lit, the line that belongs to the fewest things says most.
      const weight = (n: number) => (name === "triton" ? (ctx.doc.source[n]?.nodes.length ?? 0) : 0);
      const best = at.reduce((a, b) => (weight(b) < weight(a) ? b : a));
      const text = lines(name)[best]!.text.trim();
      return [h("button", { type: "button", title: `${text}\nopen ${label[name]}`, onclick: () => ctx.dispatch({ type: "tab", slot: "code", tab: name }) }, h("b", {}, `${label[name]} ${ranges(at.map((n) => n + 1))}`), h("code", {}, text))];
    });
    const python = now === "definition" ? [] : userLines(ctx.doc).filter((l) => ctx.related.python.has(l.node));
    if (python.length) {
      const text = python[0]!.text.trim();
      rows.push(h("button", { type: "button", title: `${text}\nopen ${label.definition}`, onclick: () => ctx.dispatch({ type: "tab", slot: "code", tab: "definition" }) }, h("b", {}, `Python ${ranges(python.map((l) => l.number))}`), h("code", {}, text)));
    }
    // A line of the user's that became nothing lights nothing: that is said, or it would look like a fault.
    const bare = ctx.view.selection.map((id) => ctx.index.python.get(id)).find((l) => l && !l.definition.length && !l.within.length);
    if (bare && ctx.view.selection.length === 1) rows.push(h("p", { class: "note", role: "status" }, `${bare.number}: ${withoutStage(bare.text)}`));
    others.replaceChildren(...rows);
    others.hidden = !rows.length;
    // These rows take room from the listing, whose pressed line stays in sight.
    const own = ctx.source === now ? listings.get(now)!.el.querySelector<HTMLElement>(".ln.own") : null;
    if (own) reveal(listings.get(now)!.el, own);
  }

  return {
    el,
    update() {
      const { view, doc, related, stop } = ctx;
      const wanted = view.panes.code as Name;
      // What the program pane shows is not shown twice, unless that was asked for.
      const above = stop.kind === "triton" && !view.compare && view.panes.program !== "definition" && doc.htile.length > 0;
      now = names.includes(wanted) ? wanted : above ? "htile" : doc.triton.length || ctx.payload.kernel_error ? "triton" : "definition";
      bar.update(now);
      label.triton = doc.language;
      bar.rename("triton", doc.language);
      const listing = listings.get(now)!;
      if (drawn.get(now) !== doc) {
        const own = doc.stops.filter((s) => s.kind === now);
        const from = now === "definition" ? doc.stops[0]! : (own[own.length - 1] ?? null);
        listing.show(now === "definition" ? definitionRows(doc) : lines(now).map((l, n) => ({ node: l.node, text: l.text, number: n + 1, op: "same", weight: now === "triton" ? (doc.source[n]?.nodes.length ?? 0) : 0 })), from);
        drawn.set(now, doc);
        lit = null;
      }
      listing.refold();
      const key = `${now}|${view.search}`;
      const wrong = ctx.payload.kernel_error;
      empty.textContent = wrong ? `✗ This schedule makes no kernel yet: ${wrong.message}.${wrong.help ? ` Help: ${wrong.help}.` : ""}` : doc.complete ? "No kernel was emitted for this schedule." : "This part of the record is not here yet.";
      const want = lines(now).length ? listing.el : empty;
      const back = body.firstChild !== want;
      if (back) {
        if (inPage) tops.set(inPage, listings.get(inPage)!.el.scrollTop);
        inPage = want === empty ? null : now;
        body.replaceChildren(want);
        listing.el.scrollTop = tops.get(now) ?? 0;
        // The imports are of no interest at first, nor are the helpers, whose names begin with an underscore.
        if (inPage === "triton" && !tops.has("triton")) requestAnimationFrame(() => ctx.related.empty && listing.startAt(/^def [^_]/));
      }
      if (lit !== related || shown !== key) {
        const set = { triton: related.triton, htile: related.htile, definition: new Set([...related.python, ...related.definition]) }[now];
        listing.light(set, ctx.source !== now && (back || (ctx.source !== "step" && lit !== related)));
        lit = related;
        shown = key;
      }
      const numbers = stop.kind === "loops" && !related.empty ? stop.lines.flatMap((l, n) => (related.loops.has(l.node) ? [n + 1] : [])) : [];
      drawOthers();
      linked.textContent = numbers.length ? `linked to loops ${ranges(numbers)}` : "";
    },
  };
}

export const pane = definePane({
  id: "code",
  title: "Kernel",
  help: "HTile, the kernel's Triton or Gluon source, or the definition.",
  place: { column: "right", weight: 0.95 },
  order: 30,
  make: codePane,
  style: `
.nx .stages { flex: none; border-top: 1px solid var(--line); background: var(--soft); padding: 3px 6px; display: grid; }
.nx .stages button { border: 0; border-radius: 5px; padding: 1px 8px; display: flex; gap: 10px; align-items: baseline; text-align: left; min-width: 0; }
.nx .stages b { flex: none; font: 500 11.5px var(--sans); color: var(--accent); }
.nx .stages .note { margin: 0; padding: 2px 8px; }
.nx .stages code { font-size: 12px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; min-width: 0; }
`,
});
