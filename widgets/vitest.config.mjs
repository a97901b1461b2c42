import { forVite as panes } from "./find_panes.mjs";
import { forVite as glossary } from "./glossary.mjs";

// One module graph for all files: no test changes a module's state, and a process per file takes most of the time.
export default { plugins: [panes, glossary], test: { isolate: false } };
