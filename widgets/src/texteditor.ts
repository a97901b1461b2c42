// The schedule's text in CodeMirror, with the least that makes it pleasant: history, colours, line numbers, one error.

import * as c from "@codemirror/commands";
import { EditorSelection, EditorState, StateEffect, StateField, RangeSetBuilder } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, type KeyBinding, ViewPlugin, type ViewUpdate, WidgetType, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";

import type { EditError } from "./record";
import { tokenise } from "./tokens";

type Run = NonNullable<KeyBinding["run"]>;
const both = (key: string, run: Run, shift?: Run, mac?: string): KeyBinding => ({ key, run, preventDefault: true, ...(shift && { shift }), ...(mac && { mac }) });
/** Deletes the selection, or a character. */
const erase = (forward: boolean): Run => (view) => {
  const { state } = view;
  const change = state.changeByRange((range) => {
    const other = range.empty ? view.moveByChar(range, forward).head : range.anchor;
    const [from, to] = [Math.min(range.head, other), Math.max(range.head, other)];
    return { range: EditorSelection.cursor(from), changes: { from, to } };
  });
  if (change.changes.empty) return false;
  view.dispatch(state.update(change, { scrollIntoView: true, userEvent: `delete.${forward ? "forward" : "backward"}` }));
  return true;
};
// `standardKeymap` without what reads a language's syntax: 40 kB of the bundle, and a schedule's lines have no indentation.
const KEYS: readonly KeyBinding[] = [
  both("ArrowLeft", c.cursorCharLeft, c.selectCharLeft),
  both("Mod-ArrowLeft", c.cursorGroupLeft, c.selectGroupLeft, "Alt-ArrowLeft"),
  { mac: "Cmd-ArrowLeft", run: c.cursorLineBoundaryLeft, shift: c.selectLineBoundaryLeft, preventDefault: true },
  both("ArrowRight", c.cursorCharRight, c.selectCharRight),
  both("Mod-ArrowRight", c.cursorGroupRight, c.selectGroupRight, "Alt-ArrowRight"),
  { mac: "Cmd-ArrowRight", run: c.cursorLineBoundaryRight, shift: c.selectLineBoundaryRight, preventDefault: true },
  both("ArrowUp", c.cursorLineUp, c.selectLineUp),
  { mac: "Cmd-ArrowUp", run: c.cursorDocStart, shift: c.selectDocStart },
  both("ArrowDown", c.cursorLineDown, c.selectLineDown),
  { mac: "Cmd-ArrowDown", run: c.cursorDocEnd, shift: c.selectDocEnd },
  both("PageUp", c.cursorPageUp, c.selectPageUp),
  both("PageDown", c.cursorPageDown, c.selectPageDown),
  both("Home", c.cursorLineBoundaryBackward, c.selectLineBoundaryBackward),
  both("Mod-Home", c.cursorDocStart, c.selectDocStart),
  both("End", c.cursorLineBoundaryForward, c.selectLineBoundaryForward),
  both("Mod-End", c.cursorDocEnd, c.selectDocEnd),
  both("Enter", c.insertNewline, c.insertNewline),
  both("Mod-a", c.selectAll),
  both("Backspace", erase(false), erase(false)),
  both("Delete", erase(true)),
  both("Mod-Backspace", c.deleteGroupBackward, undefined, "Alt-Backspace"),
  both("Mod-Delete", c.deleteGroupForward, undefined, "Alt-Delete"),
  both("Alt-ArrowUp", c.moveLineUp),
  both("Alt-ArrowDown", c.moveLineDown),
];

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
    el.textContent = `✗ ${this.error.message}${this.error.help ? `\nhelp: ${this.error.help}` : ""}`;
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
        c.history(),
        drawSelection(),
        EditorView.lineWrapping,
        highlightActiveLine(),
        keymap.of([...c.historyKeymap, ...KEYS]),
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
