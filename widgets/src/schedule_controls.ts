// Controls for the arguments of a step: a choice, a size for each loop, loops in an order, or a field.

import { h } from "./dom";
import type { Parameter } from "./record";
import { readValue, showValue } from "./schedule_values";

function control(p: Parameter, value: unknown, label: string, set: (v: unknown) => void): HTMLElement {
  const given = value !== undefined && value !== null;
  if (p.kind === "tiles" && p.choices && !Array.isArray(p.choices)) return tiles(p.choices, value, label, set);
  if (p.kind === "loops" && Array.isArray(p.choices)) return sequence(p.choices as string[], value, label, set);
  if (Array.isArray(p.choices) && p.choices.length && p.kind !== "text") {
    const values = p.choices.map((c) => JSON.stringify(c));
    const now = given ? JSON.stringify(value) : "";
    const options = p.choices.map((c, n) => h("option", { value: values[n]! }, showValue(c)));
    if (!given || !p.required) options.unshift(h("option", { value: "" }, p.required ? "choose …" : "default"));
    if (given && !values.includes(now)) options.unshift(h("option", { value: now }, `${showValue(value)} (not legal here)`));
    const s = h("select", { "aria-label": label, onchange: () => set(s.value === "" ? undefined : (JSON.parse(s.value) as unknown)) }, ...options);
    s.value = now;
    return s;
  }
  if (p.kind === "sentence") {
    const area = h("textarea", { rows: 3, "aria-label": label, placeholder: "a sentence for readers", oninput: () => set(readValue(p.kind, area.value)) }, showValue(value));
    return area;
  }
  const field = h("input", {
    type: p.kind === "int" ? "number" : "text",
    value: showValue(value),
    placeholder: p.required ? p.kind : "default",
    "aria-label": label,
    spellcheck: "false",
    oninput: () => set(readValue(Array.isArray(value) || (typeof value === "object" && value !== null) ? "factors" : p.kind, field.value)),
  });
  return field;
}

/** A size for each loop; a loop without one is not tiled. */
function tiles(sizes: Record<string, unknown[]>, value: unknown, label: string, set: (v: unknown) => void): HTMLElement {
  const now = { ...((typeof value === "object" && value !== null ? value : {}) as Record<string, number>) };
  const names = [...new Set([...Object.keys(now), ...Object.keys(sizes)])];
  return h(
    "span",
    { class: "many" },
    ...names.map((name) => {
      const options = [...new Set([...(name in now ? [now[name]!] : []), ...((sizes[name] ?? []) as number[])])].sort((a, b) => a - b);
      const s = h("select", { "aria-label": `${label}: ${name}`, onchange: () => { s.value ? (now[name] = Number(s.value)) : delete now[name]; set({ ...now }); } }, h("option", { value: "" }, "–"), ...options.map((o) => h("option", { value: o }, String(o))));
      s.value = name in now ? String(now[name]) : "";
      return h("label", {}, `${name} `, s);
    }),
  );
}

/** Loops in an order: a choice for each place, and one more to add. */
function sequence(names: string[], value: unknown, label: string, set: (v: unknown) => void): HTMLElement {
  const now = Array.isArray(value) ? value.map(String) : [];
  const box = h("span", { class: "many" });
  const draw = () =>
    box.replaceChildren(
      ...[...now, ""].slice(0, Math.max(names.length, now.length)).map((chosen, n) => {
        const s = h("select", { "aria-label": `${label}: place ${n + 1}`, onchange: () => { s.value ? (now[n] = s.value) : now.splice(n, 1); set([...now]); draw(); } }, h("option", { value: "" }, "–"), ...[...new Set([...(chosen ? [chosen] : []), ...names])].map((x) => h("option", { value: x }, x)));
        s.value = chosen;
        return s;
      }),
    );
  draw();
  return box;
}

/** A control for each parameter, and a field for each other argument; `declared` says what they are. */
export function controls(parameters: Parameter[], declared: Parameter[], args: Record<string, unknown>, step: string, set: (name: string, v: unknown) => void): HTMLElement {
  const known = new Set(parameters.map((p) => p.name));
  const extra = Object.keys(args).filter((k) => !known.has(k)).map((name): Parameter => ({ name, kind: "text", required: false, choices: null }));
  return h(
    "div",
    { class: "controls" },
    ...[...parameters, ...extra].flatMap((p) => [h("span", { class: "pn", title: declared.find((d) => d.name === p.name)?.about || null }, p.name, p.required ? "" : h("small", {}, " optional")), control(p, args[p.name], `${p.name} of ${step}`, (v) => set(p.name, v))]),
  );
}
