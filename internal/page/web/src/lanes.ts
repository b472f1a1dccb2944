// Draws one lane per rank: its memory map, or its calls, over requests.

import { h, count, size } from "./dom.js";
import { Kind } from "./format.js";
import { Search } from "./search.js";
import { Sequence } from "./model.js";
import { Tiles, tileWidth } from "./tiles.js";
import { Track } from "./track.js";
import { View } from "./view.js";

const coarser = 10; // levels in which a substitute for a missing tile is looked up
const clickDistance = 5; // pixels by which a click may move
// Milliseconds per frame for painting tiles: while the view moves, and afterwards.
const movingPaintTime = 6;
const restingPaintTime = 40;
const restAfter = 150; // milliseconds since the view moved

interface Lane {
  track: Track;
  index: number;
  canvas: HTMLCanvasElement;
  label: HTMLElement;
  visible: boolean;
  drawn: string; // the state that the canvas shows; empty if it must be drawn again
}

export class Lanes {
  readonly node = h("div", { id: "lanes" });
  private lanes: Lane[] = [];
  private tiles: Tiles | null = null;
  private shown: Sequence | null = null;
  private readonly observer: IntersectionObserver;
  private pointers = new Map<number, { x: number; startX: number; startY: number }>();
  private range = ""; // that is drawn
  private movedAt = -Infinity; // when the range changed
  height = 72;
  width = 1; // of the canvases, in CSS pixels

  constructor(
    private readonly view: View,
    private readonly search: Search,
    private readonly redraw: () => void,
  ) {
    this.observer = new IntersectionObserver(
      (entries) => {
        for (const e of entries) {
          const lane = this.lanes.find((l) => l.canvas === e.target);
          if (lane !== undefined) {
            lane.visible = e.isIntersecting;
          }
        }
        redraw();
      },
      { rootMargin: "100px" },
    );
    new ResizeObserver(() => this.resize()).observe(this.node);
  }

  // update creates the lanes of a new sequence.
  update(): void {
    if (this.view.empty || this.shown === this.view.sequence) {
      return;
    }
    this.shown = this.view.sequence;
    this.tiles = new Tiles(this.shown);
    this.range = "";
    this.observer.disconnect();
    const n = this.shown.tracks.length;
    this.height = this.shown.header.calls ? 28 : Math.round(Math.min(Math.max(480 / n, 44), 96));
    this.lanes = this.shown.tracks.map((track, index) => this.makeLane(track, index));
    this.node.replaceChildren(
      ...this.lanes.map((l) => h("div", { class: "lane" }, l.label, l.canvas)),
    );
    this.lanes.forEach((l) => this.observer.observe(l.canvas));
    this.resize();
  }

  private makeLane(track: Track, index: number): Lane {
    const sequence = this.view.sequence;
    const rank = sequence.rank(track);
    const blamed = sequence.differences.some((d) => d.blamed?.includes(rank));
    const about = track.calls
      ? `${count(track.count)} calls`
      : size(track.totals.at(-1)![0] === undefined ? 0 : Math.max(...track.totals.at(-1)!));
    const label = h(
      "button",
      {
        class: blamed ? "label blamed" : "label",
        type: "button",
        title: sequence.data.header.ranks[track.header.rank]!.file,
        click: () =>
          this.view.select(this.view.selected ? this.view.request : sequence.first, index),
      },
      h("b", {}, `rank ${rank}`),
      h("span", {}, blamed ? "differs" : about),
    );
    const canvas = h("canvas", {
      role: "img",
      "aria-label": `${track.calls ? "calls" : "memory map"} of rank ${rank}`,
    });
    const lane = { track, index, canvas, label, visible: true, drawn: "" };
    this.listen(lane);
    return lane;
  }

  private resize(): void {
    const canvas = this.lanes[0]?.canvas;
    if (canvas === undefined) {
      return;
    }
    const ratio = window.devicePixelRatio;
    for (const lane of this.lanes) {
      lane.canvas.style.height = `${this.height}px`;
    }
    this.width = Math.max(canvas.clientWidth, 1);
    for (const lane of this.lanes) {
      lane.canvas.width = Math.round(this.width * ratio);
      lane.canvas.height = Math.round(this.height * ratio);
      lane.drawn = "";
    }
    this.redraw();
  }

  // setHeight changes the height of the lanes, in CSS pixels.
  setHeight(height: number): void {
    this.height = Math.min(Math.max(Math.round(height), 16), 600);
    this.resize();
  }

  // draw draws the visible lanes and paints missing tiles. It reports whether another frame is
  // needed.
  draw(): boolean {
    if (this.tiles === null || this.view.empty) {
      return false;
    }
    const { view } = this;
    const style = getComputedStyle(this.node);
    const theme: Theme = {
      line: style.getPropertyValue("--line"),
      text: style.getPropertyValue("--text"),
      bad: style.getPropertyValue("--bad"),
      mark: style.getPropertyValue("--mark"),
    };
    const range = `${view.from} ${view.to} ${view.mode} ${this.height} ${this.width}`;
    const state = `${range} ${view.selected} ${view.request} ${this.search.runs} ${theme.text}`;
    const moved = range !== this.range;
    const since = this.tiles.now;
    for (const lane of this.lanes) {
      lane.label.classList.toggle("selected", view.track === lane.index);
      if (lane.visible && lane.drawn !== state) {
        lane.drawn = state;
        this.drawLane(lane, theme);
      }
    }
    if (moved) {
      this.range = range;
      this.movedAt = performance.now();
      this.tiles.forget(since);
    }
    const now = performance.now();
    const time = now - this.movedAt < restAfter ? movingPaintTime : restingPaintTime;
    const painted = new Set<Track>();
    const unfinished = this.tiles.work(now + time, painted);
    for (const lane of this.lanes) {
      lane.drawn = painted.has(lane.track) ? "" : lane.drawn;
    }
    return unfinished || painted.size > 0;
  }

  private drawLane(lane: Lane, theme: Theme): void {
    const { canvas, track } = lane;
    const context = canvas.getContext("2d")!;
    const { width, height } = canvas;
    context.clearRect(0, 0, width, height);
    const perPixel = (this.view.to - this.view.from) / width;
    const x = (request: number): number => (request - this.view.from) / perPixel;
    this.drawSegments(context, theme, width, height);
    const level = Math.min(Math.max(Math.round(Math.log2(perPixel)), -6), 24);
    this.drawTiles(context, track, level, x, height);
    this.drawMarks(context, lane, theme, x);
  }

  private drawSegments(
    context: CanvasRenderingContext2D,
    theme: Theme,
    width: number,
    height: number,
  ): void {
    const bases = this.view.sequence.bases;
    const total = bases.at(-1)!;
    context.fillStyle = theme.line;
    if (bases.length > height / 3) {
      return;
    }
    for (const base of bases) {
      context.fillRect(
        0,
        Math.round(height - (base / total) * height) - (base === 0 ? 1 : 0),
        width,
        1,
      );
    }
  }

  private drawTiles(
    context: CanvasRenderingContext2D,
    track: Track,
    level: number,
    x: (n: number) => number,
    height: number,
  ): void {
    const tiles = this.tiles!;
    const span = 2 ** level * tileWidth;
    const { sequence, mode } = this.view;
    const from = Math.max(this.view.from, sequence.first);
    const to = Math.min(this.view.to, sequence.end);
    context.imageSmoothingEnabled = true;
    for (let k = Math.floor(from / span); k * span < to; k++) {
      const left = Math.round(x(k * span));
      const right = Math.round(x((k + 1) * span));
      const tile = tiles.get(track, mode, height, level, k);
      if (tile.image !== null) {
        context.drawImage(tile.image, left, 0, right - left, height);
        continue;
      }
      this.drawSubstitute(context, track, level, k, left, right, height);
    }
  }

  // drawSubstitute draws a part of a coarser tile, or finer tiles, in place of a missing one.
  private drawSubstitute(
    context: CanvasRenderingContext2D,
    track: Track,
    level: number,
    k: number,
    left: number,
    right: number,
    height: number,
  ): void {
    const tiles = this.tiles!;
    const mode = this.view.mode;
    for (let up = 1; up <= coarser; up++) {
      const tile = tiles.ready(track, mode, height, level + up, Math.floor(k / 2 ** up));
      if (tile !== null) {
        const part = tileWidth / 2 ** up;
        const at = (k - Math.floor(k / 2 ** up) * 2 ** up) * part;
        context.drawImage(tile.image!, at, 0, part, height, left, 0, right - left, height);
        return;
      }
    }
    for (let i = 0; i < 2; i++) {
      const tile = tiles.ready(track, mode, height, level - 1, 2 * k + i);
      if (tile !== null) {
        const half = (right - left) / 2;
        context.drawImage(tile.image!, left + i * half, 0, half, height);
      }
    }
  }

  private drawMarks(
    context: CanvasRenderingContext2D,
    lane: Lane,
    theme: Theme,
    x: (n: number) => number,
  ): void {
    const { sequence } = this.view;
    const height = lane.canvas.height;
    const ratio = window.devicePixelRatio;
    context.fillStyle = theme.mark;
    for (const at of this.search.positions(lane.track, this.view.from, this.view.to, this.width)) {
      context.fillRect(x(at), 0, Math.max(2 * ratio, x(at + 1) - x(at)), 4 * ratio);
    }
    context.fillStyle = theme.bad;
    for (const d of sequence.differences) {
      context.fillRect(
        Math.round(x(d.request)) - ratio / 2,
        0,
        Math.max(Math.round(ratio), 1),
        height,
      );
    }
    if (this.view.selected) {
      context.fillStyle = theme.text;
      context.globalAlpha = 0.5;
      context.fillRect(
        Math.round(x(this.view.request + 0.5)),
        0,
        Math.max(Math.round(ratio), 1),
        height,
      );
      context.globalAlpha = 1;
      this.outline(context, lane, theme, x);
    }
  }

  // outline marks the selected block.
  private outline(
    context: CanvasRenderingContext2D,
    lane: Lane,
    theme: Theme,
    x: (n: number) => number,
  ): void {
    const { track } = lane;
    const e = track.calls ? -1 : track.find(this.view.request);
    const n = e < 0 ? -1 : track.blockNumbers[e]! - 1;
    const alloc = n < 0 ? -1 : (track.blocks.event[n] ?? -1);
    if (alloc < 0 || track.segments[alloc] === 0) {
      return;
    }
    const { bases } = this.view.sequence;
    const scale = lane.canvas.height / bases.at(-1)!;
    const low = bases[track.segments[alloc]! - 1]! + track.offsets[alloc]!;
    const high = low + Math.max(track.sizes[alloc]!, track.bytes[alloc]!);
    context.strokeStyle = theme.text;
    context.lineWidth = window.devicePixelRatio;
    context.strokeRect(
      x(track.blocks.start[n]!),
      lane.canvas.height - high * scale,
      x(track.blocks.end[n]!) - x(track.blocks.start[n]!),
      Math.max((high - low) * scale, 2),
    );
  }

  private listen(lane: Lane): void {
    const c = lane.canvas;
    c.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    c.addEventListener("pointerdown", (e) => {
      c.setPointerCapture(e.pointerId);
      this.pointers.set(e.pointerId, { x: e.offsetX, startX: e.offsetX, startY: e.offsetY });
    });
    c.addEventListener("pointermove", (e) => this.move(e));
    c.addEventListener("pointercancel", (e) => this.pointers.delete(e.pointerId));
    c.addEventListener("pointerup", (e) => {
      const p = this.pointers.get(e.pointerId);
      this.pointers.delete(e.pointerId);
      if (
        p !== undefined &&
        this.pointers.size === 0 &&
        Math.hypot(e.offsetX - p.startX, e.offsetY - p.startY) < clickDistance
      ) {
        this.click(lane, e.offsetX, e.offsetY);
      }
    });
    c.addEventListener("dblclick", (e) => this.view.zoom(0.25, this.requestAt(e.offsetX)));
  }

  // requestAt returns the position, in requests, of a distance from the left.
  private requestAt(x: number): number {
    return this.view.from + (x / this.width) * (this.view.to - this.view.from);
  }

  private wheel(e: WheelEvent): void {
    const unit = e.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : 16;
    if (e.ctrlKey || e.metaKey || e.altKey) {
      e.preventDefault();
      this.view.zoom(Math.exp(e.deltaY * unit * 0.003), this.requestAt(e.offsetX));
      return;
    }
    const x = e.shiftKey && e.deltaX === 0 ? e.deltaY : e.deltaX;
    if (Math.abs(x) > Math.abs(e.shiftKey ? 0 : e.deltaY)) {
      e.preventDefault();
      this.view.pan(((x * unit) / this.width) * (this.view.to - this.view.from));
    }
  }

  // move pans with one pointer that is down, and zooms with two.
  private move(e: PointerEvent): void {
    const p = this.pointers.get(e.pointerId);
    if (p === undefined) {
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== e.pointerId)?.[1];
    if (other === undefined) {
      this.view.pan(((p.x - e.offsetX) / this.width) * (this.view.to - this.view.from));
    } else {
      const before = Math.max(Math.abs(p.x - other.x), 10);
      const after = Math.max(Math.abs(e.offsetX - other.x), 10);
      this.view.zoom(before / after, this.requestAt((e.offsetX + other.x) / 2));
    }
    p.x = e.offsetX;
  }

  private click(lane: Lane, x: number, y: number): void {
    const request = this.requestAt(x);
    this.view.select(this.blockAt(lane, request, y) ?? Math.floor(request), lane.index);
  }

  // blockAt returns the request that allocated the block at a point, or null.
  private blockAt(lane: Lane, request: number, y: number): number | null {
    const { track } = lane;
    if (track.calls) {
      return null;
    }
    const { bases } = this.view.sequence;
    const place = (1 - y / this.height) * bases.at(-1)!;
    const reach = (this.view.to - this.view.from) / this.width / 2;
    let found: number | null = null;
    track.visit(request - reach, request + reach, (n) => {
      const e = track.blocks.event[n]!;
      const low =
        track.segments[e] === 0 ? Infinity : bases[track.segments[e]! - 1]! + track.offsets[e]!;
      const alloc = track.kinds[e] === Kind.Alloc;
      if (alloc && place >= low && place < low + Math.max(track.sizes[e]!, track.bytes[e]!)) {
        found = track.requests[e]!;
      }
    });
    return found;
  }
}

interface Theme {
  line: string;
  text: string;
  bad: string;
  mark: string;
}
