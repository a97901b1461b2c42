import { forVite } from "./find_panes.mjs";

export default { plugins: [forVite] };
