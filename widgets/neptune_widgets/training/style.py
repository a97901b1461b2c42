"""The style sheet of the picture of two passes.

Colours come from the page's own text colour, so that light, dark and contrast themes need no rules of their own.
"""

STYLE = """
.nt {
  container-type: inline-size;
  --line: color-mix(in srgb, currentColor 38%, transparent); --soft: color-mix(in srgb, currentColor 6%, transparent);
  --dim: color-mix(in srgb, currentColor 78%, transparent); --ok: color-mix(in srgb, #0c8a4c 66%, currentColor);
  --bad: color-mix(in srgb, #d0421b 62%, currentColor); --chosen: var(--jp-brand-color1, #2f7fd6);
  --paper: var(--jp-layout-color1, var(--vscode-editor-background, Canvas));
  color: var(--jp-content-font-color1, inherit);
  font: 13px/1.5 var(--jp-ui-font-family, system-ui, "Segoe UI", "DejaVu Sans", sans-serif);
  border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; margin: 2px; text-align: left;
}
.nt *, .nt *::before { box-sizing: border-box; }
.nt [hidden] { display: none; }
.nt h3, .nt h4, .nt p, .nt ul { margin: 0; padding: 0; }
.nt h3 { font-size: 15px; font-weight: 600; }
.nt h4 { font-size: 13px; font-weight: 600; padding: 12px 0 2px; }
.nt > p { color: var(--dim); max-width: 110ch; }
.nt code, .nt pre { font: 12px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; background: none;
  color: inherit; padding: 0; }
.nt pre { background: var(--soft); border-radius: 6px; padding: 6px 10px; margin: 4px 0 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.nt small { font-size: 11.5px; color: var(--dim); }
.nt :focus-visible { outline: 2px solid var(--chosen); outline-offset: 1px; }
.nt .main { display: flex; flex-flow: row-reverse wrap; justify-content: flex-end; gap: 10px 16px;
  align-items: flex-start; margin-top: 10px; position: relative; }
.nt .picture { flex-grow: 9999; min-width: 0; overflow-x: auto; }
.nt .panel { order: -1; flex: 1 1 350px; min-width: 0; border: 1px solid var(--line); border-radius: 8px;
  padding: 8px 12px; max-height: min(88vh, 760px); overflow-y: auto; background: var(--paper); }
.nt .main.over .panel:not([aria-hidden]) { position: absolute; width: min(420px, 100%); z-index: 2; max-height: 420px;
  box-shadow: 0 3px 14px rgb(0 0 0 / 30%); }
.nt .panel h4 { padding-top: 0; font-size: 14px; }
.nt .panel p { margin: 4px 0; }
.nt .why { color: var(--dim); }
.nt .rule { border-left: 3px solid var(--line); padding: 0 0 2px 10px; margin: 6px 0; }
.nt .rule ul { list-style: none; }
.nt summary { cursor: pointer; overflow-wrap: anywhere; }
.nt .stages details { border-top: 1px solid var(--line); padding: 3px 0; }
.nt .stages details > div { padding: 0 0 6px 16px; }
.nt.js .stages { display: none; }
.nt svg { display: block; max-width: 100%; height: auto; color: inherit; font-family: inherit; }
.nt .frame { fill: var(--soft); stroke: var(--line); }
.nt .title { font-size: 11.5px; fill: var(--dim); }
.nt .edge { fill: none; stroke: currentColor; stroke-opacity: .45; }
.nt .edge.head { fill: currentColor; fill-opacity: .6; stroke: none; }
.nt .kept { fill: none; stroke: var(--ok); stroke-width: 2; }
.nt .kept.head { fill: var(--ok); stroke: none; }
.nt .label rect { fill: var(--paper); stroke: var(--ok); stroke-width: 1.5; }
.nt .label text { font-size: 11px; fill: currentColor; text-anchor: middle; }
.nt .box { cursor: pointer; }
.nt .box rect { fill: var(--paper); stroke: currentColor; stroke-opacity: .6; }
.nt .box.input rect { stroke-opacity: .3; }
.nt .box.again rect { stroke-dasharray: 4 3; }
.nt .box.keep rect { stroke: var(--ok); stroke-opacity: 1; stroke-width: 2.5; }
.nt .box.result .name { text-decoration: underline; text-underline-offset: 2px; }
.nt .box text { text-anchor: middle; fill: currentColor; }
.nt .box .name { font-size: 12px; font-weight: 600; }
.nt .box .what { font-size: 10.5px; fill: var(--dim); }
.nt .box:focus-visible { outline: none; }
.nt .box:focus-visible rect, .nt .box[aria-selected="true"] rect { stroke: var(--chosen); stroke-opacity: 1;
  stroke-width: 3; }
.nt .box.related rect { fill: color-mix(in srgb, var(--chosen) 14%, var(--paper)); }
.nt .lit.edge { stroke: var(--chosen); stroke-opacity: 1; stroke-width: 2; }
.nt .lit.edge.head { fill: var(--chosen); fill-opacity: 1; stroke: none; }
.nt .lit.kept { stroke-width: 3.5; }
.nt .lit.kept.head { stroke: none; }
.nt .legend { width: 0; min-width: 100%;
  display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 12px; color: var(--dim); padding-top: 6px; }
.nt .legend .k::before { content: ""; display: inline-block; width: 18px; height: 11px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; border: 1px solid currentColor; }
.nt .legend .keep::before { border: 2.5px solid var(--ok); }
.nt .legend .again::before { border-style: dashed; }
.nt .legend .line::before { height: 0; border: 0; border-top: 2.5px solid var(--ok); vertical-align: 4px;
  border-radius: 0; }
.nt .scroll { overflow-x: auto; }
.nt table { border-collapse: collapse; width: 100%; font-size: 12.5px; margin: 4px 0; }
.nt table th, .nt table td { text-align: left; vertical-align: top; padding: 3px 14px 3px 0;
  border-bottom: 1px solid var(--line); background: none; }
.nt th { font-weight: 600; white-space: nowrap; }
.nt table .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.nt tr.kept td:nth-child(2) { font-weight: 600; }
.nt td:last-child { min-width: 26ch; }
.nt input[type=checkbox] { accent-color: var(--ok); margin: 0; vertical-align: -2px; }
.nt button { font: inherit; color: inherit; background: none; border: 1px solid var(--line); border-radius: 6px;
  padding: 2px 12px; cursor: pointer; }
.nt button:hover { background: var(--soft); }
.nt button:disabled { opacity: .6; cursor: default; }
.nt button.to { border: 0; padding: 0 1px; border-radius: 3px;
  font: 12px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.nt.js button.to { text-decoration: underline; text-underline-offset: 2px; text-decoration-color: var(--line); }
.nt .opening { padding-top: 10px; }
.nt .opening p { display: inline-block; margin: 0 8px 4px 0; }
.nt .error { color: var(--bad); }
.nt .error:empty { display: none; }
.nt.busy .values { opacity: .55; }
@media print {
  .nt { border: 0; color-scheme: light; color: #000; --paper: #fff; }
  .nt .main { display: block; }
  .nt .picture { overflow: visible; }
  .nt .picture svg { width: 100%; }
  .nt .panel, .nt .opening > p { display: none; }
  .nt.js .stages { display: block; }
  .nt .stages details, .nt tr { break-inside: avoid; }
  .nt .stages details details { break-inside: auto; }
  .nt h4 { break-after: avoid; }
}
@container (max-width: 760px) {
  .nt table .n { white-space: normal; }
  .nt table th, .nt table td { padding-right: 9px; }
  .nt td:last-child { min-width: 16ch; }
}
@container (max-width: 560px) {
  .nt thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .nt tbody { display: block; }
  .nt tr { display: grid; grid-template-columns: auto 1fr auto; gap: 0 8px; padding: 5px 0;
    border-bottom: 1px solid var(--line); }
  .nt table td { border: 0; padding: 0; }
  .nt table td:nth-child(3) { text-align: right; }
  .nt table td:nth-child(n + 4) { grid-column: 1 / -1; text-align: left; }
  .nt table td[data-of]::before { content: attr(data-of) ": "; color: var(--dim); }
  .nt table td br { display: none; }
  .nt table td small { margin-left: 6px; }
}
"""

__all__ = ["STYLE"]
