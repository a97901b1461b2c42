// The bundle's two doors: `render` for anywidget, `mount` for a page with the payload inside and no Python.

import { type Model, explorer } from "./app";
import { h } from "./dom";

function failed(el: HTMLElement, error: unknown): () => void {
  const note = h("p", { role: "alert" }, `The explorer cannot show this: ${error instanceof Error ? error.message : String(error)}`);
  el.append(note);
  return () => note.remove();
}

export function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  try {
    return explorer(el, model.get("payload"), model, model.get("view"));
  } catch (error) {
    return failed(el, error);
  }
}

export function mount(el: HTMLElement, payload: unknown, view?: unknown): () => void {
  try {
    return explorer(el, payload, null, view ?? {});
  } catch (error) {
    return failed(el, error);
  }
}

export default { render };
