// The program at the stop: changed lines marked, a diff with what was removed, and two stops compared: side by side, or as
// one program where there is no room for two.

import type { Context, Pane } from "../context";
import { changedSpans, diffLines } from "../diff";
import { h } from "../dom";
import { sampled } from "../extents";
import { level } from "../level";
import { blockOf } from "../links";
import { Listing } from "../listing";
import type { Shown } from "../listing_rows";
import { definePane } from "../pane";
import { definitionRows } from "../python_lines";
import { beside } from "../stages_beside";
import { type Doc, type Line, type Stop, stopBefore, stopName, wrongness } from "../record";
import { compared } from "../state";
import { repairSpan } from "../tokens";
import { tabs } from "../tabs";

/** The repair terms of a program, by line: only in blocks that carry their own buffer on. */
export function repairs(stop: Stop): Map<Line, [number, number]> {
  const found = new Map<Line, [number, number]>();
  if (stop.kind !== "loops" || stop.wrong) return found;
  const lines = stop.lines;
  for (let n = 0; n < lines.length; ) {
    const from = n;
    const { node, kind } = lines[n]!;
    while (n < lines.length && lines[n]!.node === node) n++;
    if (kind !== "store" || !blockOf(node)) continue;
    const buffer = /^\s*([\p{L}_][\p{L}\p{N}_]*)/u.exec(lines[from]!.text)?.[1];
    const statement = lines.slice(from, n).map((l) => l.text).join("\n");
    // What stands left of the first "=" is the buffer itself.
    const span = buffer ? repairSpan(statement, buffer) : null;
    if (!span) continue;
    let start = 0;
    for (const line of lines.slice(from, n)) {
      const a = Math.max(span[0] - start, line.text.length - line.text.trimStart().length);
      const b = Math.min(span[1] - start, line.text.length);
      if (a < b) found.set(line, [a, b]);
      start += line.text.length + 1;
    }
  }
  return found;
}

/** The stop's lines with what changed since `before`; removed ones too where `removed` is wanted. */
export function marked(stop: Stop, before: Stop | null, removed: boolean): Shown[] {
  const terms = repairs(stop);
  const one = (line: Line, number: number): Shown => ({ node: line.node, text: line.text, number, op: "same", repair: terms.get(line) ?? null });
  if (!before) return stop.lines.map((l, n) => one(l, n + 1));
  const shown: Shown[] = [];
  for (const row of diffLines(before.lines, stop.lines)) {
    const old = row.left === null ? null : before.lines[row.left]!;
    if (row.right === null) {
      if (removed) shown.push({ node: old!.node, text: old!.text, number: null, op: "del" });
      continue;
    }
    const line = stop.lines[row.right]!;
    if (removed && row.op === "change") shown.push({ node: old!.node, text: old!.text, number: null, op: "del" });
    const spans = row.op === "change" ? changedSpans(old!.text, line.text) : [];
    shown.push({ ...one(line, row.right + 1), op: row.op, spans });
  }
  return shown;
}

/** Both sides of a comparison, with gaps so that what is the same stands side by side.

Of two stages of the compiler what belongs together stands side by side, from row `first` on; nothing "changed" between them. */
export function sideBySide(left: Stop, right: Stop): { left: Shown[]; right: Shown[]; changed: number; first: number } {
  const gap: Shown = { node: "", text: "", number: null, op: "same", gap: true };
  if (left.kind !== right.kind) {
    const [a, b] = [marked(left, null, false), marked(right, null, false)];
    const { rows, first } = beside(left.lines, right.lines);
    return { left: rows.map(([l]) => (l === null ? gap : a[l]!)), right: rows.map(([, r]) => (r === null ? gap : b[r]!)), changed: -1, first };
  }
  const terms = repairs(right);
  const out = { left: [] as Shown[], right: [] as Shown[], changed: 0, first: 0 };
  for (const { op, left: l, right: r } of diffLines(left.lines, right.lines)) {
    if (op !== "same") out.changed++;
    const a = l === null ? null : left.lines[l]!;
    const b = r === null ? null : right.lines[r]!;
    const spans = (now: Line, other: Line | null) => (op === "change" && other ? changedSpans(other.text, now.text) : []);
    out.left.push(a ? { node: a.node, text: a.text, number: l! + 1, op: op === "change" ? "change" : op, spans: spans(a, b) } : gap);
    out.right.push(b ? { node: b.node, text: b.text, number: r! + 1, op, spans: spans(b, a), repair: terms.get(b) ?? null } : gap);
  }
  return out;
}

function programPane(ctx: Context): Pane {
  const listing = new Listing(ctx, "program", "program");
  const definition = new Listing(ctx, "defn", "definition");
  const scroller = h("div", { class: "cmp" });
  const left = new Listing(ctx, "cmpl", "left", scroller);
  const right = new Listing(ctx, "cmpr", "right", scroller);
  scroller.append(left.el, right.el);
  Listing.beside(left, right);
  left.onFill = right.onFill = () => level(scroller);
  let width = 0;
  let begin = () => {};
  const watch = new ResizeObserver(([entry]) => {
    const first = width === 0;
    if (entry!.contentRect.width === width) return;
    width = entry!.contentRect.width;
    level(scroller);
    // A widget may be drawn before it is in the page, where nothing has a height yet.
    if (first) begin();
  });
  watch.observe(scroller);
  const merged = () => ctx.root.classList.contains("merged");
  const about = h("span", { class: "dim" });
  const diff = h("button", { type: "button", class: "small", onclick: () => ctx.dispatch({ type: "tab", slot: "diff", tab: ctx.view.panes.diff === "on" ? "off" : "on" }) }, "Diff");
  const bar = tabs(ctx, "program", "Program", [
    { id: "loops", label: "Loops" },
    { id: "definition", label: "Definition" },
  ]);
  bar.extra.append(about, diff);
  const note = h("p", { class: "note" });
  const choose = h("div", { class: "choose" });
  const body = h("div", { class: "body", role: "tabpanel" });
  /** Shows what is new at a stop; of the kernel's source its first kernel, past imports and helpers. */
  const opened = (stop: Stop) => (stop.kind === "triton" ? listing.startAt(/^def [^_]/) : listing.revealFirstChange());
  // A widget may be drawn before it is in the page, or before its panes have their sizes: then nothing could be scrolled.
  let room = 0;
  const sized = new ResizeObserver(([entry]) => {
    const { height } = entry!.contentRect;
    const first = height > 0 && room === 0;
    room = height;
    if (first && stopDrawn && !ctx.view.compare && ctx.view.panes.program !== "definition") ctx.related.empty ? opened(stopDrawn) : (lit = null, ctx.refresh());
  });
  // What is there already stays: to attach thousands of lines again takes longer than a step may.
  const put = (child: HTMLElement) => void (body.firstChild === child || body.replaceChildren(child));
  const el = h("section", { class: "pane first", "aria-label": "program" }, bar.el, choose, note, body);
  sized.observe(body);
  let drawn = "";
  let drawnDoc: Doc | null = null;
  let stopDrawn: Stop | null = null;
  let lit: unknown = null;
  let searched = "";
  let chooserFor: Doc | null = null;

  const select = (side: "left" | "right") => {
    const s = h("select", { "aria-label": `${side} side`, onchange: () => ctx.dispatch({ type: "compare", [side]: s.value }) });
    return s;
  };
  const leftSelect = select("left");
  const rightSelect = select("right");
  const count = h("span", { class: "dim", role: "status" });
  /** Brings the next run of lines that differ into view; the first one at first. */
  function jump(by: 1 | -1): void {
    const now = (merged() ? listing : right).toChange(by);
    if (now) ctx.announce(`difference ${now.at} of ${now.of}`);
  }
  const toPrevious = h("button", { type: "button", class: "mini", "aria-label": "previous difference", title: "previous difference", onclick: () => jump(-1) }, "↑");
  const toNext = h("button", { type: "button", class: "mini", "aria-label": "next difference", title: "next difference", onclick: () => jump(1) }, "↓");
  choose.append(
    h("label", {}, "compare ", leftSelect),
    h("label", {}, "with ", rightSelect),
    h("button", { type: "button", class: "small", title: "swap the sides", "aria-label": "swap the sides", onclick: () => { const c = compared(ctx.view, ctx.doc); if (c) ctx.dispatch({ type: "compare", left: c.right.key, right: c.left.key }); } }, "⇄"),
    h("span", { class: "jumps" }, count, toPrevious, toNext),
    h("button", { type: "button", class: "small end", "aria-label": "close the comparison", onclick: () => ctx.dispatch({ type: "compareOff" }) }, "✕"),
  );

  return {
    el,
    destroy: () => (watch.disconnect(), sized.disconnect()),
    update() {
      const { view, stop, doc } = ctx;
      const pair = compared(view, doc);
      const tab = pair ? "compare" : view.panes.program === "definition" ? "definition" : "loops";
      bar.rename("loops", stop.kind === "loops" ? "Loops" : stop.kind === "htile" ? "HTile" : doc.language);
      bar.update(tab === "compare" ? "loops" : tab);
      choose.hidden = !pair;
      const before = stopBefore(doc, stop);
      diff.setAttribute("aria-pressed", String(view.panes.diff === "on"));
      diff.hidden = tab !== "loops" || !before;
      about.textContent = tab === "loops" && before ? `changed since ${before.letter || before.title} ${before.letter ? `· ${before.title}` : ""}`.trim() : "";
      if (pair) {
        if (chooserFor !== doc) {
          for (const s of [leftSelect, rightSelect]) {
            s.replaceChildren(
              h("option", { value: "" }, s === leftSelect ? "the previous phase" : "the current phase"),
              ...doc.stops.map((x) => h("option", { value: x.key }, stopName(x))),
            );
          }
          chooserFor = doc;
        }
        leftSelect.value = view.compare!.left;
        rightSelect.value = view.compare!.right;
      }
      note.replaceChildren();
      if (!pair && stop.error) note.append(h("b", { class: "bad" }, "✗ refused: "), stop.error.replace(/\n\s*help: /, ". Help: "));
      else if (!pair && tab === "loops" && stop.note) {
        if (stop.wrong) note.append(h("b", { class: "bad" }, `! ${wrongness(stop)} `), "· ");
        note.append(stop.note);
      }
      // Loops and definitions have a number where the operator has a name.
      const sample = !pair && (tab === "definition" || stop.kind === "loops") ? sampled(doc.trace.operator) : "";
      if (sample) note.append(`${note.childNodes.length ? " " : ""}Shown at ${sample}; the kernel takes every value.`);
      note.hidden = !note.childNodes.length;

      const one = pair !== null && merged();
      const key = `${tab}|${one}|${stop.key}|${view.panes.diff}|${pair?.left.key}|${pair?.right.key}`;
      const redraw = key !== drawn || drawnDoc !== doc;
      if (redraw) {
        if (pair) {
          const rows = sideBySide(pair.left, pair.right);
          if (one) {
            listing.show(marked(pair.right, pair.left, true), pair.right);
            listing.label(`${stopName(pair.right)}, with what differs from ${stopName(pair.left)}`);
          } else {
            left.show(rows.left, pair.left);
            right.show(rows.right, pair.right);
            left.label(stopName(pair.left));
            right.label(stopName(pair.right));
          }
          const stages = rows.changed < 0;
          for (const b of [toPrevious, toNext]) b.hidden = stages;
          for (const b of [toPrevious, toNext]) b.disabled = !rows.changed;
          count.textContent = stages ? "two stages: linked lines stand side by side" : rows.changed ? `${rows.changed} ${rows.changed === 1 ? "line differs" : "lines differ"}` : "the same";
          put(one ? listing.el : scroller);
          if (!one) level(scroller);
          begin = () => (stages ? right.toTop(rows.first) : (one ? listing : right).revealFirstChange());
          begin();
        } else if (tab === "definition") {
          definition.show(definitionRows(doc), doc.stops[0]!);
          put(definition.el);
        } else {
          put(listing.el);
          listing.label(`${stop.kind === "loops" ? "loop program" : stop.kind === "htile" ? "HTile program" : `${doc.language} source`}, ${stopName(stop)}`);
          listing.show(marked(stop, before, view.panes.diff === "on"), stop);
          if (stopDrawn !== stop) opened(stop);
        }
        drawn = key;
        drawnDoc = doc;
        stopDrawn = stop;
      }
      for (const shown of pair && !one ? [left, right] : [listing, definition]) shown.refold();
      if (redraw || lit !== ctx.related || searched !== view.search) {
        const scroll = lit !== ctx.related && ctx.source !== "program" && ctx.source !== "step";
        const set = (s: Stop) => (s.kind === "loops" ? ctx.related.loops : s.kind === "htile" ? ctx.related.htile : ctx.related.triton);
        if (pair && one) listing.light(set(pair.right), scroll);
        else if (pair) {
          left.light(set(pair.left), scroll && ctx.source !== "cmpl" && ctx.source !== "cmpr");
          right.light(set(pair.right), scroll && ctx.source !== "cmpl" && ctx.source !== "cmpr");
        } else if (tab === "definition") definition.light(new Set([...ctx.related.python, ...ctx.related.definition]), scroll && ctx.source !== "defn");
        else listing.light(set(stop), scroll);
        lit = ctx.related;
        searched = view.search;
      }
    },
  };
}

export const pane = definePane({
  id: "program",
  title: "Program",
  help: "The loop program at the selected phase, with the changes since the previous one, or two phases side by side.",
  place: { column: "left", weight: 1.15, stays: true },
  order: 10,
  make: programPane,
  keys: [{ keys: ["D"], text: "compare", explained: "compare two phases", order: 40, press: { d: (ctx) => ctx.dispatch(ctx.view.compare ? { type: "compareOff" } : { type: "compare" }) } }],
});
