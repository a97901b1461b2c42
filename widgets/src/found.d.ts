/** What the files in panes/ declare, as find_panes.mjs finds them. */
declare module "panes:found" {
  export const FOUND: readonly import("./pane").PaneKind[];
}
