// The schedule's text in CodeMirror, with the least that makes it pleasant: history, colours, line numbers, one error.

import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { EditorState, StateEffect, StateField, RangeSetBuilder } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, ViewPlugin, type ViewUpdate, WidgetType, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";

import type { EditError } from "./record";
import { tokenise } from "./tokens";

export interface TextEditor {
  set(text: string): void;
  mark(error: EditError | null): void;
  focused(): boolean;
  destroy(): void;
}

class ErrorWidget extends WidgetType {
  constructor(private error: EditError) {
    super();
  }
  override eq(other: ErrorWidget): boolean {
    return other.error.message === this.error.message && other.error.help === this.error.help;
  }
  toDOM(): HTMLElement {
    const el = document.createElement("div");
    el.className = "cmbad";
    el.textContent = `✗ ${this.error.message}${this.error.help ? `\ntry: ${this.error.help}` : ""}`;
    return el;
  }
}

const setError = StateEffect.define<EditError | null>();
const errorField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, tr) {
    marks = marks.map(tr.changes);
    for (const e of tr.effects)
      if (e.is(setError)) {
        const at = e.value?.line ?? (typeof e.value?.step === "number" ? e.value.step + 1 : null);
        if (!e.value || typeof at !== "number" || at < 1 || at > tr.state.doc.lines) marks = Decoration.none;
        else {
          const line = tr.state.doc.line(at);
          marks = Decoration.set([
            Decoration.line({ class: "cmbadline" }).range(line.from),
            Decoration.widget({ widget: new ErrorWidget(e.value), block: true, side: 1 }).range(line.to),
          ]);
        }
      }
    return marks;
  },
  provide: (f) => EditorView.decorations.from(f),
});

const MARKS = Object.fromEntries(["k", "n", "c", "s", "f"].map((k) => [k, Decoration.mark({ class: `t-${k}` })]));
const colours = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = this.make(view);
    }
    update(u: ViewUpdate): void {
      if (u.docChanged || u.viewportChanged) this.decorations = this.make(u.view);
    }
    make(view: EditorView): DecorationSet {
      const out = new RangeSetBuilder<Decoration>();
      for (const { from, to } of view.visibleRanges)
        for (let line = view.state.doc.lineAt(from); ; line = view.state.doc.line(line.number + 1)) {
          let at = line.from;
          for (const t of tokenise(line.text)) {
            const mark = MARKS[t.kind];
            if (mark) out.add(at, at + t.text.length, mark);
            at += t.text.length;
          }
          if (line.to >= to || line.number === view.state.doc.lines) break;
        }
      return out.finish();
    }
  },
  { decorations: (v) => v.decorations },
);

export function textEditor(parent: HTMLElement, text: string, changed: (text: string) => void): TextEditor {
  let quiet = false;
  const view = new EditorView({
    parent,
    root: parent.getRootNode() as Document | ShadowRoot,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        EditorView.lineWrapping,
        highlightActiveLine(),
        keymap.of([...historyKeymap, ...defaultKeymap]),
        EditorView.contentAttributes.of({ "aria-label": "schedule as text" }),
        EditorView.updateListener.of((u) => {
          if (u.docChanged && !quiet) changed(u.state.doc.toString());
        }),
        errorField,
        colours,
      ],
    }),
  });
  return {
    set(next) {
      const now = view.state.doc.toString();
      if (now.trim() === next.trim()) return;
      quiet = true;
      view.dispatch({ changes: { from: 0, to: now.length, insert: next } });
      quiet = false;
    },
    mark: (error) => view.dispatch({ effects: setError.of(error) }),
    focused: () => view.hasFocus,
    destroy: () => view.destroy(),
  };
}
