// The gallery's live page: the solver's panel, with Python in a worker of the page in place of a kernel.
//
// The page has the panel's first state.  Pyodide, SymPy and the solver are in scripts beside it, a part of one archive in
// each, because a page from disk may load scripts and nothing else.

import { h } from "./dom";
import { type Answering, LiveModel } from "./live_model";
import type { Ask, Start, Told } from "./live_worker";
import { render } from "./solver";
import style from "./live.css";

interface Given {
  /** Of the panel: question, answer and reducers. */
  state: Record<string, unknown>;
  /** Names of the scripts, in order, and how many bytes of the archive each has. */
  parts: { file: string; bytes: number }[];
  /** Where each file is in the archive, compressed with gzip. */
  files: Record<string, { start: number; end: number }>;
  /** Script of the worker, after Pyodide's. */
  worker: string;
}

const PATIENCE = 4000; // milliseconds for an answer that nobody waits for, before a new worker starts instead

/** Python in a worker.  If the worker cannot read the page's addresses (from disk), only its end stops it: another worker
    starts, which takes seconds, and says of the question that it was stopped. */
class PythonWorker implements Answering {
  private worker: Worker | null = null;
  private stops = false;
  private fields = "";
  private stop = "";

  constructor(
    private readonly source: string,
    private readonly files: Start["files"],
    private readonly told: (told: Told) => void,
  ) {}

  start(then: () => void): void {
    const worker = (this.worker = new Worker(this.source));
    const probe = URL.createObjectURL(new Blob([]));
    worker.onerror = (event) => this.told({ kind: "failed", words: event.message || "its worker did not start" });
    worker.onmessage = ({ data }: MessageEvent<Told>) => {
      if (data.kind === "ready") (URL.revokeObjectURL(probe), (this.stops = data.stops));
      this.told(data);
      if (data.kind === "ready") then();
    };
    worker.postMessage({ kind: "start", files: this.files, probe } satisfies Start);
  }

  ask(fields: string): void {
    this.fields = fields;
    this.post(URL.createObjectURL(new Blob([])));
  }

  end(patient: boolean): void {
    URL.revokeObjectURL(this.stop);
    if (this.stops || this.worker === null) return;
    const stop = this.stop;
    if (patient) return void setTimeout(() => this.stop === stop && this.end(false), PATIENCE);
    this.worker.terminate();
    this.worker = null;
    this.start(() => this.post(""));
  }

  private post(stop: string): void {
    this.stop = stop;
    this.worker!.postMessage({ kind: "ask", fields: this.fields, stop } satisfies Ask);
  }
}

const megabytes = (bytes: number): string => `${(bytes / 1e6).toFixed(1)} MB`;

/** The archive, from the scripts beside the page; `told` hears how many bytes there are. */
async function archive(parts: Given["parts"], told: (bytes: number) => void): Promise<Uint8Array> {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.bytes, 0));
  let done = 0;
  const page = window as unknown as { neptunePart?: (text: string) => void };
  for (const part of parts) {
    let found = "";
    page.neptunePart = (text) => void (found = text);
    await new Promise<void>((resolve, reject) => {
      const missing = () => reject(new Error(`${part.file} is not beside this page`));
      document.head.append(h("script", { src: part.file, onload: () => resolve(), onerror: missing }));
    });
    const bytes = Uint8Array.from(atob(found), (c) => c.charCodeAt(0));
    if (bytes.length !== part.bytes) throw new Error(`${part.file} has ${bytes.length} bytes, expected ${part.bytes}: build the gallery again`);
    whole.set(bytes, done);
    told((done += bytes.length));
  }
  return whole;
}

async function unpacked(data: Uint8Array, files: Given["files"]): Promise<Record<string, ArrayBuffer>> {
  const open = async ({ start, end }: { start: number; end: number }) =>
    new Response(new Blob([data.slice(start, end)]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  return Object.fromEntries(await Promise.all(Object.entries(files).map(async ([name, at]) => [name, await open(at)] as const)));
}

export async function live(el: HTMLElement, given: Given): Promise<void> {
  const model = new LiveModel(given.state);
  const total = given.parts.reduce((sum, part) => sum + part.bytes, 0);
  const bar = h("progress", { max: total, value: 0, "aria-label": "Python is loading" });
  const words = h("span", { role: "status" }, `loading Python and SymPy, ${megabytes(total)}`);
  const line = h("p", { class: "loading" }, bar, words);
  el.append(h("style", {}, style), line);
  render({ model, el });

  const failed = (why: string): void => {
    bar.remove();
    line.setAttribute("role", "alert");
    line.className = "loading failed";
    const note = location.protocol === "file:" ? " If the browser does not let a page from disk run Python, serve this folder (python -m http.server) and open http://localhost:8000/live.html." : "";
    words.textContent = `✗ The solver cannot answer here: ${why}.${note}`;
  };
  try {
    const data = await archive(given.parts, (bytes) => {
      bar.value = bytes;
      words.textContent = `loading Python and SymPy, ${megabytes(bytes)} of ${megabytes(total)}`;
    });
    const { "pyodide.js": first, "pyodide.asm.js": second, ...files } = await unpacked(data, given.files);
    const source = URL.createObjectURL(new Blob([first!, "\n", second!, "\n", given.worker], { type: "text/javascript" }));
    const python = new PythonWorker(source, files, (told) => {
      if (told.kind === "step") words.textContent = `${told.words} …`;
      else if (told.kind === "answer") model.answered(told.answer);
      else if (told.kind === "failed") failed(told.words);
      else {
        bar.remove();
        words.textContent = `✓ ${told.words}, in this page: nothing that you write leaves it.`;
      }
    });
    python.start(() => model.ready(python));
  } catch (error) {
    failed(error instanceof Error ? error.message : String(error));
  }
}

const here = document.getElementById("live");
if (here) void live(here, JSON.parse(document.getElementById("given")!.textContent!));
