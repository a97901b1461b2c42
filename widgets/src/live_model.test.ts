// The live page's model: one question at a time, the last one wins, and Stop ends what runs.

import { describe, expect, test, vi } from "vitest";
import { type Answering, LiveModel } from "./live_model";

class Python implements Answering {
  readonly asked: string[] = [];
  readonly ended: boolean[] = [];
  ask(fields: string): void {
    this.asked.push(fields);
  }
  end(patient: boolean): void {
    this.ended.push(patient);
  }
}

function model(): { model: LiveModel; python: Python; write(g: string): void; stop(): void } {
  const model = new LiveModel({ question: { g: "first" }, answer: { of: "first" } });
  const save = (name: string, value: unknown) => (model.set(name, value), model.save_changes());
  return { model, python: new Python(), write: (g) => save("question", { g }), stop: () => save("running", false) };
}

describe("the live page's model", () => {
  test("a question waits for Python, and only the last one is asked", () => {
    const { model: m, python, write } = model();
    write("a");
    write("b");
    expect([m.get("running"), python.asked]).toEqual([true, []]);
    m.ready(python);
    expect(python.asked).toEqual(['{"g":"b"}']);
    m.answered('{"of":"b"}');
    expect([m.get("running"), m.get("answer")]).toEqual([false, { of: "b" }]);
  });

  test("a later question ends the one that is being answered, whose answer is not shown", () => {
    const { model: m, python, write } = model();
    const shown = vi.fn();
    m.on("change:answer", shown);
    m.ready(python);
    write("a");
    write("b");
    write("c");
    expect([python.asked.length, python.ended]).toEqual([1, [true, true]]);
    m.answered('{"of":"a"}');
    expect([shown.mock.calls.length, m.get("running"), python.asked[1]]).toEqual([0, true, '{"g":"c"}']);
    m.answered('{"of":"c"}');
    expect([shown.mock.calls.length, m.get("answer"), m.get("running")]).toEqual([1, { of: "c" }, false]);
  });

  test("Stop ends the question at once, and its answer says so", () => {
    const { model: m, python, write, stop } = model();
    m.ready(python);
    write("a");
    stop();
    expect(python.ended).toEqual([false]);
    m.answered('{"of":"a","stopped":true}');
    expect([m.get("answer"), m.get("running")]).toEqual([{ of: "a", stopped: true }, false]);
  });

  test("Stop before Python is there leaves nothing to ask", () => {
    const { model: m, python, write, stop } = model();
    write("a");
    stop();
    m.ready(python);
    expect([python.asked, m.get("running")]).toEqual([[], false]);
  });

  test("who no longer listens hears nothing", () => {
    const { model: m } = model();
    const heard = vi.fn();
    m.on("change:running", heard);
    m.off("change:running", heard);
    m.set("running", true);
    expect(heard).not.toHaveBeenCalled();
  });
});
