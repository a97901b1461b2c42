// MathML of the record, rebuilt element by element from a list of harmless ones.

const NS = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set(
  ("math mrow mi mn mo mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable mtr mtd mstyle " +
    "mpadded mphantom mfenced menclose").split(" "),
);
const ATTRIBUTES = new Set("display columnalign mathvariant stretchy fence separator form linethickness open close separators".split(" "));

/** A copy of `text` as MathML elements; null where it is not well formed or holds anything else. */
export function mathml(text: string): Element | null {
  if (!text) return null;
  const parsed = new DOMParser().parseFromString(text, "application/xml");
  const root = parsed.documentElement;
  if (!root || root.localName !== "math" || parsed.getElementsByTagName("parsererror").length) return null;
  return copy(root);
}

const make = (name: string, ...children: (Node | string)[]): Element => {
  const el = document.createElementNS(NS, name);
  el.append(...children);
  return el;
};
// Double-struck e and i read badly on a screen; a minus is not a hyphen.
const plainer = (text: string): string => text.replace(/\u2147/g, "e").replace(/\u2148/g, "i");

const LONG_NAME = /[\p{L}\p{N}]{2}/u;

/** Whether a product of these two factors needs a dot: beside a name of several letters, "t tot" reads as one name. */
export const needsDot = (before: string, after: string): boolean => LONG_NAME.test(before) || LONG_NAME.test(after);

/** The name or number at an end of a factor. */
function edge(el: Element | null, end: "first" | "last"): string {
  if (!el) return "";
  const inner = [...el.children];
  return inner.length && el.localName !== "msub" ? edge(end === "first" ? inner[0]! : inner[inner.length - 1]!, end) : (el.textContent ?? "");
}

function copy(from: Element): Element | null {
  if (!ELEMENTS.has(from.localName)) return null;
  if (from.localName === "msup" && from.children.length === 2 && from.children[1]!.textContent === "\u2032") {
    // A prime is high already: it stands beside its letter, not above it.
    const base = copy(from.children[0]!);
    if (base?.localName === "mi") base.append("\u2032");
    return base && (base.localName === "mi" ? base : make("mrow", base, make("mi", "\u2032")));
  }
  if (from.localName === "mo" && from.textContent === "\u2062" && needsDot(edge(from.previousElementSibling, "last"), edge(from.nextElementSibling, "first"))) return make("mo", "\u22c5");
  const to = document.createElementNS(NS, from.localName === "mfenced" ? "mrow" : from.localName);
  for (const { name, value } of from.attributes) if (ATTRIBUTES.has(name)) to.setAttribute(name, value);
  if (from.localName === "math") to.setAttribute("display", "inline");
  for (const child of from.childNodes) {
    if (child.nodeType === 3) to.append(from.localName === "mo" && child.nodeValue === "-" ? "\u2212" : plainer(child.nodeValue ?? ""));
    else if (child.nodeType === 1) {
      const inner = copy(child as Element);
      if (!inner) return null;
      to.append(inner);
    }
  }
  return to;
}
