// A run, played frame by frame: the tile, what runs along the loop, and the naive and the repaired program in step.

import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { type Film, type Group, type Held, type Play, type PlayData, TILES, groups, gridOf, isWrong, playFor, tileOf } from "../film";
import { type HeatMap, type Told, heatMap } from "../heat_map";
import { bringUp, definePane } from "../pane";
import { AGAIN } from "../status";
import { inBrief } from "../tag_cells";

/** Milliseconds of a frame at speed 1. */
const FRAME = 1000;
const SPEEDS = ["0.5", "1", "2", "4"];

interface PlayPane extends Pane {
  toggle(): void;
}

/** What Python declared: the list, and in a page without Python the films, or why there are none. */
function dataOf(ctx: Context): PlayData {
  const { play, play_kept: kept } = ctx.payload.panes as { play?: PlayData; play_kept?: PlayData };
  return { ...play, ...kept };
}

function playPane(ctx: Context): PlayPane {
  const which = h("select", { "aria-label": "step to play", onchange: () => ctx.dispatch({ type: "tab", slot: "plays", tab: which.value }) });
  const all = h("button", { type: "button", class: "small", title: "show every tensor of the program", onclick: () => ctx.dispatch({ type: "tab", slot: "playall", tab: ctx.view.panes.playall === "on" ? "" : "on" }) }, "All tensors");
  const tools = h("span", { class: "tools" }, which, all);
  const stage = h("div", { class: "stage", role: "group", "aria-label": "tensors" });
  const says = h("p", { class: "told", "aria-live": "off" });
  const button = (text: string, label: string, f: () => void, css = "") => h("button", { type: "button", class: css, "aria-label": label, title: label, onclick: f }, text);
  const play = button("▶", "play (Space)", () => toggle(), "play");
  const back = button("◂", "one frame back (,)", () => step(-1));
  const next = button("▸", "one frame forward (.)", () => step(1));
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "frame", oninput: () => (pause(), go(Number(range.value))) });
  const where = h("output", { class: "at" });
  const speed = h("select", { "aria-label": "speed", onchange: () => ctx.dispatch({ type: "tab", slot: "speed", tab: speed.value }) }, ...SPEEDS.map((s) => h("option", { value: s }, `${s.replace("0.5", "½")} ×`)));
  const bar = h("div", { class: "scrub" }, back, play, next, range, where, speed);
  const el = h("div", { class: "run" }, stage, says, bar);

  let data = dataOf(ctx);
  let panes: unknown = ctx.payload.panes;
  let film: Film | null = null;
  let drawn: unknown = null;
  let shownAll = false;
  let maps: HeatMap[] = [];
  let at = -1;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let asked = { seq: 0, key: "" };
  let store: { data: unknown; inputs: unknown; films: Map<number, Film>; failed: Map<number, string> } = { data: null, inputs: null, films: new Map(), failed: new Map() };

  const longest = () => film!.sides.reduce((a, b) => (b.frames.length > a.frames.length ? b : a));
  const last = () => (film ? longest().frames.length - 1 : 0);
  const now = () => Math.min(Number.parseInt(ctx.view.panes.frame ?? "0", 10) || 0, last());

  function go(to: number): void {
    if (!film) return;
    const frames = longest().frames;
    const frame = frames[Math.min(Math.max(to, 0), last())]!;
    ctx.dispatch({ type: "tab", slot: "frame", tab: String(frames.indexOf(frame)) });
    const column = columnOf(frame.name);
    if (column >= 0) ctx.dispatch({ type: "iteration", to: column });
    const ids = [...(frame.loop ? [lineOf(frame.loop)] : []), ...frame.blocks.map((b) => `store:${b}`)];
    if (`${ids}` !== `${ctx.view.selection}`) ctx.dispatch({ type: "select", ids }, "play");
  }
  /** The line as the stop shows it, else as the record has it: before the loop was partitioned, or at its sizes, a line has no parts. */
  function lineOf(id: string): string {
    const names = id.split("/").map((_, n, parts) => parts.slice(0, parts.length - n).join("/"));
    const here = new Set(ctx.stop.lines.map((line) => line.node));
    return names.find((name) => here.has(name)) ?? names.find((name) => ctx.index.stage.has(name)) ?? id;
  }
  /** The column of the tag table that is shown. */
  const columnOf = (name: string) => ctx.tags.get(ctx.stop)?.columns.indexOf(name) ?? -1;

  function step(by: number): void {
    pause();
    go(now() + by);
  }
  function toggle(): void {
    if (timer !== undefined) return pause();
    if (!film) return;
    go(now() >= last() ? 0 : now());
    tick();
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "pause (Space)");
  }
  function tick(): void {
    timer = setTimeout(() => {
      if (!film || now() >= last() || !el.isConnected) return pause();
      go(now() + 1);
      tick();
    }, FRAME / Number(ctx.view.panes.speed || "1"));
  }
  function pause(): void {
    clearTimeout(timer);
    timer = undefined;
    play.textContent = "▶";
    play.setAttribute("aria-label", "play (Space)");
  }

  el.addEventListener("keydown", (e) => {
    const target = e.composedPath()[0] as Element;
    if (e.ctrlKey || e.metaKey || e.altKey || target.matches("select")) return;
    const key = { ",": () => step(-1), ".": () => step(1), Home: () => step(-last()), End: () => step(last()), ...(target.matches("button") ? {} : { " ": toggle }) }[e.key];
    if (key) {
      e.preventDefault();
      key();
    } else if (!(target === range && /^(Arrow|Page)/.test(e.key))) return;
    e.stopPropagation(); // the slider's arrows are its own
  });

  ctx.onAnswer((m: Message) => {
    if (m.seq !== asked.seq || !asked.seq) return;
    const wanted = Number(asked.key);
    asked = { seq: 0, key: "" };
    if (m.kind === "play") store.films.set(wanted, m.film as Film);
    else store.failed.set(wanted, String(m.message ?? "the run could not be made"));
    ctx.refresh();
  });

  function ask(wanted: Play): void {
    if (!ctx.live || asked.key === String(wanted.step)) return;
    const inputs = ctx.tags.inputs && Object.fromEntries(ctx.tags.inputs.map((x) => [x.name, x.values]));
    asked = { seq: ctx.send({ kind: "play", step: wanted.step, ...(inputs ? { inputs } : {}) }), key: String(wanted.step) };
  }

  function tip(told: Told | null): void {
    says.textContent = told?.text ?? inBrief(data.note ?? "");
    says.title = told?.text ?? data.note ?? "";
  }
  function choose(group: Group, held: Held): void {
    const [, , label, column] = held.write;
    const side = group.side ?? film!.sides[0]!;
    const tensor = group.tensors.find((t) => t.frames[held.at]?.includes(held.write));
    const block = tensor?.blocks[tensor.blocks.length - 1];
    const ids = side.phase === TILES ? [lineOf(side.frames[held.at]!.loop)] : [`graph:${block ?? tensor!.name}`];
    const at = typeof column === "number" ? columnOf(side.pool[column]!) : -1;
    if (at >= 0) {
      ids.unshift(`cell:value:${side.pool[label!]}@${at}`);
      ctx.dispatch({ type: "iteration", to: at });
    }
    ctx.dispatch({ type: "select", ids }, "play");
  }

  function draw(made: Film, everything: boolean): void {
    const outputs = ctx.doc.trace.operator.outputs.map((t) => t.name);
    const tile = tileOf(made.sides[made.sides.length - 1]!);
    maps = [];
    const name = (frame: number) => longest().frames[frame]?.name ?? "";
    const parts = groups(made, outputs, everything).map((group) => {
      const own = group.tensors.map((t) => heatMap(made, t, gridOf(t, tile), name, tip, (held) => choose(group, held)));
      maps.push(...own);
      const wrong = group.side?.wrong ?? false;
      const title = group.side === null ? "in both programs" : group.side.title;
      const count = h("span", { class: "count" });
      const head = group.side && made.sides.length > 1 ? h("h3", { class: wrong ? "bad" : "" }, title, wrong ? " ! wrong" : null, count) : null;
      const tally = { tensors: group.tensors, el: count };
      return { el: h("section", { class: `side ${wrong ? "naive" : ""}`, "aria-label": title }, head, h("div", { class: "maps" }, ...own.map((m) => m.el))), tally };
    });
    tallies = parts.map((p) => p.tally);
    stage.replaceChildren(...parts.map((p) => p.el));
    range.max = String(last());
    at = -1;
  }
  let tallies: { tensors: Group["tensors"]; el: HTMLElement }[] = [];

  function show(frame: number): void {
    for (const map of maps) map.draw(frame);
    for (const { tensors, el: count } of tallies) {
      const wrong = tensors.reduce((n, t) => n + (t.frames[frame] ?? []).filter(isWrong).length, 0);
      count.textContent = wrong ? ` · ${wrong} ≠` : "";
      count.title = wrong ? `${wrong} ${wrong === 1 ? "value" : "values"} of this frame differ from the definition` : "";
    }
    const name = longest().frames[frame]!.name;
    range.value = String(frame);
    range.setAttribute("aria-valuetext", name);
    where.textContent = `${name} · ${frame + 1} of ${last() + 1}`;
  }

  return {
    el,
    tools,
    toggle,
    destroy: pause,
    update() {
      if (panes !== ctx.payload.panes) data = dataOf(ctx);
      panes = ctx.payload.panes;
      const plays = data.plays ?? [];
      if (store.data !== data || store.inputs !== ctx.tags.inputs) {
        const kept = ctx.tags.inputs ? [] : (data.films ?? []);
        store = { data, inputs: ctx.tags.inputs, films: new Map(kept.map((f) => [f.step, f])), failed: new Map() };
        asked = { seq: 0, key: "" };
        which.replaceChildren(h("option", { value: "" }, "of this step"), ...plays.map((p) => h("option", { value: String(p.step) }, p.step < 0 ? "tiles of HTile" : `${p.step} · ${p.block || p.what}`)));
      }
      const chosen = plays.find((p) => String(p.step) === ctx.view.panes.plays) ?? null;
      const wanted = chosen ?? playFor(plays, ctx.stop.step);
      which.value = chosen ? String(chosen.step) : "";
      which.hidden = plays.length < 2;
      const made = wanted ? (store.films.get(wanted.step) ?? null) : null;
      const failed = wanted ? store.failed.get(wanted.step) : undefined;
      if (wanted && !made && !failed) ask(wanted);
      const everything = ctx.view.panes.playall === "on";
      all.setAttribute("aria-pressed", String(everything));
      all.hidden = bar.hidden = says.hidden = made === null;
      speed.value = SPEEDS.includes(ctx.view.panes.speed ?? "") ? ctx.view.panes.speed! : "1";
      if (!made) {
        pause();
        film = null;
        const why = failed ?? data.error ?? (plays.length ? (ctx.live ? "" : "This page has no run of this step.") : ctx.payload.again ? `A saved record has no runs. ${AGAIN}` : "A saved record has no runs: they need the operator itself.");
        const text = why || "Running the programs …";
        if (drawn !== text) stage.replaceChildren(h("p", { class: "note" }, text));
        drawn = text;
        return;
      }
      if (drawn !== made || shownAll !== everything) {
        film = made;
        shownAll = everything;
        drawn = made;
        tip(null);
        draw(made, everything);
      }
      if (at !== now()) show((at = now()));
    },
  };
}

export const pane = definePane<PlayPane>({
  id: "play",
  title: "Run",
  help: "The rolling loop, played: the tile, what runs along the loop, and the naive and the repaired program in step, on small sizes; for the kernel its tiles, store by store.",
  place: { tabOf: "graph" },
  roomy: true,
  order: 12,
  make: playPane,
  button: { label: "▶ Run", title: "play the rolling loop (P)" },
  keys: [
    {
      keys: ["P"],
      text: "run",
      explained: "play the rolling loop; in its pane, Space plays and pauses, `,` and `.` go one frame back and forward",
      order: 27,
      press: {
        p: (ctx, pane) => {
          if (ctx.view.panes.graph !== "play") bringUp(ctx, RUN);
          else pane.toggle();
        },
      },
    },
  ],
  style: `
.nx .run { flex: 1; min-height: 0; display: flex; flex-direction: column; }
.nx .stage { flex: 1; min-height: 0; overflow: auto; padding: 4px 14px; display: flex; flex-wrap: wrap; gap: 6px 22px; align-content: flex-start; }
.nx .side h3 { font: 600 12px/17px var(--sans); margin: 0; color: var(--dim); }
.nx .side h3.bad { color: var(--early); }
.nx .side .count { font-weight: 400; }
.nx .maps { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: flex-start; }
.nx .map { margin: 0; }
.nx .map figcaption { font: 500 11px/15px var(--mono); color: var(--dim); }
.nx .heat { border-collapse: separate; border-spacing: 2px; margin: -2px; }
.nx .heat td { min-width: 40px; height: 17px; padding: 0 3px; border: 0; text-align: right; white-space: nowrap; font: 10.5px/17px var(--mono); cursor: default; border-radius: 2px; box-shadow: inset 0 0 0 1px var(--line); --tone: var(--accent); background: color-mix(in srgb, var(--tone) var(--heat), var(--bg)); }
.nx .heat.marks td { min-width: 50px; }
.nx .heat td.minus { --tone: var(--kw); }
.nx .heat td.none { background: none; box-shadow: inset 0 0 0 1px color-mix(in srgb, var(--line) 60%, transparent); }
.nx .heat td.odd { background: repeating-linear-gradient(135deg, var(--soft) 0 3px, var(--bg) 3px 6px); text-align: center; }
.nx .of-tile td:not(.fresh, .none), .nx .of-input td:not(.fresh, .none), .nx .of-part td:not(.fresh, .none) { opacity: .5; }
.nx .heat td.fresh { box-shadow: inset 0 0 0 1.5px var(--ink); }
.nx .heat td.wrong { box-shadow: inset 0 0 0 2px var(--early); opacity: 1 !important; }
.nx .heat td i { font: 700 11px/17px var(--sans); color: var(--early); float: left; }
.nx .heat.small td { min-width: 13px; height: 13px; padding: 0; }
.nx .heat.small td i { line-height: 13px; font-size: 10px; float: none; display: block; text-align: center; }
.nx .told { flex: none; min-height: 24px; padding: 3px 14px; font: 11.5px var(--mono); color: var(--dim); border-top: 1px solid var(--line); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.nx .run .scrub button:not(.play) { border: 0; padding: 0 5px; }
@media (prefers-reduced-motion: no-preference) { .nx .heat td { transition: background-color .18s, opacity .18s; } }
`,
});
const RUN = pane;
