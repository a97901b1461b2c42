// Tag tables: those in the payload, those asked for, and the inputs as edited.

import type { Context, Message } from "./context";
import type { Numeral, Stop, Table, TagInput, Values } from "./record";

export class TagStore {
  /** The inputs as edited; null while they are the payload's. */
  inputs: TagInput[] | null = null;
  error = "";
  private version = 0;
  private tables = new Map<string, Table>();
  private waiting = new Map<number, { key: string; version: number }>();
  private failed = new Map<string, string>();

  constructor(private ctx: Context) {}

  reset(): void {
    this.version++;
    this.tables.clear();
    this.failed.clear();
    this.waiting.clear();
    const now = this.ctx.payload.tags?.inputs ?? [];
    const fits = this.inputs?.length === now.length && this.inputs.every((x, n) => x.name === now[n]!.name && `${x.shape}` === `${now[n]!.shape}`);
    if (!fits) this.inputs = null;
  }

  rolling(): string {
    const tags = this.ctx.payload.tags;
    const chosen = this.ctx.view.panes.rolling;
    return chosen && tags?.rolling.includes(chosen) ? chosen : "";
  }

  shownInputs(): TagInput[] {
    return this.inputs ?? this.ctx.payload.tags?.inputs ?? [];
  }

  private key(stop: Stop): string {
    return `${stop.key}|${this.rolling()}`;
  }

  /** The table of a stop, where it is there. */
  get(stop: Stop): Table | null {
    const own = this.tables.get(this.key(stop));
    if (own) return own;
    if (this.inputs) return null;
    const given = this.ctx.payload.tags?.tables[stop.key];
    const rolling = this.rolling();
    return given && (!rolling || given.rolling === rolling) ? given : null;
  }

  failure(stop: Stop): string | null {
    if (stop.refused) return "A refused step changes nothing: see the values of the step before.";
    return this.failed.get(this.key(stop)) ?? null;
  }

  busy(): boolean {
    return [...this.waiting.values()].some((w) => w.version === this.version);
  }

  /** Asks Python for a stop's table, once. */
  ask(stop: Stop): void {
    const key = this.key(stop);
    if (!this.ctx.live || stop.refused || this.failed.has(key) || [...this.waiting.values()].some((w) => w.key === key && w.version === this.version)) return;
    const tags = this.ctx.payload.tags;
    const rolling = this.rolling() || tags?.tables[stop.key]?.rolling || tags?.rolling[0] || "";
    const inputs = this.inputs && Object.fromEntries(this.inputs.map((x) => [x.name, x.values]));
    const seq = this.ctx.send({ kind: "tags", step: stop.step, phase: stop.phase, rolling, ...(inputs ? { inputs } : {}) });
    this.waiting.set(seq, { key, version: this.version });
  }

  answer(m: Message): boolean {
    const asked = this.waiting.get(m.seq);
    if (!asked) return false;
    this.waiting.delete(m.seq);
    if (asked.version !== this.version) return false;
    if (m.kind === "tags" && m.table) this.tables.set(asked.key, m.table as Table);
    else this.failed.set(asked.key, String(m.message ?? "the table could not be computed"));
    return true;
  }

  /** One number of an input changed. */
  edit(name: string, index: number[], value: Numeral): void {
    const copy = (v: Values): Values => (Array.isArray(v) ? v.map(copy) : v);
    this.inputs = this.shownInputs().map((x) => ({ ...x, values: copy(x.values) }));
    const input = this.inputs.find((x) => x.name === name)!;
    if (!index.length) input.values = value;
    else {
      let at = input.values as Values[];
      for (const n of index.slice(0, -1)) at = at[n] as Values[];
      at[index[index.length - 1]!] = value;
    }
    this.invalidate();
  }
  restore(): void {
    this.inputs = null;
    this.invalidate();
  }
  private invalidate(): void {
    this.version++;
    this.tables.clear();
    this.failed.clear();
  }
}
