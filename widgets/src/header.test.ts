import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { watchConnection } from "./connection";
import { fixture } from "./fixture";
import { fastest } from "./panes/timing";
import { type Payload, type TimingRow, languageOf, stopName } from "./record";
import { EMPTY, readView } from "./state";
import { AT_REST, brief, status } from "./status";
import { viewFile, viewIn } from "./view_file";

const payload = { check: { ok: true, text: "equals" }, live: true } as Payload;

describe("what the header says", () => {
  it("is green only if nothing is wrong", () => {
    expect(status(payload, true, "alive", AT_REST)).toMatchObject({ css: "ok", text: "✓ equals" });
    expect(status({ ...payload, check: { ok: false, text: "differs" } }, true, "alive", AT_REST).css).toBe("bad");
    expect(status({ ...payload, check: { ok: null, text: "no" } }, true, "alive", AT_REST).css).toBe("");
  });
  it("is not green for a refused edit, one on its way, or without Python", () => {
    const refused = { busy: false, error: { message: "there is no block", line: 11 } };
    expect(status(payload, true, "alive", refused)).toMatchObject({ css: "bad", text: "✗ edit refused at line 11" });
    expect(status(payload, true, "alive", { busy: false, error: { message: "m", step: 2 } }).text).toContain("at step 3");
    expect(status(payload, true, "alive", { busy: true, error: null })).toMatchObject({ css: "", text: "… compiling" });
    expect(status(payload, false, "lost", AT_REST).css).toBe("bad");
    expect(status({ ...payload, live: false }, false, "lost", AT_REST).css).toBe("ok"); // a page on its own never had Python
  });
  it("is short", () => {
    expect(brief("equals the definition: relative error 1.4e-16 in float64 (tolerance 1e-09)")).toBe("equals the definition · error 1.4e-16");
    expect(brief("equals it (tolerance 1e-09); the same steps at q_len=8, since 9 stores are too many")).toBe("equals it · smaller sizes");
    expect(brief("equals the definition: relative error 0.0e+00 in float64 (tolerance 1e-09)")).toBe("equals the definition, no difference");
    expect(brief("not checked: why")).toBe("not checked: why");
  });
  it("says that an answer is late, in every state, and what helps if none can come", () => {
    for (const [of, editing] of [[{ ...payload, check: null }, AT_REST], [payload, { busy: true, error: null }], [payload, AT_REST]] as const) {
      const said = status(of, true, "silent", editing);
      expect(said.text).toContain("no answer yet: if the kernel is idle, run the cell again");
      expect(said.title).toContain("this widget started");
    }
  });
});

describe("the connection", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());
  const model = () => ({
    sent: [] as { seq: number }[],
    broken: false,
    tell: () => {},
    send(m: unknown) {
      if (this.broken) throw new Error("Cannot send");
      this.sent.push(m as { seq: number });
    },
    on(_: string, f: () => void) {
      this.tell = f;
    },
    off() {},
  });

  it("is silent while an answer is late, and alive again once it came", () => {
    const states: string[] = [];
    const watch = watchConnection(model(), () => states.push(watch.state()), 1000);
    watch.send({ kind: "check", seq: 1 });
    vi.advanceTimersByTime(999);
    expect(states).toEqual([]);
    vi.advanceTimersByTime(1);
    watch.heard(1);
    watch.send({ kind: "check", seq: 2 });
    watch.heard(2);
    watch.send({ kind: "cancel", seq: 3 }); // has no answer of its own
    vi.advanceTimersByTime(5000);
    expect(states).toEqual(["silent", "alive"]);
  });
  it("is lost once the model tells, until Python answers", () => {
    const wire = model();
    const watch = watchConnection(wire, () => {});
    wire.tell();
    expect(watch.state()).toBe("lost");
    watch.heard(wire.sent[0]!.seq); // it was only looked at again
    expect(watch.state()).toBe("alive");
    wire.broken = true;
    wire.tell();
    expect(watch.state()).toBe("lost");
  });
  it("is lost if sending fails, and then sends nothing", () => {
    const wire = model();
    const watch = watchConnection(wire, () => {});
    wire.broken = true;
    expect(watch.send({ kind: "check", seq: 1 })).toBe(false);
    expect(watch.state()).toBe("lost");
    wire.broken = false;
    expect(watch.send({ kind: "check", seq: 2 })).toBe(false);
    expect(wire.sent).toEqual([]);
  });
});

describe("saved views", () => {
  it("are read back", () => {
    const view = { ...EMPTY, step: 3, phase: "naive", selection: ["store:x"] };
    expect(readView(viewIn(viewFile(view)), EMPTY, [])).toEqual(view);
    expect(viewIn('{"step": 2}')).toEqual({ step: 2 }); // as pages wrote it before there was a format
  });
  it.each(["", "[]", "null", "3", "{}", '{"foo": 1}', '{"format": "other", "version": 1, "view": {}}', '{"format": "neptune_lab view", "version": 9, "view": {}}', '{"format": "neptune_lab view", "version": 1, "view": 3}'])("%j is refused", (text) => {
    expect(() => viewIn(text)).toThrow();
  });
});

describe("timing", () => {
  const row = (name: string, us: number | null, estimate = false): TimingRow => ({ name, us, spread: null, tflops: null, gbps: null, estimate, note: "" });
  it("ranks measured times only", () => {
    expect(fastest([row("a", 2), row("b", 1)])?.name).toBe("b");
    expect(fastest([row("a", 0.1109, true), row("b", 0.1092, true)])).toBeNull();
    expect(fastest([row("a", 2), row("b", 1, true)])).toBeNull();
    expect(fastest([row("a", 2), row("b", null)])).toBeNull();
  });
});

describe("names of stops", () => {
  it("tell steps of one primitive apart", () => {
    const { stops } = fixture();
    const names = stops.map(stopName);
    expect(new Set(names).size).toBe(names.length);
    expect(names).toContain("2 · set_scope(s_sum, local)");
    expect(names).toContain("1 a · naive");
  });
  it("call the source by its language", () => {
    expect(languageOf("@triton.jit\ndef f(): ...")).toBe("Triton");
    expect(languageOf("@gluon.jit\ndef f(): ...")).toBe("Gluon");
    expect(languageOf("@gluon.jit\ndef f(): ...\n@triton.jit\ndef g(): ...")).toBe("Gluon and Triton");
  });
});
