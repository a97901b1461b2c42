// The solver's model in a page that has Python inside: one question at a time, and the last one is the one that counts.

import type { Model } from "./app";

/** Answers questions, one after the other. */
export interface Answering {
  ask(fields: string): void;
  /** Ends the question that is being answered, with the answer that it was stopped; `patient`: another one waits, so that
      an answer in a moment is as good. */
  end(patient: boolean): void;
}

/** A model as anywidget's, whose questions go to Python in the page. */
export class LiveModel implements Model {
  private readonly heard = new Map<string, (() => void)[]>();
  private readonly state: Map<string, unknown>;
  /** The fields, as JSON, that are being answered, and those that wait. */
  private asked: string | null = null;
  private next: string | null = null;
  private python: Answering | null = null;

  constructor(state: Record<string, unknown>) {
    this.state = new Map(Object.entries({ ...state, running: false }));
  }

  get(name: string): unknown {
    return this.state.get(name);
  }

  set(name: string, value: unknown): void {
    if (name === "question") this.next = JSON.stringify(value);
    if (name === "running" && !value && this.asked === null) this.next = null;
    this.put(name, value);
  }

  on(name: string, f: (...args: never[]) => void): void {
    this.heard.set(name, [...(this.heard.get(name) ?? []), f as () => void]);
  }

  off(name: string, f?: (...args: never[]) => void): void {
    this.heard.set(name, f ? (this.heard.get(name) ?? []).filter((g) => g !== f) : []);
  }

  send(): void {}

  /** Asks what is new, and ends what is being answered: the user stopped it, or asked something else. */
  save_changes(): void {
    if (this.asked !== null) this.python?.end(this.get("running") === true);
    this.ask();
  }

  /** Python can answer. */
  ready(python: Answering): void {
    this.python = python;
    this.ask();
  }

  answered(answer: string): void {
    this.asked = null;
    if (this.next === null) {
      this.put("answer", JSON.parse(answer));
      this.put("running", false);
    }
    this.ask();
  }

  private put(name: string, value: unknown): void {
    this.state.set(name, value);
    for (const f of this.heard.get(`change:${name}`) ?? []) f();
  }

  private ask(): void {
    if (this.next === null) return;
    this.put("running", true);
    if (this.python === null || this.asked !== null) return;
    [this.asked, this.next] = [this.next, null];
    this.python.ask(this.asked);
  }
}
