/** What the files in panes/ declare, as find_panes.mjs finds them. */
declare module "panes:found" {
  export const FOUND: readonly import("./pane").PaneKind[];
}

/** Terms of docs/glossary.md with their definitions, as glossary.mjs reads them. */
declare module "glossary:terms" {
  export const TERMS: Readonly<Record<string, string>>;
}

/** A file as text, in the tests. */
declare module "*?raw" {
  const text: string;
  export default text;
}
