// The kernel's machine code for a target that one picks: compiled by Python when asked, every line linked to Triton's.

import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { type CodeRow, type MachineCode, figures, firstRow, litRows, markOf, nextPlace, rowsOf } from "../machine_code";
import { machineListing } from "../machine_listing";
import { bringUp, definePane } from "../pane";
import { matcher } from "../search";

interface Data {
  default: string;
  targets: { name: string; stages: string[] }[];
  /** What a saved page has. */
  kept: MachineCode[];
}
const STAGE: Record<string, string> = { ttir: "TTIR", ttgir: "TTGIR", llir: "LLVM IR", ptx: "PTX", sass: "SASS", amdgcn: "AMDGCN" };
/** Programs whose code is remembered: those of the last edits. */
const REMEMBERED = 8;

const dataOf = (ctx: Context): Data => {
  const found = ctx.payload.panes.machine as Partial<Data> | undefined;
  const given = ctx.payload.panes.machine_kept;
  const kept = Array.isArray(given) ? (given as MachineCode[]) : [];
  const all = found?.targets ?? [];
  const has = (target: string, stage: string) => kept.some((code) => code.target === target && code.stage === stage);
  // A page without Python has what was compiled when it was made.
  const targets = ctx.payload.live ? all : all.map((t) => ({ name: t.name, stages: t.stages.filter((s) => has(t.name, s)) })).filter((t) => t.stages.length);
  return { default: found?.default ?? "", targets, kept };
};

function machinePane(ctx: Context): Pane {
  /** By the module's text, then by target and stage. */
  const made = new Map<string, Map<string, MachineCode>>();
  const waiting = new Map<number, { source: string; target: string; stage: string; since: number }>();
  let drawn: MachineCode | null = null;
  let drawnDoc: unknown = null;
  let rows: CodeRow[] = [];
  let lit: number[] = [];
  let related: unknown = null;
  let searched = "";
  let tick: ReturnType<typeof setInterval> | undefined;

  const target = h("select", { "aria-label": "target", onchange: () => choose("target", target.value) });
  const stages = h("span", { class: "tools", role: "group", "aria-label": "stage" });
  const compile = h("button", { type: "button", class: "small p", onclick: () => ask() }, "Compile");
  const count = h("span", { class: "dim", title: "instructions: in the machine code, each counted once" });
  const back = h("button", { type: "button", class: "mini", "aria-label": "linked line before", title: "linked line before", onclick: () => walk(-1) }, "↑");
  const next = h("button", { type: "button", class: "mini", "aria-label": "next linked line", title: "next linked line", onclick: () => walk(1) }, "↓");
  const linked = h("span", { class: "end tools" }, count, back, next);
  const bar = h("div", { class: "choose" }, h("label", {}, "target ", target), stages, compile, linked);
  const strip = h("div", { class: "figures" });
  const progress = h("progress", { "aria-label": "compiling" });
  const says = h("span", { class: "dim", role: "status" });
  const stop = h("button", { type: "button", class: "small", onclick: () => ctx.send({ kind: "machine_cancel" }) }, "Cancel");
  const busy = h("div", { class: "progress" }, progress, says, stop);
  const note = h("p", { class: "note" });
  const listing = machineListing(ctx.uid, (row, add) => row.home && ctx.dispatch({ type: "select", ids: [row.home], add }, "machine"));
  const el = h("div", { class: "machined" }, bar, strip, busy, note, listing.el);

  const source = () => ctx.doc.trace.kernel?.source ?? "";
  const key = (t: string, s: string) => `${t} ${s}`;
  function chosen(): { target: string; stage: string; stages: string[] } | null {
    const data = dataOf(ctx);
    const { panes } = ctx.view;
    const at = data.targets.find((t) => t.name === panes["machine.target"]) ?? data.targets.find((t) => t.name === data.default) ?? data.targets[0];
    if (!at) return null;
    return { target: at.name, stage: at.stages.includes(panes["machine.stage"] ?? "") ? panes["machine.stage"]! : at.stages[at.stages.length - 1]!, stages: at.stages };
  }
  const choose = (what: "target" | "stage", to: string) => ctx.dispatch({ type: "tab", slot: `machine.${what}`, tab: to });
  const codes = (): Map<string, MachineCode> => {
    let found = made.get(source());
    if (!found) {
      found = new Map(dataOf(ctx).kept.map((code) => [key(code.target, code.stage), code]));
      made.set(source(), found);
      if (made.size > REMEMBERED) made.delete(made.keys().next().value!);
    }
    return found;
  };
  const asked = (t: string, s: string) => [...waiting.values()].some((w) => w.source === source() && w.target === t && w.stage === s);

  function ask(): void {
    const at = chosen();
    if (!at || !ctx.live || asked(at.target, at.stage)) return;
    const seq = ctx.send({ kind: "machine", target: at.target, stage: at.stage });
    if (seq) waiting.set(seq, { source: source(), target: at.target, stage: at.stage, since: Date.now() });
    tick ??= setInterval(() => waiting.size && time(), 1000);
    ctx.refresh();
  }
  /** How long the page has waited for what is chosen. */
  function time(): void {
    const at = chosen();
    const found = at && [...waiting.values()].find((w) => w.source === source() && w.target === at.target && w.stage === at.stage);
    busy.hidden = !found;
    if (found) says.textContent = `Triton compiles for ${found.target}: ${Math.round((Date.now() - found.since) / 1000)} s`;
  }
  ctx.onAnswer((m: Message) => {
    const asked = waiting.get(m.seq);
    if (!asked || m.kind === "later") return;
    waiting.delete(m.seq);
    if (!waiting.size) (clearInterval(tick), (tick = undefined));
    const code: MachineCode = m.kind === "machine" ? (m as unknown as MachineCode) : { target: asked.target, stage: asked.stage, error: { message: String(m.message ?? "no answer") } };
    const of = made.get(asked.source);
    of?.set(key(asked.target, asked.stage), code);
    ctx.announce(code.error ? `not compiled: ${code.error.message}` : `compiled for ${asked.target}`);
    ctx.refresh();
  });

  function walk(by: 1 | -1): void {
    const hit = matcher(ctx.view.search);
    const places = lit.length || !hit ? lit : rows.flatMap((row, n) => (hit(row.text) ? [n] : []));
    listing.go(nextPlace(places, listing.now(), by));
  }
  function toMark(mark: string): void {
    listing.go(nextPlace(rows.flatMap((row, n) => (markOf(row.kind) === mark ? [n] : [])), listing.now(), 1));
  }
  function drawStrip(code: MachineCode | null): void {
    const kernels = code?.kernels ?? [];
    strip.replaceChildren(
      ...kernels.map((kernel) =>
        h("div", {}, kernels.length > 1 && h("b", {}, kernel.name), ...figures(kernel.resources).map((f) => {
          const css = `chip${f.bad ? " bad" : ""}`;
          const press = f.mark && rows.some((row) => markOf(row.kind) === f.mark);
          return press ? h("button", { type: "button", class: css, title: f.title, onclick: () => toMark(f.mark!) }, f.text) : h("span", { class: css, title: f.title }, f.text);
        })),
      ),
    );
  }

  return {
    el,
    destroy: () => (clearInterval(tick), listing.destroy()),
    update() {
      const at = chosen();
      bar.hidden = !at;
      if (!at) {
        strip.hidden = busy.hidden = listing.el.hidden = true;
        note.hidden = false;
        note.textContent = "There is no kernel to compile.";
        return;
      }
      const { targets } = dataOf(ctx);
      const names = targets.map((t) => t.name).join(" ");
      if (target.dataset.names !== names) {
        target.replaceChildren(...targets.map((t) => h("option", { value: t.name }, t.name)));
        target.dataset.names = names;
      }
      target.value = at.target;
      const shown = `${at.stages.join(" ")}`;
      if (stages.dataset.names !== shown) {
        stages.replaceChildren(...at.stages.map((s) => h("button", { type: "button", class: "small", "data-stage": s, onclick: () => choose("stage", s) }, STAGE[s] ?? s)));
        stages.dataset.names = shown;
      }
      for (const b of stages.querySelectorAll("button")) b.setAttribute("aria-pressed", String(b.dataset.stage === at.stage));

      const code = codes().get(key(at.target, at.stage)) ?? null;
      if (!ctx.live) waiting.clear();
      // Once a target is compiled its other stages are only a question.
      if (!code && ctx.live && !asked(at.target, at.stage) && [...codes().values()].some((c) => c.target === at.target && !c.error)) return ask();
      const pending = asked(at.target, at.stage);
      time();
      compile.hidden = !ctx.live || (code !== null && !code.error);
      compile.disabled = pending;
      compile.textContent = code?.error ? "Try again" : `Compile for ${at.target}`;
      note.hidden = pending || (code !== null && !code.error);
      note.classList.toggle("bad", Boolean(code?.error));
      note.textContent = code?.error
        ? `✗ ${code.error.message}${code.error.help ? `. Help: ${code.error.help}` : ""}`
        : ctx.live ? "Triton compiles the kernel for the target, without a GPU. This takes seconds; the page stays usable meanwhile."
        : "Compiling needs a running Python kernel.";
      const good = code && !code.error ? code : null;
      if (drawn !== good || drawnDoc !== ctx.doc) {
        rows = good ? rowsOf(good, ctx.doc) : [];
        strip.hidden = listing.el.hidden = !good; // a hidden listing cannot be scrolled
        drawStrip(good);
        listing.show(rows, at.stage, firstRow(rows));
        drawn = good;
        drawnDoc = ctx.doc;
        related = null;
      }
      strip.hidden = listing.el.hidden = linked.hidden = !good;
      if (!good) return;
      if (related !== ctx.related || searched !== ctx.view.search) {
        const moved = related !== ctx.related && ctx.source !== "machine" && ctx.source !== "step";
        lit = litRows(rows, ctx.related.triton);
        const own = new Set(litRows(rows, new Set(ctx.view.selection)));
        listing.light(new Set(lit), own, matcher(ctx.view.search));
        const first = lit.find((n) => own.has(n)) ?? lit[0];
        if (moved && first !== undefined) listing.reveal(first);
        related = ctx.related;
        searched = ctx.view.search;
      }
      const instructions = good.kernels!.reduce((all, k) => all + k.resources.counts.instructions, 0);
      count.textContent = lit.length ? `${lit.length} linked lines` : ctx.related.empty ? `${instructions} instructions` : "no linked line";
      back.disabled = next.disabled = !lit.length && !ctx.view.search;
    },
  };
}

export const pane = definePane({
  id: "machine",
  title: "Machine",
  help: "The kernel compiled for a GPU that need not be here, from Triton IR to SASS or AMDGCN: lines linked to Triton's; registers, shared memory, occupancy, instructions.",
  place: { tabOf: "graph" },
  order: 60,
  make: machinePane,
  available: (ctx) => dataOf(ctx).targets.length > 0,
  roomy: true,
  keys: [{ keys: ["M"], text: "machine code", order: 75, more: true, press: { m: (ctx) => { if (pane.available!(ctx)) bringUp(ctx, pane); } } }],
  style: `
.nx .machined { display: flex; flex-direction: column; flex: 1; min-height: 0; }
.nx .machined > .choose { gap: 6px 10px; flex: none; }
.nx .machined .progress { flex: none; }
.nx .machined .figures { flex: none; padding: 6px 12px; border-bottom: 1px solid var(--line); display: grid; gap: 5px; max-height: 40%; overflow: auto; }
.nx .machined .figures div { display: flex; flex-wrap: wrap; gap: 4px; align-items: center; }
.nx .machined .figures b { font: 600 12px var(--mono); margin-right: 4px; }
.nx .machined .figures .chip { padding: 0 8px; line-height: 1.55; max-width: none; }
.nx .machined .figures button.chip { color: var(--ink); }
.nx .mrows { position: relative; min-width: 100%; font: 12px/20px var(--mono); contain: layout style; }
.nx .mrows .ln { position: absolute; left: 0; right: 0; height: 20px; min-height: 0; }
.nx .mrows .ln.head { font-weight: 600; background: var(--soft); }
.nx .mrows .ln u { color: var(--accent); }
.nx .mrows:focus-visible { outline: none; }
.nx .code.machine:has(.mrows:focus-visible) { outline: 2px solid var(--accent); outline-offset: -2px; }
.nx .mrows .ln.act { outline: 1px dashed var(--accent); outline-offset: -1px; }
.nx .t-r { color: var(--right); }
`,
});
