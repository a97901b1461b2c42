// Timing on the device behind Python: progress, a row per kernel, cancel; and tuning below it.

import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { wire } from "../edits";
import { kernelKey, keepMeasured } from "../measured";
import { definePane } from "../pane";
import type { Editor, TimingRow } from "../record";
import { hasGpu } from "../status";
import { TUNING_STYLE, tuningPart } from "../tuning";

const NONE = "–";
const number = (x: number | null | undefined, digits = 3): string => (typeof x === "number" && Number.isFinite(x) ? x !== 0 && Math.abs(x) < 0.001 ? x.toExponential(1) : Number(x.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits }) : NONE);

/** The row that was measured as the fastest; null unless two were measured: estimates are bounds, which rank nothing. */
export function fastest(rows: readonly TimingRow[]): TimingRow | null {
  const measured = rows.filter((r) => !r.estimate && typeof r.us === "number");
  return measured.length < 2 ? null : measured.reduce((a, b) => (b.us! < a.us! ? b : a));
}

interface Column {
  name: string;
  text: (row: TimingRow) => string;
}
const COLUMNS: readonly Column[] = [
  { name: "± µs", text: (r) => number(r.spread, 2) },
  { name: "TFLOP/s", text: (r) => number(r.tflops) },
  { name: "GB/s", text: (r) => number(r.gbps) },
  { name: "roofline", text: (r) => (typeof r.roofline === "number" ? `${Math.round(r.roofline * 100)} %` : NONE) },
  { name: "registers", text: (r) => number(r.registers) },
  { name: "shared", text: (r) => (typeof r.shared === "number" ? `${number(r.shared / 1024)} KiB` : NONE) },
];

/** The rows as a table, without the columns that have no figure, such as all but the time of an estimate. */
function timesOf(rows: readonly TimingRow[]): HTMLTableElement {
  const best = fastest(rows);
  const columns = COLUMNS.filter((column) => rows.some((row) => column.text(row) !== NONE));
  const head = ["schedule", "µs", ...columns.map((column) => column.name), "note"];
  return h(
    "table",
    { class: "times" },
    h("thead", {}, h("tr", {}, ...head.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, ...rows.map((r) =>
      h("tr", { class: r === best ? "best" : "" },
        h("th", { scope: "row" }, r.name, r === best ? h("span", { class: "s ok" }, " fastest") : null),
        h("td", { title: r.estimate ? "an estimate, not measured" : null }, `${r.estimate ? "≈ " : ""}${number(r.us, r.estimate ? 2 : 4)}`),
        ...columns.map((column) => h("td", {}, column.text(r))),
        h("td", { class: "w" }, r.estimate ? h("b", {}, "≈ estimate") : null, r.estimate && r.note ? " · " : "", r.note ?? "")),
    )),
  );
}

function timingPane(ctx: Context): Pane {
  let seq = 0;
  let state = "";
  const opened = kernelKey(ctx.doc);
  const first = ctx.payload.editor;
  const against = h("input", { type: "checkbox" });
  const againstLabel = h("label", { class: "note" }, against, " beside the schedule as it was opened");
  const made = (editor: Editor | null) => JSON.stringify([wire(editor?.steps ?? []), editor?.code]);
  const differs = () => made(first) !== made(ctx.payload.editor);
  const run = h("button", { type: "button", class: "small p", onclick: () => start() }, "Run");
  const cancel = h("button", { type: "button", class: "small", disabled: true, onclick: () => ctx.send({ kind: "cancel" }) }, "Cancel");
  const tools = h("span", { class: "tools" }, run, cancel);
  const bar = h("progress", { max: 1, value: 0, "aria-label": "progress of the timing" });
  const says = h("span", { class: "dim", role: "status" });
  const progress = h("div", { class: "progress" }, bar, says);
  const table = h("div", { class: "timetable", tabindex: 0, role: "group", "aria-label": "measured times" });
  const note = h("p", { class: "note" });
  const tuning = tuningPart(ctx);
  const el = h("div", { class: "timing" }, againstLabel, progress, table, note, tuning.el);
  progress.hidden = true;
  note.textContent = hasGpu(ctx.payload)
    ? "Latency with its spread, TFLOP/s and bandwidth, on the device named above."
    : "There is no GPU here, so nothing can be timed. Run shows estimates: the least times that a GPU's datasheet allows.";

  let keys = new Map<string, string>();
  function start(): void {
    keys = new Map([["this schedule", kernelKey(ctx.doc)], ["as opened", opened]]);
    seq = ctx.send({ kind: "time", against: against.checked && differs() ? [{ name: "as opened", version: "opened" }] : [] });
    if (!seq) return;
    set("running", 0);
    table.replaceChildren();
    note.textContent = "";
  }
  function set(to: string, done: number): void {
    state = to;
    progress.hidden = to === "none" || to === "";
    bar.value = done;
    says.textContent = { running: `running, ${Math.round(done * 100)} %`, done: "done", cancelled: "cancelled: measurements so far are kept" }[to] ?? "";
    cancel.disabled = to !== "running";
    run.disabled = to === "running";
    run.textContent = to === "done" || to === "cancelled" ? "Run again" : "Run";
  }
  ctx.onAnswer((m: Message) => {
    if (m.kind !== "timing" || m.seq !== seq) return;
    if (m.state === "none") set("none", 0);
    const progress = typeof m.progress === "number" ? m.progress : m.state === "done" ? 1 : 0;
    set(String(m.state), Math.min(Math.max(progress, 0), 1));
    const rows = (m.rows as TimingRow[] | undefined) ?? [];
    keepMeasured(ctx, rows, keys);
    table.replaceChildren(...(rows.length ? [timesOf(rows)] : []));
    note.textContent = String(m.note ?? "");
    if (m.state !== "running") ctx.announce(`timing ${String(m.state)}`);
  });

  return {
    el,
    tools,
    update() {
      if (!ctx.live && state === "running") set("cancelled", bar.value);
      againstLabel.hidden = !ctx.live || !first || !differs();
      run.hidden = cancel.hidden = !ctx.live;
      tuning.update();
      if (!ctx.live && !state) note.textContent = "Timing needs a running Python kernel.";
    },
  };
}

export const pane = definePane({
  id: "timing",
  title: "Timing",
  help: "The time of the kernel, and of other schedules for comparison, on the local GPU; without a GPU, estimates. Tuning: a search for the fastest kernel, with its progress, that can be cancelled.",
  place: { tabOf: "graph" },
  roomy: true,
  order: 30,
  make: timingPane,
  available: (ctx) => ctx.payload.live, // with its times so far, even if Python is gone
  button: { label: "Time", title: "time the kernel, and tune it" },
  style: TUNING_STYLE,
});
