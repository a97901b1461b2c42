// What the header says of the schedule: whether it is right, was refused, is being compiled, or has no Python any more.

import type { Connection } from "./connection";
import type { EditError, Payload } from "./record";

/** What the schedule's editor does at the moment. */
export interface Editing {
  busy: boolean;
  error: EditError | null;
}
export const AT_REST: Editing = { busy: false, error: null };

/** What a saved record that can be made again has no data for. */
export const AGAIN = "Recompile, in the header, makes its operator and steps again here.";

export interface Status {
  css: "" | "ok" | "bad";
  text: string;
  /** The whole of it. */
  title: string;
}

/** Why there may be no answer. */
const SILENT = "The kernel runs something else, or the browser was too busy when this widget started, and it gets no answers.";

/** Whether kernels run on a GPU: Python says of another device that there is none (`payload.device`). */
export const hasGpu = (payload: Payload): boolean => !payload.device.includes("no GPU");

/** Where an edit's error is, counted from 1: "line 11", "step 3"; "" if it is nowhere. */
export const placeOf = (e: EditError): string => (typeof e.line === "number" ? `line ${e.line}` : typeof e.step === "number" ? `step ${e.step + 1}` : "");

/** The result of a check in short: without tolerance, type and sizes. */
export function brief(check: string): string {
  const short = check.split("; ")[0]!.replace(/ \(tolerance [^)]*\)/, "").replace(/: relative error (\S+) in \w+$/, " · error $1").replace(" · error 0.0e+00", ", no difference");
  return check.includes("; the same steps") ? `${short} · smaller sizes` : short;
}

export function status(payload: Payload, live: boolean, connection: Connection, editing: Editing): Status {
  const { check } = payload;
  if (payload.live && connection === "lost")
    return { css: "bad", text: "✗ Python is gone: run the cell again", title: "The kernel was restarted or stopped. This shows what it computed last; to edit, check or time, run the cell again." };
  if (editing.error) {
    const place = placeOf(editing.error);
    return { css: "bad", text: `✗ edit refused${place ? ` at ${place}` : ""}`, title: `${editing.error.message}${editing.error.help ? `\nhelp: ${editing.error.help}` : ""}\nThe other panes show the schedule before this edit.` };
  }
  // A busy kernel, or a view that gets no answers: a page that was too busy to start it in the 2 s of anywidget drops them all.
  const waits = payload.live && connection === "silent";
  const [silent, why] = waits ? ["; no answer yet: if the kernel is idle, run the cell again", SILENT] : ["", ""];
  if (editing.busy) return { css: "", text: `… compiling${silent}`, title: why };
  if (!check) return { css: "", text: live ? `… checking${silent}` : "not checked", title: why };
  const sign = check.ok === null ? "–" : check.ok ? "✓" : "✗";
  return { css: check.ok === null ? "" : check.ok ? "ok" : "bad", text: `${sign} ${brief(check.text)}${silent}`, title: `numeric check: ${check.text}${why && `\n${why}`}` };
}
