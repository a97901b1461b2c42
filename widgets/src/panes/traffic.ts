// Why fusion pays: bytes by level of memory, operations and the roofline of every form of the program.

import type { Context, Pane } from "../context";
import { h } from "../dom";
import { sampled } from "../extents";
import { figureButtons } from "../figures";
import { flowsOf, memoryPicture, scaleOf, title } from "../memory_picture";
import { measuredOf } from "../measured";
import { bringUp, definePane } from "../pane";
import { type Point, roofline } from "../roofline";
import { type At, type Found, type Gpu, bytesText, formAt, formOf, gpuOf, hbm, intensity, opsText, ratioText, runs, stopKey, usText } from "../traffic_data";
import { trafficOf } from "../traffic_store";

const VIEWS = ["memory", "roofline", "steps"] as const;
type Name = (typeof VIEWS)[number];
const LABEL: Record<Name, string> = { memory: "Memory", roofline: "Roofline", steps: "Steps" };

/** The two forms that are compared: the definition, and what the stop shows, at the definition the last form. */
export function pairOf(found: Found, gpu: Gpu, at: number): [At, At] {
  return [formAt(found, gpu, 0), formAt(found, gpu, at === 0 ? found.forms.length - 1 : at)];
}

const nameOf = (form: At["form"]): string => (form.step === null ? "Kernel" : form.step === 0 ? "Definition" : form.name.replace(/^(\d+)\./, "Step $1:"));

/** The points of the roofline: the definition with its stages, wrong forms, the selected one, and the kernel. */
export function pointsOf(found: Found, gpu: Gpu, at: number, wrong: (index: number) => boolean, us?: number | null): Point[] {
  const whole = (index: number, kind: Point["kind"], name: string): Point => {
    const { counts, form } = formAt(found, gpu, index);
    return { kind, name, read: counts.read, written: counts.written, operations: counts.operations, key: stopKey(form) };
  };
  const last = found.forms.length - 1;
  const points: Point[] = formAt(found, gpu, 0).counts.stages.map((s) => ({ kind: "stage", name: s.name, read: s.read, written: s.written, operations: s.operations }));
  points.push(whole(0, "definition", "definition"));
  // Phases that count the same are one point.
  const seen = new Set<number>([gpu.counts[at]!]);
  found.forms.forEach((form, n) => {
    if (!wrong(n) || seen.has(gpu.counts[n]!)) return;
    seen.add(gpu.counts[n]!);
    points.push(whole(n, "wrong", `step ${form.step}: wrong`));
  });
  if (at > 0 && at < last) points.push(whole(at, wrong(at) ? "wrong" : "here", `step ${found.forms[at]!.step}${wrong(at) ? ": wrong" : ""}`));
  if (last > 0) points.push(whole(last, found.forms[last]!.step === null ? "kernel" : "here", found.forms[last]!.step === null ? "kernel" : "last step"));
  if (us && found.forms[last]!.step === null) points.push({ ...whole(last, "measured", "measured"), us });
  return points;
}

function trafficPane(ctx: Context): Pane {
  const store = trafficOf(ctx);
  const chooser = h("select", { "aria-label": "GPU", onchange: () => ctx.dispatch({ type: "tab", slot: "gpu", tab: chooser.value }) });
  const buttons = new Map(VIEWS.map((name) => [name, h("button", { type: "button", class: "small", onclick: () => ctx.dispatch({ type: "tab", slot: "traffic", tab: name }) }, LABEL[name])]));
  const saving = figureButtons("the figure", () => ctx.root, (take) => {
    const drawings = [...body.querySelectorAll<SVGSVGElement>("figure > svg")].map((el) => {
      const { width, height } = el.viewBox.baseVal;
      return { el, width, height, title: el.parentElement!.querySelector("figcaption:first-child")?.textContent ?? "" };
    });
    if (drawings.length) take({ name: `${ctx.doc.trace.operator.name}-${ctx.stop.key}-${shownView()}-${chooser.value}`, drawings });
  });
  const shownView = (): Name => VIEWS.find((v) => v === ctx.view.panes.traffic) ?? "memory";
  const tools = h("span", { class: "tools" }, h("span", { class: "seg", role: "group", "aria-label": "show" }, ...buttons.values()), chooser, saving);
  const lead = h("p", { class: "lead" });
  const body = h("div", { class: "trafficbody", tabindex: 0, role: "group", "aria-label": "traffic" });
  const el = h("div", { class: "traffic" }, lead, body);
  let drawn: unknown[] = [];

  const go = (key: string) => ctx.dispatch({ type: "go", key });
  const wrongAt = (found: Found) => (n: number) => ctx.doc.byKey.get(stopKey(found.forms[n]!))?.wrong ?? false;

  function leadOf([before, after]: [At, At], gpu: Gpu, wrong: boolean): (Node | string)[] {
    const us = before.us !== null && after.us !== null;
    const sample = sampled(ctx.doc.trace.operator);
    return [
      h("b", {}, `${bytesText(hbm(before.counts))} → ${bytesText(hbm(after.counts))}`),
      ` of HBM from the definition to ${after.form.step === null ? "the kernel" : nameOf(after.form).toLowerCase()}: `,
      h("b", {}, ratioText(hbm(before.counts), hbm(after.counts))),
      `. Operations: ${opsText(before.counts.operations)} → ${opsText(after.counts.operations)}. `,
      us ? `Least time on the ${gpu.name.toUpperCase()}: ${usText(before.us)} → ${usText(after.us)}, bound by ${after.bound}.` : "",
      wrong ? h("b", { class: "bad" }, " ! This form is wrong on purpose.") : "",
      sample && ` Counted at ${sample}; the kernel takes every value.`,
      after.counts.exact ? "" : " Some indices are data: those tensors count whole.",
    ];
  }

  function memory(gpu: Gpu, pair: [At, At]): Node[] {
    const most = scaleOf(pair.map((p) => flowsOf(p.counts)));
    const loops = pair[1].form.step !== null;
    return [
      h("div", { class: "pictures" }, ...pair.map((p) => {
        const text = title(nameOf(p.form), p.counts);
        return h("figure", {}, h("figcaption", {}, h("b", {}, text)), memoryPicture(text, gpu, p.counts, most));
      })),
      h("p", { class: "note" }, `Arrows of one level are as wide as their bytes, on one scale in both pictures. A loop program ${loops ? "" : "such as the definition "}has no tiles yet: its statements load a value each time they use it. HBM bytes of the kernel are for one block per multiprocessor at once.`),
    ];
  }

  function steps(found: Found, gpu: Gpu, at: number): Node[] {
    const most = Math.max(...found.forms.map((_, n) => hbm(formAt(found, gpu, n).counts)));
    const rows = runs(gpu, found.forms).map(([first, last]) => {
      const { form, counts, us } = formAt(found, gpu, first);
      const wrong = wrongAt(found)(first);
      const here = first <= at && at <= last;
      const to = found.forms[last]!;
      // A remark changes nothing: of several forms the first other step gives the name.
      const named = found.forms.slice(first, last + 1).find((f) => !f.name.endsWith(". remark")) ?? form;
      const name = to.step === form.step ? form.name : named.name.replace(/^\d+/, `${form.step}–${to.step}`);
      const more = last > first ? `, and ${last - first} more with the same counts` : "";
      return h("tr", { class: here ? "on" : "", "aria-current": here ? "true" : null },
        h("th", { scope: "row" }, h("button", { type: "button", class: "link", title: `show ${form.name}${more}`, onclick: () => go(stopKey(form)) }, name), wrong ? h("span", { class: "s bad" }, " ! wrong") : null),
        h("td", { class: "bar" }, h("i", { style: `width:${(100 * hbm(counts)) / most}%` })),
        h("td", {}, bytesText(counts.read)), h("td", {}, bytesText(counts.written)), h("td", {}, opsText(counts.operations)), h("td", {}, usText(us)),
        h("td", {}, String(Number(intensity(counts).toPrecision(3)))), h("td", {}, String(counts.stages.length)), h("td", {}, bytesText(counts.moved)), h("td", {}, bytesText(counts.chip)));
    });
    const head = ["form", "HBM", "read", "written", "operations", "at least", "op/byte", "kernels", "moved", "on chip"];
    const now = formAt(found, gpu, at);
    const args = new Set([...ctx.doc.trace.operator.inputs, ...ctx.doc.trace.operator.outputs].map((t) => t.name));
    const tensors = [...now.counts.tensors].sort((a, b) => hbm(b) - hbm(a));
    return [
      h("table", { class: "times steps" }, h("thead", {}, h("tr", {}, ...head.map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, ...rows)),
      h("table", { class: "times" },
        h("caption", {}, `In HBM at ${nameOf(now.form).toLowerCase()}`),
        h("thead", {}, h("tr", {}, ...["tensor", "", "size", "read", "written"].map((t) => h("th", { scope: "col" }, t)))),
        h("tbody", {}, ...tensors.map((t) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, t.name)), h("td", {}, args.has(t.name) ? "argument" : "between kernels"), h("td", {}, bytesText(t.bytes)), h("td", {}, bytesText(t.read)), h("td", {}, bytesText(t.written)))))),
    ];
  }

  return {
    el,
    tools,
    update() {
      const found = store.get();
      tools.hidden = found === null;
      if (!found) {
        lead.textContent = store.note();
        body.replaceChildren();
        drawn = [];
        return;
      }
      const gpu = gpuOf(found, ctx.view.panes.gpu);
      const name = shownView();
      saving.hidden = name === "steps";
      const at = formOf(found, ctx.stop);
      // A time of another GPU has no place under this one's roof.
      const us = ctx.payload.device.toLowerCase().includes(gpu.name) ? measuredOf(ctx, ctx.doc)?.us : null;
      const key = [found, gpu, name, at, us];
      if (key.every((x, n) => x === drawn[n])) return;
      if (drawn[0] !== found) chooser.replaceChildren(...found.gpus.map((g) => h("option", { value: g.name }, g.name.toUpperCase())));
      chooser.value = gpu.name;
      for (const [v, b] of buttons) b.setAttribute("aria-pressed", String(v === name));
      const pair = pairOf(found, gpu, at);
      lead.replaceChildren(...leadOf(pair, gpu, wrongAt(found)(pair[1].index)));
      const top = drawn[2] === name ? body.scrollTop : 0;
      body.replaceChildren(...(name === "memory" ? memory(gpu, pair) : name === "roofline" ? [roofline(gpu, pointsOf(found, gpu, at, wrongAt(found), us), go)] : steps(found, gpu, at)));
      body.scrollTop = top;
      drawn = key;
    },
  };
}

export const pane = definePane({
  id: "traffic",
  title: "Traffic",
  help: "Why fusion pays: the bytes between the levels of a GPU's memory and the operations at each step, and the roofline.",
  place: { tabOf: "graph" },
  roomy: true,
  order: 35,
  make: trafficPane,
  keys: [{ keys: ["T"], text: "traffic", explained: "bytes, operations and the roofline", order: 55, press: { t: (ctx) => bringUp(ctx, pane) } }],
  style: `
.nx .traffic { display: flex; flex-direction: column; flex: 1; min-height: 0; }
.nx .traffic .lead { padding: 7px 14px; border-bottom: 1px solid var(--line); font-size: 12.5px; flex: none; }
.nx .trafficbody { flex: 1; overflow: auto; min-height: 0; padding: 8px 10px; }
.nx .traffic .pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 6px 16px; align-items: end; }
.nx .traffic figure { margin: 0; }
.nx .traffic figcaption { font-size: 12px; padding: 0 8px 3px; }
.nx .traffic svg { display: block; width: 100%; max-width: 640px; max-height: 480px; margin: 0 auto; }
.nx .traffic svg.memories { max-width: 420px; }
.nx .traffic svg text { fill: var(--ink); font: 11px var(--sans); }
.nx .traffic svg .w { fill: var(--dim); font-size: 10px; }
.nx .traffic svg .l, .nx .traffic svg .n { font-weight: 600; }
.nx .traffic svg .r { text-anchor: end; }
.nx .traffic svg .c { text-anchor: middle; }
.nx .traffic .level { fill: var(--soft); stroke: var(--edge); }
.nx .traffic .flow { fill: var(--accent); }
.nx .traffic .track { fill: var(--line); }
.nx .traffic .grid { stroke: var(--line); stroke-width: .6; }
.nx .traffic .roof { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.nx .traffic .point .m { fill: var(--bg); stroke: var(--accent); stroke-width: 2; }
.nx .traffic .point.kernel .m { fill: var(--accent); }
.nx .traffic .point.stage .m { stroke: var(--dim); stroke-width: 1.2; }
.nx .traffic .point.wrong .m { stroke: var(--early); }
.nx .traffic .point[role=button] { cursor: pointer; }
.nx .traffic table { margin: 0 0 14px; }
.nx .traffic th, .nx .traffic td { padding: 3px 7px; }
.nx .traffic th:first-child { text-align: left; }
.nx .traffic tbody th { font-weight: 500; }
.nx .traffic .signs { display: flex; flex-wrap: wrap; gap: 2px 16px; }
.nx .traffic .signs span { white-space: nowrap; }
.nx .traffic caption { text-align: left; padding: 4px 8px; font-weight: 600; font-size: 12px; }
.nx .traffic tr.on { background: var(--accent-soft) !important; box-shadow: inset 3px 0 0 var(--accent); }
.nx .traffic td.bar { min-width: 70px; }
.nx .traffic td.bar i { display: block; height: 8px; background: var(--accent); border-radius: 2px; min-width: 1px; }
`,
});
