// What an edit changed, or what lies between two steps: numbers before and after, and the code by linked lines.

import { type RawVersion, type Side, STAGES, VERSIONS, type Version, figures, launches, readVersion, sideName, stageOf, stepChanges, tiles } from "../changes_data";
import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { level } from "../level";
import { type Compared, compareStops, countText, lastOf } from "../linked";
import { Listing } from "../listing";
import { kernelKey, keepMeasured, measuredOf } from "../measured";
import { bringUp, definePane } from "../pane";
import { type Doc, type StepEdit, type Stop, type TimingRow, stopName } from "../record";
import { bytesText, hbm, opsText, ratioText, sizeText, usText } from "../traffic_data";
import type { Found } from "../traffic_data";
import { trafficOf } from "../traffic_store";

interface Needs {
  error: string;
  launches: { kernel: string; registers: number; spilled: number; shared: number; warps: number; blocks: number }[];
}
type Cell = string | Node;

function changesPane(ctx: Context): Pane {
  const traffic = trafficOf(ctx);
  const chooseFrom = h("select", { "aria-label": "before", onchange: () => ctx.dispatch({ type: "tab", slot: "changesFrom", tab: chooseFrom.value }) });
  const chooseTo = h("select", { "aria-label": "after", onchange: () => ctx.dispatch({ type: "tab", slot: "changesTo", tab: chooseTo.value }) });
  const views = (["numbers", "code"] as const).map((name) => [name, h("button", { type: "button", class: "small", onclick: () => ctx.dispatch({ type: "tab", slot: "changes", tab: name }) }, name === "numbers" ? "Numbers" : "Code")] as const);
  const tools = h("span", { class: "tools" }, h("span", { class: "seg", role: "group", "aria-label": "show" }, ...views.map(([, b]) => b)));
  const counted = h("span", { class: "dim" });
  const choose = h("div", { class: "choose" }, h("label", {}, "from ", chooseFrom), h("label", {}, "to ", chooseTo), counted);
  const scroller = h("div", { class: "cmp" });
  const left = new Listing(ctx, "chgl", "code before", scroller, "before:");
  const right = new Listing(ctx, "chgr", "code after", scroller);
  scroller.append(left.el, right.el);
  Listing.beside(left, right);
  left.onFill = right.onFill = () => level(scroller);
  const numbers = h("div", { class: "numbers", tabindex: 0, role: "group", "aria-label": "figures before and after" });
  const note = h("p", { class: "note" });
  const el = h("div", { class: "changes" }, choose, note, numbers, scroller);

  /** Versions of the record that is shown, the questions under way, and why there is no answer. */
  let of: Doc | null = null;
  let versions = new Map<string, Version>();
  let asked = new Map<string, number>();
  let failed = "";
  let needs = new Map<string, Needs | null>();
  let needsSeq = 0;
  let needsNote = "";
  let timing = { seq: 0, running: false, note: "" };
  let timed = new Map<string, string>();
  let drawn: unknown[] = [];
  let compared: Compared | null = null;
  let lit: unknown = null;

  const given = (): Record<string, RawVersion | null> => {
    const found = ctx.payload.panes.changes;
    return typeof found === "object" && found !== null && !("error" in found) ? (found as Record<string, RawVersion | null>) : {};
  };
  function version(name: string): Version | null {
    const known = versions.get(name);
    if (known) return known;
    const here = given()[name];
    if (here) {
      const read = readVersion(here);
      versions.set(name, read);
      return read;
    }
    if (!asked.has(name)) asked.set(name, ctx.send({ kind: "changes", version: name }));
    return null;
  }

  ctx.onAnswer((m: Message) => {
    if (m.kind === "changes" && m.seq === asked.get(String(m.version)) && m.side) {
      const name = String(m.version);
      const read = readVersion(m.side as RawVersion);
      versions.set(name, read);
      // The code is shown first: to count takes seconds.
      if (!read.traffic) asked.set(`traffic of ${name}`, ctx.send({ kind: "changes_traffic", version: name }));
    } else if (m.kind === "changes_traffic" && m.seq === asked.get(`traffic of ${m.version}`)) {
      const known = versions.get(String(m.version));
      if (known && m.traffic) versions.set(String(m.version), { ...known, traffic: m.traffic as Found });
    }
    else if (m.kind === "resources" && m.seq === needsSeq) {
      const found = m.kernels as Record<string, Needs | null>;
      for (const [name, need] of Object.entries(found)) needs.set(`${name} ${m.gpu}`, need);
      needsNote = Object.values(found).map((need) => need?.error).find(Boolean) ?? "";
    } else if (m.kind === "timing" && m.seq === timing.seq) {
      keepMeasured(ctx, (m.rows as TimingRow[] | undefined) ?? [], timed);
      timing = { ...timing, running: m.state === "running", note: String(m.note ?? "") };
    } else if (m.kind === "failed" && [...asked.values(), needsSeq, timing.seq].includes(m.seq)) {
      if (m.seq === needsSeq) needsNote = String(m.message);
      else if (m.seq === timing.seq) timing = { ...timing, running: false, note: String(m.message) };
      else failed = String(m.message);
    } else return;
    drawn = [];
    ctx.refresh();
  });

  /** The stop that `key` names, else the one before or at the view's. */
  const stopAt = (key: string | undefined, otherwise: Stop): Stop => (key && ctx.doc.byKey.get(key)) || otherwise;

  /** Which earlier version is compared; "" for two steps of this schedule. */
  function chosenVersion(): string {
    const names = Object.keys(given());
    const wanted = ctx.view.panes.changesFrom ?? "";
    return names.includes(wanted) ? wanted : wanted && ctx.doc.byKey.has(wanted) ? "" : (names[0] ?? "");
  }

  function sides(name: string): [Side, Side] | null {
    const now = ctx.payload.editor?.steps ?? null;
    if (name) {
      const other = version(name);
      if (!other) return null;
      const stage = stageOf(other.doc, ctx.doc, ctx.view.panes.changesTo);
      const [a, b] = [lastOf(other.doc, stage), lastOf(ctx.doc, stage)];
      if (!a || !b) return null;
      return [
        { name: VERSIONS[name] ?? name, doc: other.doc, stop: a, traffic: other.traffic, steps: other.steps },
        { name: "now", doc: ctx.doc, stop: b, traffic: traffic.get(), steps: now ?? stepsOf(ctx.doc) },
      ];
    }
    const found = traffic.get();
    const first = ctx.doc.stops[0]!;
    // At the definition, where nothing has changed yet: what all of the compilation changes.
    const to = stopAt(ctx.view.panes.changesTo, ctx.stop === first ? ctx.doc.stops.at(-1)! : ctx.stop);
    const from = stopAt(ctx.view.panes.changesFrom, first);
    const side = (stop: Stop): Side => ({ name: stopName(stop), doc: ctx.doc, stop, traffic: found, steps: null });
    return [side(from), side(to)];
  }
  const stepsOf = (doc: Doc): StepEdit[] => doc.trace.steps.filter((s) => s.primitive !== "definition" && !s.error).map((s) => ({ primitive: s.primitive, arguments: s.arguments }));

  function choosers(name: string, pair: [Side, Side] | null): void {
    const option = (value: string, text: string) => h("option", { value }, text);
    const stops = () => ctx.doc.stops.map((s) => option(s.key, stopName(s)));
    const earlier = Object.keys(given()).map((n) => option(n, VERSIONS[n] ?? n));
    const steps = h("optgroup", { label: "this schedule" }, ...stops());
    chooseFrom.replaceChildren(...(earlier.length ? [h("optgroup", { label: "the schedule" }, ...earlier), steps] : stops()));
    const other = name ? versions.get(name) : null;
    const stages = STAGES.filter((kind) => other && lastOf(other.doc, kind) && lastOf(ctx.doc, kind));
    const label = { triton: `${ctx.doc.language} now`, htile: "HTile now", loops: "the loops now" };
    chooseTo.replaceChildren(...(name ? stages.map((kind) => option(kind, label[kind])) : stops()));
    chooseFrom.value = name || pair?.[0].stop.key || "";
    chooseTo.value = name ? (pair?.[1].stop.kind ?? "") : (pair?.[1].stop.key ?? "");
  }

  /** One figure of every launch, or why it is not known. */
  const needText = (need: Needs | null | undefined, of: (launch: Needs["launches"][number]) => string): string => (need ? need.launches.map(of).join("; ") || need.error : "");
  const timeText = (row: TimingRow | null): string => (row ? `${usText(row.us)}${row.spread ? ` ± ${usText(row.spread)}` : ""}` : "");

  function table(pair: [Side, Side], name: string): Node[] {
    const gpu = ctx.view.panes.gpu;
    const [a, b] = pair.map((side) => figures(side, gpu)) as [ReturnType<typeof figures>, ReturnType<typeof figures>];
    const rows: [string, Cell, Cell, string][] = [];
    const amount = (label: string, of: (f: NonNullable<typeof a>) => number, text: (n: number) => string) => {
      if (a && b) rows.push([label, text(of(a)), text(of(b)), ratioText(of(a), of(b))]);
    };
    amount("HBM", (f) => hbm(f.at.counts), bytesText);
    amount("read from HBM", (f) => f.at.counts.read, bytesText);
    amount("written to HBM", (f) => f.at.counts.written, bytesText);
    amount("loaded and stored", (f) => f.at.counts.moved, bytesText);
    amount("on chip", (f) => f.at.counts.chip, bytesText);
    amount("operations", (f) => f.at.counts.operations, opsText);
    if (a && b && a.at.us !== null && b.at.us !== null) rows.push([`at least, ${a.gpu.name.toUpperCase()}`, usText(a.at.us), usText(b.at.us), a.at.bound === b.at.bound ? `${ratioText(a.at.us, b.at.us)}` : `bound by ${a.at.bound}, then by ${b.at.bound}`]);
    amount("kernels", (f) => f.at.counts.stages.length, String);
    const both = (label: string, of: (side: Side) => string) => {
      const [x, y] = pair.map(of) as [string, string];
      if (x || y) rows.push([label, x || "–", y || "–", x === y ? "the same" : ""]);
    };
    both("tiles", (s) => tiles(s.doc, s.stop));
    both("launches", (s) => launches(s.doc, s.stop));
    const key = (a ?? b)?.gpu.name ?? "";
    if (name && needs.has(`now ${key}`)) {
      const [x, y] = [needs.get(`${name} ${key}`), needs.get(`now ${key}`)];
      const need = (label: string, of: Parameters<typeof needText>[1]) => { const [p, q] = [needText(x, of), needText(y, of)]; rows.push([label, p || "–", q || "–", p === q ? "the same" : ""]); };
      need("registers per thread", (l) => `${l.registers}${l.spilled ? ` (${bytesText(l.spilled)} spilled)` : ""}`);
      need("shared memory per block", (l) => sizeText(l.shared));
      need("blocks per multiprocessor", (l) => String(l.blocks));
    }
    const times = pair.map((s) => (s.steps ? measuredOf(ctx, s.doc) : null));
    if (times.some(Boolean)) rows.push(["measured", timeText(times[0]!) || "–", timeText(times[1]!) || "–", times[0]?.us && times[1]?.us ? ratioText(times[0].us, times[1].us) : ""]);
    return [
      h("table", { class: "times" },
        h("thead", {}, h("tr", {}, ...["", sideName(pair[0]), sideName(pair[1]), "change"].map((t) => (t ? h("th", { scope: "col" }, t) : h("td"))))),
        h("tbody", {}, ...rows.map(([label, x, y, change]) => h("tr", { class: x === y ? "" : "diff" }, h("th", { scope: "row" }, label), h("td", {}, x), h("td", {}, y), h("td", { class: "w" }, change))))),
      ...(a && b ? [] : [h("p", { class: "note" }, traffic.note() || "Counting bytes and operations of the earlier version …")]),
    ];
  }

  function edited(pair: [Side, Side]): Node[] {
    if (!pair[0].steps || !pair[1].steps) return [];
    const changes = stepChanges(pair[0].steps, pair[1].steps);
    const spoken = { "+": "added", "−": "removed" };
    return [h("ul", { class: "edited", "aria-label": "steps that differ" }, ...changes.map(({ sign, text }) => h("li", { class: sign === "+" ? "add" : "del" }, h("span", { "aria-hidden": "true" }, `${sign} `), h("span", { class: "vh" }, `${spoken[sign]}: `), h("code", {}, text))))];
  }

  function actions(pair: [Side, Side], name: string): Node[] {
    if (!name || !ctx.live || !pair[0].steps) return [];
    const key = figures(pair[1], ctx.view.panes.gpu)?.gpu.name;
    const waiting = needsSeq > 0 && !needs.has(`now ${key}`) && !needsNote;
    const compile = h("button", { type: "button", class: "small", disabled: waiting || !key, title: "compiles both kernels to machine code, which takes seconds", onclick: () => { needsNote = ""; needsSeq = ctx.send({ kind: "resources", gpu: key, version: name }); drawn = []; ctx.refresh(); } }, waiting ? "compiling …" : "Registers and shared memory");
    const time = h("button", { type: "button", class: "small", disabled: timing.running, onclick: () => {
      timed = new Map([["this schedule", kernelKey(ctx.doc)], [VERSIONS[name] ?? name, kernelKey(pair[0].doc)]]);
      const seq = ctx.send({ kind: "time", against: [{ name: VERSIONS[name] ?? name, version: name }] });
      timing = { seq, running: seq > 0, note: "" };
      drawn = [];
      ctx.refresh();
    } }, timing.running ? "timing …" : "Time both");
    const said = [needsNote, timing.note].filter(Boolean).join(" ");
    return [h("p", { class: "acts" }, compile, " ", time), ...(said ? [h("p", { class: "note" }, said)] : [])];
  }

  function stages(pair: [Side, Side]): Node[] {
    if (!pair[0].steps) return [];
    const lines = STAGES.flatMap((kind) => {
      const [a, b] = [lastOf(pair[0].doc, kind), lastOf(pair[1].doc, kind)];
      if (!a || !b) return [];
      const label = kind === "triton" ? ctx.doc.language : kind === "htile" ? "HTile" : "loops";
      const text = countText(compareStops(pair[0].doc, a, pair[1].doc, b).counted);
      return [h("button", { type: "button", class: "link", onclick: () => { ctx.dispatch({ type: "tab", slot: "changesTo", tab: kind }); ctx.dispatch({ type: "tab", slot: "changes", tab: "code" }); } }, `${label}: ${text}`), " "];
    });
    return [h("p", { class: "acts" }, "Lines, by their links. ", ...lines)];
  }

  return {
    el,
    tools,
    update() {
      if (of !== ctx.doc) {
        of = ctx.doc;
        versions = new Map();
        asked = new Map();
        needs = new Map();
        failed = needsNote = "";
        needsSeq = 0;
        timing = { seq: 0, running: false, note: "" };
        drawn = [];
      }
      const name = chosenVersion();
      const pair = ctx.doc.complete ? sides(name) : null;
      const mode = ctx.view.panes.changes === "code" ? "code" : "numbers";
      for (const [view, b] of views) b.setAttribute("aria-pressed", String(view === mode));
      numbers.hidden = !pair || mode !== "numbers";
      scroller.hidden = !pair || mode !== "code";
      const alone = !Object.keys(given()).length;
      note.hidden = pair !== null && !alone;
      note.textContent = !pair ? failed || (!ctx.doc.complete ? "Reading the record …" : ctx.live ? "Reading the earlier version …" : "The earlier version is not in this page.") : alone ? "Two steps of this schedule. After an edit, the schedule before it is here too." : "";
      counted.textContent = "";
      if (!pair) {
        choosers(name, null);
        drawn = [];
        return;
      }
      const key = [pair[0].stop, pair[1].stop, mode, ctx.view.panes.gpu, pair[0].traffic, pair[1].traffic, ctx.payload.editor, ctx.live, name];
      if (key.some((x, n) => x !== drawn[n])) {
        choosers(name, pair);
        compared = compareStops(pair[0].doc, pair[0].stop, pair[1].doc, pair[1].stop);
        if (mode === "numbers") numbers.replaceChildren(...edited(pair), ...table(pair, name), ...stages(pair), ...actions(pair, name));
        else {
          left.show(compared.left);
          right.show(compared.right, pair[1].stop);
          left.label(sideName(pair[0]));
          right.label(sideName(pair[1]));
          // A pane that is drawn for the first time has no height yet.
          requestAnimationFrame(() => (level(scroller), right.revealFirstChange()));
        }
        drawn = key;
        lit = null;
      }
      if (mode === "code") for (const one of [left, right]) one.refold();
      counted.textContent = compared ? countText(compared.counted) : "";
      if (mode === "code" && lit !== ctx.related) {
        const kind = pair[1].stop.kind;
        const set = kind === "loops" ? ctx.related.loops : kind === "htile" ? ctx.related.htile : ctx.related.triton;
        const scroll = lit !== null && ctx.source !== "chgl" && ctx.source !== "chgr" && ctx.source !== "step";
        left.light(set, scroll);
        right.light(set, scroll);
        lit = ctx.related;
      }
    },
  };
}

export const pane = definePane({
  id: "changes",
  title: "Changes",
  help: "What an edit changed, or what lies between two steps: traffic, resources and time before and after, and the code by linked lines.",
  place: { tabOf: "graph" },
  roomy: true,
  wide: true,
  order: 37,
  make: changesPane,
  keys: [{ keys: ["C"], text: "changes", explained: "what the last edit changed", order: 57, press: { c: (ctx) => bringUp(ctx, pane) } }],
  style: `
.nx .changes { display: flex; flex-direction: column; flex: 1; min-height: 0; }
.nx .changes .numbers { flex: 1; overflow: auto; min-height: 0; padding: 6px 4px 10px; }
.nx .changes .edited { list-style: none; margin: 4px 14px 2px; padding: 0; font-size: 12px; }
.nx .changes .edited li { padding: 1px 6px; border-radius: 3px; overflow-wrap: anywhere; }
.nx .changes .edited .add { background: var(--add); }
.nx .changes .edited .del { background: var(--del); }
.nx .changes th:first-child, .nx .changes th:last-child { text-align: left; font-weight: 500; }
.nx .changes .times { margin: 6px 10px; }
.nx .changes .times th, .nx .changes .times td { padding: 3px 10px 3px 4px; white-space: normal; }
.nx .changes tr.diff td { font-weight: 600; }
.nx .changes tr:not(.diff) td { color: var(--dim); }
.nx .changes .acts { margin: 4px 14px; font-size: 12.5px; }
.nx .changes .cmp .lines { font-size: 12px; }
.nx .ln.move, .nx .ln.move:hover { background: color-mix(in srgb, var(--accent-soft) 55%, transparent); }
`,
});
