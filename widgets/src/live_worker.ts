// Python in a worker of the gallery's live page.  Its first lines are Pyodide's two scripts, its files come in a message,
// and it loads nothing else: whatever Pyodide would fetch is one of those files, or an error.

interface Python {
  unpackArchive(data: ArrayBuffer, format: string, options: { extractDir: string }): void;
  runPython(code: string): unknown;
}
type Answered = (fields: string, seconds: number, stopped: () => boolean) => string;
declare const loadPyodide: (options: { indexURL: string; lockFileContents: string }) => Promise<Python>;

export interface Start {
  kind: "start";
  files: Record<string, ArrayBuffer>;
  /** An address that answers, if a worker of this page can read the page's addresses at all. */
  probe: string;
}
export interface Ask {
  kind: "ask";
  /** The fields, as JSON. */
  fields: string;
  /** An address that answers until the page wants the derivation stopped; "" if it is to be stopped at once. */
  stop: string;
}
export type Told = { kind: "step"; words: string } | { kind: "ready"; words: string; stops: boolean } | { kind: "answer"; answer: string } | { kind: "failed"; words: string };

const SITE = "/neptune_lab";
const SECONDS = 30; // of the clock, since a browser's Python is several times slower than the one that 10 s are meant for
const tell = (told: Told): void => self.postMessage(told);
let answered: Answered | null = null;
let stops = false;

async function start({ files, probe }: Start): Promise<void> {
  stops = !gone(probe);
  const types: Record<string, string> = { wasm: "application/wasm", json: "application/json" };
  self.fetch = async (what) => {
    const name = String(what instanceof Request ? what.url : what).split("/").pop() ?? "";
    const data = files[name];
    if (data === undefined) throw new TypeError(`the live page has no file ${name}, and loads nothing`);
    return new Response(data, { headers: { "Content-Type": types[name.split(".").pop() ?? ""] ?? "application/octet-stream" } });
  };
  tell({ kind: "step", words: "starting Python" });
  const lock = new TextDecoder().decode(files["pyodide-lock.json"]);
  const python = await loadPyodide({ indexURL: "https://files-of-this-page.invalid/", lockFileContents: lock });
  tell({ kind: "step", words: "importing SymPy and the solver" });
  python.unpackArchive(files["packages.zip"]!, "zip", { extractDir: SITE });
  answered = python.runPython(`import sys\nsys.path.insert(0, "${SITE}")\nfrom neptune_widgets.answers import answered\nanswered`) as Answered;
  const words = python.runPython('import sympy\nf"Python {sys.version.split()[0]}, SymPy {sympy.__version__}"') as string;
  tell({ kind: "ready", words, stops });
}

/** Whether the page has taken the address away. */
function gone(address: string): boolean {
  const asked = new XMLHttpRequest();
  try {
    asked.open("GET", address, false);
    asked.send();
    return false;
  } catch {
    return true;
  }
}

self.onmessage = async ({ data }: MessageEvent<Start | Ask>) => {
  try {
    if (data.kind === "start") await start(data);
    else tell({ kind: "answer", answer: answered!(data.fields, SECONDS, () => !data.stop || (stops && gone(data.stop))) });
  } catch (error) {
    tell({ kind: "failed", words: error instanceof Error ? error.message : String(error) });
  }
};
