// Tuning in the timing pane: start, progress, cancel, and the result as the schedule.

import type { Context, Message } from "./context";
import { h } from "./dom";
import { figureButtons } from "./figures";
import { hasGpu } from "./status";
import { sizeText, usText } from "./traffic_data";
import { type Space, levels, timesPlot, waterfall } from "./tuning_figures";

interface Candidate {
  choice: string;
  candidate: Record<string, unknown>;
  us: number;
  low: number | null;
  high: number | null;
  registers: number | null;
  spills: number | null;
  shared: number | null;
}
export interface Tuning {
  state: "running" | "done" | "cancelled" | "failed";
  phase?: string;
  seconds?: number;
  limit?: number;
  device?: string;
  tried?: number;
  failed?: number;
  best?: Candidate | null;
  times?: (number | null)[];
  rows?: Candidate[];
  reasons?: { count: number; why: string }[];
  space?: Space | null;
  ended?: string;
  unsaved?: number;
  message?: string;
  help?: string;
}

const ENDED: Record<string, string> = {
  converged: "new candidates were no faster",
  time: "the time is over",
  trials: "all candidates were tried",
  "workers lost": "the measuring processes were lost",
  cancelled: "cancelled; what was measured is kept",
  interrupted: "interrupted; what was measured is kept",
};
/** Longest reason of a failure that is shown whole. */
const LONG = 160;

/** What a run does at the moment, or how it ended. */
export function sentence(t: Tuning, ending = false): string {
  const tried = t.tried ? `${t.tried} tried, ${t.failed ?? 0} without a time` : "";
  const best = t.best ? `best ${usText(t.best.us)}` : "";
  const time = t.seconds === undefined ? "" : t.state === "running" ? `${Math.round(t.seconds)} of ${Math.round(t.limit ?? 0)} s` : `${Math.round(t.seconds)} s`;
  const phase =
    t.state === "failed" ? "not tuned"
    : t.state !== "running" ? (t.ended ? ENDED[t.ended] ?? t.ended : "cancelled")
    : ending || t.phase === "ending" ? "ending: waits for what is on the GPU"
    : t.phase === "starting" || t.phase === undefined ? "starting the processes that measure"
    : t.phase === "timing again" ? "timing the fastest again, in turns"
    : t.tried ? "searching" : "compiling the first candidates";
  return [phase, tried, best, time].filter(Boolean).join(" · ");
}

export function tuningPart(ctx: Context): { el: HTMLElement; update(): void } {
  let seq = 0;
  let takeSeq = 0;
  let now: Tuning | null = null;
  let ending = false;
  let takenNote = "";
  const operator = () => JSON.stringify([ctx.doc.trace.operator.name, ctx.doc.trace.operator.params]);
  let of = operator();

  const seconds = h("input", { type: "number", min: 1, max: 86400, step: 1, value: 60, "aria-label": "seconds to tune" });
  const go = h("button", { type: "button", class: "small p", onclick: () => start() }, "Tune");
  const stop = h("button", { type: "button", class: "small", onclick: () => { ctx.send({ kind: "cancel", of: "tune" }); ending = true; draw(); } }, "Cancel");
  const says = h("span", { role: "status" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "time of the tuning run" });
  const line = h("div", { class: "progress" }, bar, says);
  const error = h("div", { class: "tunebad", role: "alert" });
  const saving = figureButtons("the figures of the tuning run", () => ctx.root, (take) => {
    const drawings = [...figures.querySelectorAll<SVGSVGElement>("svg")].map((el) => ({ el, width: el.viewBox.baseVal.width, height: el.viewBox.baseVal.height, title: el.parentElement!.querySelector("figcaption")?.textContent ?? "" }));
    if (drawings.length) take({ name: `${ctx.doc.trace.operator.name}-tuning`, drawings });
  });
  const figures = h("div", { class: "tunefigures" });
  const table = h("div", { class: "timetable", tabindex: 0, role: "group", "aria-label": "the fastest candidates" });
  const note = h("p", { class: "note" });
  const el = h("section", { class: "tune", "aria-label": "tuning" },
    h("div", { class: "tunebar" }, h("b", {}, "Tune"), h("label", {}, "for ", seconds, " s"), go, stop, h("span", { class: "end" }, saving)),
    line, error, figures, table, note);

  function start(): void {
    const value = Number(seconds.value);
    if (!seconds.checkValidity() || !seconds.value) {
      now = { state: "failed", message: `${seconds.value || "nothing"} is no number of seconds from 1 to 86400` };
      return draw();
    }
    ending = false;
    takenNote = "";
    seq = ctx.send({ kind: "tune", seconds: value });
    now = seq ? { state: "running", seconds: 0, limit: value } : null;
    draw();
  }
  ctx.onAnswer((m: Message) => {
    if (seq && m.seq === seq && (m.kind === "tuning" || m.kind === "failed")) {
      now = m.kind === "failed" ? { state: "failed", message: String(m.message) } : (m as unknown as Tuning);
      if (now.state !== "running") {
        ending = false;
        ctx.announce(`tuning ${now.state === "failed" ? "failed" : "ended"}: ${now.message ?? sentence(now)}`);
      }
      draw();
    } else if (takeSeq && m.seq === takeSeq) {
      const refused = m.kind === "refused" ? (m.error as { message: string }).message : m.kind === "failed" ? String(m.message) : "";
      if (m.payload) ctx.setPayload(m.payload);
      takenNote = refused ? `✗ ${refused}` : "This candidate is the schedule now, with its options. The editor undoes it.";
      ctx.announce(refused ? `not taken over: ${refused}` : "taken over");
      draw();
    }
  });

  const figure = (title: string, drawing: SVGSVGElement) => h("figure", {}, h("figcaption", {}, title), drawing);
  function row(c: Candidate, best: boolean): HTMLElement {
    const take = h("button", { type: "button", class: "small", disabled: !ctx.live || now?.state === "running", title: "make this candidate the schedule, with its options", "aria-label": `take over: ${c.choice}`, onclick: () => (takeSeq = ctx.send({ kind: "take", candidate: c.candidate })) }, "Take over");
    const registers = c.registers === null ? "–" : `${c.registers}${c.spills ? `, ${c.spills} spilled` : ""}`;
    return h("tr", { class: best ? "best" : "" }, h("td", { class: "w" }, take), h("td", { class: "w" }, h("code", {}, c.choice), best ? h("span", { class: "s ok" }, " fastest") : null), h("td", {}, usText(c.us)), h("td", {}, c.low === null || c.high === null ? "–" : `${usText(c.low)} to ${usText(c.high)}`), h("td", {}, registers), h("td", {}, c.shared === null ? "–" : sizeText(c.shared)));
  }

  function draw(): void {
    const running = now?.state === "running";
    go.disabled = running;
    seconds.disabled = running;
    stop.hidden = !running;
    stop.disabled = ending;
    line.hidden = !now || now.state === "failed";
    bar.hidden = !running;
    bar.value = running && now?.limit ? Math.min(1, (now.seconds ?? 0) / now.limit) : 0;
    says.textContent = now ? sentence(now, ending) : "";
    const why = now && !running && now.message;
    error.hidden = !why;
    error.replaceChildren(...(why ? [h("p", {}, h("b", {}, "✗ "), why), ...(now!.help ? [h("p", { class: "help" }, h("b", {}, "help: "), now!.help)] : [])] : []));
    const times = now?.times ?? [];
    saving.hidden = figures.hidden = !times.length;
    figures.replaceChildren(...(times.length ? [figure("Time per candidate; line: fastest so far", timesPlot(times)), figure("Candidates left", waterfall(levels(now?.space ?? null, times)))] : []));
    const rows = now?.rows ?? [];
    table.hidden = !rows.length;
    table.replaceChildren(...(rows.length ? [h("table", { class: "times" }, h("thead", {}, h("tr", {}, ...["", "candidate", "median", "10 to 90 %", "registers", "shared"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, ...rows.map((c, n) => row(c, n === 0))))] : []));
    const reasons = (now?.reasons ?? []).map((r) => `${r.count} × ${r.why.length > LONG ? `${r.why.slice(0, LONG)} …` : r.why}`);
    const lines = [
      takenNote,
      reasons.length ? `No time: ${reasons.join("; ")}.` : "",
      now?.unsaved ? `${now.unsaved} measurements could not be stored: see the messages under the cell.` : "",
      now ? "" : !hasGpu(ctx.payload) ? "Tuning measures candidates on a GPU of the machine that runs the notebook's kernel. There is none here." : "Searches the template, tiles and options that are fastest on this machine's GPUs. Each candidate is checked against float64 and its time is kept; Cancel keeps what was measured.",
    ];
    note.replaceChildren(...lines.filter(Boolean).map((text) => h("span", {}, text)));
    note.hidden = !lines.some(Boolean);
  }

  draw();
  return {
    el,
    update() {
      el.hidden = !ctx.live && !now;
      if (of !== operator()) {
        of = operator();
        now = now?.state === "running" ? now : null;
        takenNote = "";
      }
      if (!ctx.live && now?.state === "running") now = { ...now, state: "cancelled", ended: "workers lost" };
      go.hidden = !ctx.live;
      draw();
    },
  };
}

export const TUNING_STYLE = `
.nx .tune { border-top: 1px solid var(--line); margin-top: 6px; }
.nx .tunebar { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: center; padding: 8px 16px 2px; font-size: 12.5px; }
.nx .tunebar input { width: 76px; text-align: right; }
.nx .tunebad { margin: 8px 16px; padding: 6px 12px 8px; background: var(--bad-soft); color: var(--bad); font-size: 12.5px; border-radius: 6px; }
.nx .tunebad .help { color: var(--ink); padding-top: 2px; }
.nx .tunefigures { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 4px 16px; padding: 8px 10px 0; align-items: start; }
.nx .tunefigures figcaption { font-size: 12px; font-weight: 600; padding: 0 6px 2px; }
.nx .tuneplot { display: block; width: 100%; max-width: 560px; }
.nx .tuneplot text { fill: var(--ink); font: 11px var(--sans); }
.nx .tuneplot .w { fill: var(--dim); font-size: 10px; }
.nx .tuneplot .r { text-anchor: end; }
.nx .tuneplot .c { text-anchor: middle; }
.nx .tuneplot .grid { stroke: var(--line); stroke-width: .6; }
.nx .tuneplot .best { fill: none; stroke: var(--fixed); stroke-width: 1.5; }
.nx .tuneplot .m { fill: var(--accent); }
.nx .tuneplot .space { fill: var(--edge); }
.nx .tuneplot .f { fill: none; stroke: var(--bad); stroke-width: 1.2; }
.nx .tune .times td.w { white-space: normal; overflow-wrap: anywhere; }
.nx .tune .times td { padding: 3px 6px; }
.nx .tune .times td button { white-space: nowrap; }
.nx .tune .note span { display: block; }
`;
