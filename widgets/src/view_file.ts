// Saved views: the format of neptune_widgets/views.py, so that the page and Python read each other's files.

import type { View } from "./state";

const FORMAT = "neptune_lab view";
const VERSION = 1;
const KEYS = ["step", "phase", "panes", "selection", "compare", "search", "iteration", "hidden", "sizes", "folded"];

export const viewFile = (view: View): string => `${JSON.stringify({ format: FORMAT, version: VERSION, view }, null, 1)}\n`;

/** The view in a file's text, to be read field by field; throws an Error that says what is wrong with the file. */
export function viewIn(text: string): unknown {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("not JSON");
  }
  if (typeof data !== "object" || data === null || Array.isArray(data)) throw new Error("not a saved view");
  if ("format" in data || "version" in data) {
    const { format, version, view } = data as Record<string, unknown>;
    if (format !== FORMAT) throw new Error("not a saved view");
    if (version !== VERSION) throw new Error(`a view of version ${String(version)}, this page reads version ${VERSION}`);
    if (typeof view !== "object" || view === null) throw new Error("not a saved view");
    return view;
  }
  // As pages wrote it before there was a format.
  if (!KEYS.some((key) => key in data)) throw new Error("not a saved view");
  return data;
}
