// The schedule being edited: a list of steps, pure changes to it, and which answer counts.

import type { EditError, StepEdit } from "./record";

export interface Edits {
  steps: StepEdit[];
  /** Of the newest question; answers to older ones are dropped. */
  seq: number;
  busy: boolean;
  error: EditError | null;
}

export type EditAction =
  | { type: "set"; index: number; name: string; value: unknown }
  | { type: "insert"; index: number; step: StepEdit }
  | { type: "remove"; index: number }
  | { type: "move"; from: number; to: number };

export const started = (steps: StepEdit[]): Edits => ({ steps, seq: 0, busy: false, error: null });

const plain = ({ primitive, arguments: a }: StepEdit): StepEdit => ({ primitive, arguments: a });

/** The steps after one change; the same list where nothing changes. `undefined` as a value drops the argument. */
export function change(steps: StepEdit[], action: EditAction): StepEdit[] {
  switch (action.type) {
    case "set": {
      const step = steps[action.index];
      if (!step || JSON.stringify(step.arguments[action.name]) === JSON.stringify(action.value)) return steps;
      const { [action.name]: _, ...rest } = step.arguments;
      const args = action.value === undefined ? rest : { ...step.arguments, [action.name]: action.value };
      return steps.map((s, n) => (n === action.index ? { primitive: s.primitive, arguments: args } : s));
    }
    case "insert":
      return [...steps.slice(0, action.index), plain(action.step), ...steps.slice(action.index)];
    case "remove":
      return action.index in steps ? steps.filter((_, n) => n !== action.index) : steps;
    case "move": {
      const { from, to } = action;
      if (from === to || !(from in steps) || to < 0 || to >= steps.length) return steps;
      const rest = steps.filter((_, n) => n !== from);
      return [...rest.slice(0, to), steps[from]!, ...rest.slice(to)];
    }
  }
}

/** A question was asked: what it asks about, and the number that its answer must carry. */
export const asked = (edits: Edits, seq: number, steps: StepEdit[] = edits.steps): Edits => ({ ...edits, steps, seq, busy: true });

/** An answer came; null where it was superseded. */
export function answered(edits: Edits, seq: number, steps: StepEdit[] | null, error: EditError | null): Edits | null {
  if (seq !== edits.seq) return null;
  // A refused edit stays as it was written, so that it can be mended.
  return { ...edits, busy: false, error, steps: error ? edits.steps : (steps ?? edits.steps) };
}

/** A step list as what `edit` carries. */
export const wire = (steps: StepEdit[]): { primitive: string; arguments: Record<string, unknown> }[] => steps.map(plain);
