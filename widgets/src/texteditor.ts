// The schedule's text in CodeMirror, with the least that makes it pleasant: history, colours, line numbers, one error.

import { history, historyKeymap, moveLineDown, moveLineUp, standardKeymap } from "@codemirror/commands";
import { EditorState, StateEffect, StateField, RangeSetBuilder } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, ViewPlugin, type ViewUpdate, WidgetType, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";

import type { EditError } from "./record";
import { tokenise } from "./tokens";

export interface TextEditor {
  set(text: string): void;
  /** Marks the error at its line and returns that line, counted from 1; a new one is brought into view. */
  mark(error: EditError | null): number | null;
  /** Brings a line into view, counted from 1. */
  reveal(line: number): void;
  /** To call once it is in the page, and again if it moves to another document or shadow root. */
  attached(): void;
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

/** The line of an error, counted from 1; null if it has none in this text. */
export function lineOf(error: EditError | null, lines: number): number | null {
  const at = error?.line ?? (typeof error?.step === "number" ? error.step + 1 : null);
  return typeof at === "number" && at >= 1 && at <= lines ? at : null;
}

const setError = StateEffect.define<EditError | null>();
const errorField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, tr) {
    marks = marks.map(tr.changes);
    for (const e of tr.effects)
      if (e.is(setError)) {
        const at = lineOf(e.value, tr.state.doc.lines);
        if (!e.value || at === null) marks = Decoration.none;
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
  let marked: EditError | null = null;
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        EditorView.lineWrapping,
        highlightActiveLine(),
        keymap.of([...historyKeymap, ...standardKeymap, { key: "Alt-ArrowUp", run: moveLineUp }, { key: "Alt-ArrowDown", run: moveLineDown }]),
        EditorView.contentAttributes.of({ "aria-label": "schedule as text" }),
        EditorView.updateListener.of((u) => {
          if (u.docChanged && !quiet) changed(u.state.doc.toString());
        }),
        errorField,
        colours,
      ],
    }),
  });
  const reveal = (line: number) => view.dispatch({ effects: EditorView.scrollIntoView(view.state.doc.line(line).from, { y: "center" }) });
  return {
    set(next) {
      const now = view.state.doc.toString();
      if (now.trim() === next.trim()) return;
      quiet = true;
      view.dispatch({ changes: { from: 0, to: now.length, insert: next } });
      quiet = false;
    },
    mark(error) {
      view.dispatch({ effects: setError.of(error) });
      const line = lineOf(error, view.state.doc.lines);
      if (error !== marked && line !== null) reveal(line);
      marked = error;
      return line;
    },
    reveal,
    attached() {
      // A widget may be drawn before it is in the page: its root is then an element, which has no selection.
      const root = parent.getRootNode();
      if ((root instanceof Document || root instanceof ShadowRoot) && root !== view.root) view.setRoot(root);
    },
    focused: () => view.hasFocus,
    destroy: () => view.destroy(),
  };
}
