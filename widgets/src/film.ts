// Runs to play: frames of a program, what each tensor holds after a frame, and which tensors are worth showing.

/** [position, value, row, column, sign, right, what it should be]; of an input the first two. */
export type Write = [number, number | string, (number | null)?, (number | null)?, string?, (boolean | null)?, (number | string)?];

export interface Frame {
  name: string;
  segment: number;
  blocks: string[];
  loop: string;
}
export interface Tensor {
  name: string;
  kind: "input" | "tile" | "part" | "running" | "result";
  shape: number[];
  blocks: string[];
  frames: Write[][];
}
export interface Side {
  phase: string;
  title: string;
  wrong: boolean;
  rolling: string;
  frames: Frame[];
  tensors: Tensor[];
  pool: string[];
}
export interface Play {
  step: number;
  what: string;
  block: string;
}
export interface Film extends Play {
  sides: Side[];
}
/** What Python declares: a live page asks for films, a saved one has them. */
export interface PlayData {
  plays?: Play[];
  note?: string;
  films?: Film[];
  error?: string;
}

/** An element after a frame: `at` is the frame that wrote it last. */
export interface Held {
  write: Write;
  at: number;
}

/** What a tensor holds after each of its frames up to `frame`, by position. */
export function heldAt(tensor: Tensor, frame: number): Map<number, Held> {
  const held = new Map<number, Held>();
  tensor.frames.slice(0, frame + 1).forEach((writes, at) => {
    for (const write of writes) held.set(write[0], { write, at });
  });
  return held;
}

/** Whether a value is not the one of the definition. */
export const isWrong = (write: Write): boolean => write[5] === false;

/** The step to play at a stop: its own, else the last one before, else the first; for the kernel's stages the last. */
export function playFor(plays: readonly Play[], step: number): Play | null {
  if (!plays.length) return null;
  if (step < 0) return plays[plays.length - 1]!;
  const loops = plays.filter((p) => p.step >= 0);
  return [...loops].reverse().find((p) => p.step <= step) ?? loops[0] ?? plays[0]!;
}

const widest = (tensor: Tensor): number => Math.max(...tensor.frames.map((writes) => writes.length));
/** Its values and marks; rows and columns of the tag table are counted on each side anew. */
const runOf = (tensor: Tensor): string => JSON.stringify(tensor.frames.map((f) => f.map(([at, value, , , ...marks]) => [at, value, marks])));

/** The tensor whose tiles the first reduction of the loop runs over: of what is written before it the widest and latest,
else the widest input. */
export function tileOf(side: Side): Tensor | null {
  const first = side.tensors.findIndex((t) => t.kind === "running" || t.kind === "part");
  const before = side.tensors.slice(0, first < 0 ? undefined : first);
  const least = Math.max(1, first < 0 ? 0 : widest(side.tensors[first]!));
  const best = (kinds: readonly string[]) => before.filter((t) => kinds.includes(t.kind) && widest(t) >= least).reduce<Tensor | null>((a, b) => (a && widest(a) > widest(b) ? a : b), null);
  const any = side.tensors.filter((t) => t.kind === "tile").reduce<Tensor | null>((a, b) => (a && widest(a) >= widest(b) ? a : b), null);
  return best(["tile"]) ?? best(["input"]) ?? any;
}

/** The phase of a kernel's tiles, whose tensors are few. */
export const TILES = "htile";

/** The tensors of a side that are shown: the tile, what runs along the loop, parts where nothing runs beside the tile, and the outputs. */
export function telling(side: Side, outputs: readonly string[]): Tensor[] {
  if (side.phase === TILES) return side.tensors.filter((t) => t.kind !== "input");
  const tile = tileOf(side);
  const at = (t: Tensor) => side.frames[t.frames.findIndex((f) => f.length > 0)]?.segment;
  const split = tile !== null && !side.tensors.some((t) => t.kind === "running" && at(t) === at(tile));
  const combined = (t: Tensor) => split && t.kind === "result" && side.tensors.some((part) => part.kind === "part" && part.name === `${t.name}_local`);
  return side.tensors.filter((t) => t === tile || t.kind === "running" || (split && t.kind === "part") || combined(t) || outputs.includes(t.name));
}

export interface Group {
  /** Which side it is of; null: the same in all of them. */
  side: Side | null;
  tensors: Tensor[];
}

/** The shown tensors in groups: first those that are the same on all sides, then those of each side. */
export function groups(film: Film, outputs: readonly string[], all: boolean): Group[] {
  const shown = film.sides.map((side) => (all ? side.tensors : telling(side, outputs)));
  if (film.sides.length < 2) return [{ side: film.sides[0]!, tensors: shown[0]! }];
  const common = shown[0]!.filter((t) => shown.every((others) => others.some((o) => o.name === t.name && runOf(o) === runOf(t))));
  const names = new Set(common.map((t) => t.name));
  const own = film.sides.map((side, n) => ({ side, tensors: shown[n]!.filter((t) => !names.has(t.name)) }));
  return [...(common.length ? [{ side: null, tensors: common }] : []), ...own.filter((g) => g.tensors.length)];
}

export interface Grid {
  rows: number;
  columns: number;
}

/** A tensor as a matrix, like the tile's: the dimensions before the tile's last one are rows, the others columns. */
export function gridOf(tensor: Tensor, tile: Tensor | null): Grid {
  const rank = tensor.shape.length;
  const wanted = Math.max(0, (tile ?? tensor).shape.length - 1);
  const over = rank > 1 && rank < wanted ? rank - 1 : wanted;
  const size = (dims: number[]) => dims.reduce((a, b) => a * b, 1);
  return { rows: size(tensor.shape.slice(0, over)), columns: size(tensor.shape.slice(over)) };
}

/** The indices of a position: 5 of [2, 3] is [1, 2]. */
export function indexOf(shape: readonly number[], position: number): number[] {
  const found: number[] = [];
  for (let n = shape.length - 1, rest = position; n >= 0; n--) {
    found.unshift(rest % shape[n]!);
    rest = Math.floor(rest / shape[n]!);
  }
  return found;
}

/** The range of a tensor's finite magnitudes, over all frames and sides. */
export function scaleOf(film: Film, name: string): { low: number; high: number } {
  let [low, high] = [Infinity, 0];
  for (const side of film.sides)
    for (const t of side.tensors)
      if (t.name === name)
        for (const writes of t.frames)
          for (const [, value] of writes)
            if (typeof value === "number") [low, high] = [Math.min(low, Math.abs(value)), Math.max(high, Math.abs(value))];
  return { low: low === Infinity ? 0 : low, high };
}

/** A number in at most six characters, or with so many significant digits; with a true minus. */
export function brief(value: number | string, digits = 0): string {
  if (typeof value === "string") return value.replace("inf", "∞").replace("-", "−");
  const size = Math.abs(value);
  const small = size > 0 && size < 0.0005;
  const text = Number.isInteger(value) && size < 1e4 ? String(value) : digits ? value.toPrecision(digits) : small || size >= 1e4 ? value.toExponential(0) : size < 1 ? value.toFixed(3) : value.toPrecision(3);
  return text.replace("e+", "e").replaceAll("-", "−");
}

/** The significant digits that show each wrong value as another text than the definition's; 0 if the usual ones do. */
export function digitsApart(wrongs: readonly Write[]): number {
  const needed = wrongs.map(([, value, , , , , should]) => {
    if (typeof value !== "number" || typeof should !== "number" || value === should || brief(value) !== brief(should)) return 0;
    return Array.from({ length: 14 }, (_, n) => n + 3).find((n) => value.toPrecision(n) !== should.toPrecision(n)) ?? 17;
  });
  return Math.max(0, ...needed);
}

/** A number as precisely as it was sent. */
export const whole = (value: number | string): string => String(value).replace("inf", "∞").replaceAll("-", "−");
