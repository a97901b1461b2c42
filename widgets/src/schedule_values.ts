// Arguments of steps as text: in a control, in a call, and to compare.

import type { StepEdit } from "./record";

/** What a control's text stands for: a number, None, a list, or the text itself. */
export function readValue(kind: string, text: string): unknown {
  const t = text.trim();
  if (t === "") return undefined;
  if (kind === "sentence") return text;
  if (kind === "choice" && /^(True|False)$/.test(t)) return t === "True";
  if (kind === "int") return /^-?\d+$/.test(t) ? Number(t) : t;
  if (kind === "factors") {
    const json = t.replace(/\bNone\b/g, "null").replace(/^\(/, "[").replace(/,?\s*\)$/, "]").replaceAll("'", '"');
    for (const one of [json, `[${json}]`, `{${json.replace(/([\p{L}_][\p{L}\p{N}_]*)\s*[=:]/gu, '"$1":')}}`]) {
      try {
        const value: unknown = JSON.parse(one);
        if (typeof value === "object" && value !== null) return value;
      } catch {
        // The next reading.
      }
    }
    return t;
  }
  if (/^[[{]/.test(t)) {
    try {
      return JSON.parse(t);
    } catch {
      return t;
    }
  }
  return t;
}

/** A value as a control shows it; `readValue` reads it back. */
export function showValue(value: unknown): string {
  if (value === undefined) return "";
  if (value === null) return "None";
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value) && value.every((v) => v === null || typeof v !== "object")) return value.map(showValue).join(", ");
  if (typeof value === "object" && !Array.isArray(value)) return Object.entries(value as object).map(([k, v]) => `${k}=${showValue(v)}`).join(", ");
  return JSON.stringify(value);
}

/** The steps as calls, one per line. */
export const asLines = (steps: StepEdit[]): string => steps.map((s) => s.text?.trim() || `sch.${s.primitive}(${Object.entries(s.arguments).map(([k, v]) => `${k}=${python(v)}`).join(", ")})`).join("\n");

/** Steps as text to compare, whatever the order of their arguments. */
export const sorted = (steps: StepEdit[]): string =>
  JSON.stringify(steps.map((s) => [s.primitive, Object.entries(s.arguments).filter(([, v]) => v !== null).sort(([a], [b]) => (a < b ? -1 : 1))]));

function python(v: unknown): string {
  if (v === null) return "None";
  if (v === true) return "True";
  if (v === false) return "False";
  if (Array.isArray(v)) return `[${v.map(python).join(", ")}]`;
  if (typeof v === "object") return `{${Object.entries(v as object).map(([k, x]) => `'${k}': ${python(x)}`).join(", ")}}`;
  return typeof v === "string" ? `'${v.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'` : String(v);
}
