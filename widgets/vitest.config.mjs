import { forVite as panes } from "./find_panes.mjs";
import { forVite as glossary } from "./glossary.mjs";

export default { plugins: [panes, glossary] };
