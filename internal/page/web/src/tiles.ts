// Paints memory maps and calls in tiles, a few milliseconds at a time.

import { Kind } from "./format.js";
import { Sequence } from "./model.js";
import { Track } from "./track.js";
import { Mode } from "./view.js";

export const tileWidth = 256; // pixels of the device
const maxTiles = 600;

// The colours of stacks, sizes and streams, as red, green and blue.
const palette = [
  [66, 133, 214],
  [239, 146, 60],
  [88, 172, 110],
  [176, 122, 200],
  [225, 190, 75],
  [92, 184, 184],
  [224, 128, 160],
  [150, 122, 98],
  [130, 150, 60],
  [110, 120, 190],
  [200, 110, 80],
  [90, 160, 220],
] as const;
const agreeing = [
  [118, 144, 178],
  [136, 160, 191],
  [101, 128, 164],
] as const;
const differing = [
  [226, 68, 64],
  [238, 96, 78],
  [206, 50, 60],
] as const;
const colors = [...palette, ...agreeing, ...differing].map(([r, g, b]) => r | (g << 8) | (b << 16));
const firstAgreeing = palette.length;
const firstDiffering = firstAgreeing + agreeing.length;

// css returns a colour of the palette.
export function css(index: number): string {
  const [r, g, b] = palette[index % palette.length]!;
  return `rgb(${r} ${g} ${b})`;
}

export interface Tile {
  image: OffscreenCanvas | null; // null until it is painted
  track: Track;
  from: number;
  perPixel: number; // requests
  used: number;
}

// Tiles keeps the tiles of a sequence.
export class Tiles {
  private tiles = new Map<string, Tile>();
  private queue: { tile: Tile; work: Generator<void> }[] = [];
  private colorTable = new Map<string, Uint8Array>();
  private clock = 0;

  constructor(readonly sequence: Sequence) {}

  // get returns a tile, which it queues for painting if necessary.
  get(track: Track, mode: Mode, height: number, level: number, index: number): Tile {
    const key = `${this.sequence.tracks.indexOf(track)} ${mode} ${height} ${level} ${index}`;
    let tile = this.tiles.get(key);
    if (tile === undefined) {
      const perPixel = 2 ** level;
      tile = { image: null, track, from: index * perPixel * tileWidth, perPixel, used: 0 };
      this.tiles.set(key, tile);
      this.queue.push({ tile, work: this.paint(tile, track, mode, height) });
    }
    tile.used = ++this.clock;
    return tile;
  }

  // ready returns a painted tile, or null. It queues nothing.
  ready(track: Track, mode: Mode, height: number, level: number, index: number): Tile | null {
    const key = `${this.sequence.tracks.indexOf(track)} ${mode} ${height} ${level} ${index}`;
    const tile = this.tiles.get(key);
    if (tile === undefined || tile.image === null) {
      return null;
    }
    tile.used = ++this.clock;
    return tile;
  }

  // work paints queued tiles until a time, those used last first. It adds their tracks to a set,
  // and reports whether work remains.
  work(until: number, painted: Set<Track>): boolean {
    this.queue.sort((a, b) => a.tile.used - b.tile.used);
    for (let item = this.queue.at(-1); item !== undefined; item = this.queue.at(-1)) {
      while (!item.work.next().done) {
        if (performance.now() > until) {
          return true;
        }
      }
      this.queue.pop();
      painted.add(item.tile.track);
      if (performance.now() > until) {
        break;
      }
    }
    this.evict();
    return this.queue.length > 0;
  }

  // forget removes queued tiles that were not used since a time.
  forget(since: number): void {
    this.queue = this.queue.filter((item) => item.tile.used > since);
    for (const [key, tile] of this.tiles) {
      if (tile.image === null && tile.used <= since) {
        this.tiles.delete(key);
      }
    }
  }

  get now(): number {
    return this.clock;
  }

  private evict(): void {
    if (this.tiles.size > maxTiles) {
      const byUse = [...this.tiles].sort((a, b) => a[1].used - b[1].used);
      for (const [key] of byUse.slice(0, byUse.length - maxTiles / 2)) {
        this.tiles.delete(key);
      }
    }
  }

  private *paint(tile: Tile, track: Track, mode: Mode, height: number): Generator<void> {
    const canvas = new Painting(tile.from, tile.perPixel, height);
    const to = tile.from + tile.perPixel * tileWidth;
    yield;
    if (track.calls) {
      yield* this.paintCalls(canvas, track, mode, tile.from, to);
    } else {
      yield* this.paintBlocks(canvas, track, mode, tile.from, to);
    }
    tile.image = canvas.finish();
  }

  private *paintBlocks(
    canvas: Painting,
    track: Track,
    mode: Mode,
    from: number,
    to: number,
  ): Generator<void> {
    const { blocks, segments, offsets, sizes, bytes } = track;
    const table = this.colors(track, mode);
    yield;
    const bases = this.sequence.bases;
    const scale = canvas.height / Math.max(bases.at(-1)!, 1);
    const visible: number[] = [];
    track.visit(from, to, (n) => visible.push(n));
    yield;
    for (let i = 0; i < visible.length; i++) {
      const n = visible[i]!;
      const e = blocks.event[n]!;
      const segment = segments[e]!;
      if (segment > 0) {
        const low = bases[segment - 1]! + offsets[e]!;
        const high = low + Math.max(sizes[e]!, bytes[e]!);
        canvas.rectangle(
          blocks.start[n]!,
          blocks.end[n]!,
          low * scale,
          high * scale,
          colors[table[n]!]!,
        );
      }
      if (i % 2048 === 2047) {
        yield;
      }
    }
  }

  private *paintCalls(
    canvas: Painting,
    track: Track,
    mode: Mode,
    from: number,
    to: number,
  ): Generator<void> {
    const table = this.colors(track, mode);
    yield;
    const first = track.header.first;
    const begin = Math.max(Math.floor(from) - first, 0);
    const end = Math.min(Math.ceil(to) - first, track.count);
    for (let i = begin; i < end; i++) {
      canvas.rectangle(i + first, i + first + 1, 0, canvas.height, colors[table[i]!]!);
      if (i % 4096 === 4095) {
        yield;
      }
    }
  }

  // colors returns the colour of each block, or of each call, as an index.
  private colors(track: Track, mode: Mode): Uint8Array {
    const key = `${this.sequence.tracks.indexOf(track)} ${mode}`;
    let table = this.colorTable.get(key);
    if (table === undefined) {
      table = track.calls ? this.callColors(track, mode) : this.blockColors(track, mode);
      this.colorTable.set(key, table);
    }
    return table;
  }

  private callColors(track: Track, mode: Mode): Uint8Array {
    const table = new Uint8Array(track.count);
    const other = this.sequence.reference;
    const shift = track.header.first - other.header.first;
    for (let i = 0; i < table.length; i++) {
      const text = track.blockNumbers[i]!;
      if (mode === "differences") {
        const same = text === other.blockNumbers[i + shift] || i + track.header.first < 0;
        table[i] = (same ? firstAgreeing : firstDiffering) + (text % 3);
      } else {
        const key =
          mode === "stream"
            ? track.streams[i]!
            : mode === "size"
              ? Math.log2(track.bytes[i]! + 1)
              : text;
        table[i] = Math.floor(key) % palette.length;
      }
    }
    return table;
  }

  private blockColors(track: Track, mode: Mode): Uint8Array {
    const { blocks } = track;
    const table = new Uint8Array(blocks.count);
    for (let n = 0; n < table.length; n++) {
      const e = blocks.event[n]!;
      if (e < 0) {
        continue;
      }
      switch (mode) {
        case "differences":
          table[n] = (this.differs(track, n) ? firstDiffering : firstAgreeing) + (n % 3);
          break;
        case "size":
          table[n] = Math.floor(Math.log2(track.sizes[e]! + 1)) % palette.length;
          break;
        case "stream":
          table[n] = track.streams[e]! % palette.length;
          break;
        default:
          table[n] = track.stacks[e] === 0 ? n % palette.length : track.stacks[e]! % palette.length;
      }
    }
    return table;
  }

  // differs reports whether a block has another size or place than the same allocation of the
  // reference.
  private differs(track: Track, n: number): boolean {
    const other = this.sequence.reference;
    const e = track.blocks.event[n]!;
    const m = n - this.sequence.skippedBlocks(track) + this.sequence.skippedBlocks(other);
    const o = other.blocks.event[m] ?? -1;
    if (track === other || track.requests[e]! < 0 || track.kinds[e] === Kind.Older) {
      return false;
    }
    return (
      o < 0 ||
      track.sizes[e] !== other.sizes[o] ||
      track.segments[e] !== other.segments[o] ||
      track.offsets[e] !== other.offsets[o]
    );
  }
}

// Painting accumulates rectangles. Parts of pixels add up to their coverage.
class Painting {
  private readonly color: Uint32Array;
  private readonly cover: Float32Array;

  constructor(
    private readonly from: number,
    private readonly perPixel: number,
    readonly height: number,
  ) {
    this.color = new Uint32Array(tileWidth * height);
    this.cover = new Float32Array(tileWidth * height);
  }

  // rectangle paints requests from start to end, and pixels from low to high, counted from below.
  rectangle(start: number, end: number, low: number, high: number, color: number): void {
    const left = Math.max((start - this.from) / this.perPixel, 0);
    const right = Math.min((end - this.from) / this.perPixel, tileWidth);
    if (right <= left) {
      return;
    }
    const bottom = Math.min(Math.max(this.height - Math.floor(low), 1), this.height);
    const top = Math.max(Math.min(this.height - Math.round(high), bottom - 1), 0);
    const a = Math.floor(left);
    const b = Math.ceil(right);
    // Adjacent blocks of a similar colour stay distinguishable: the last pixel is left free.
    const ends = (end - this.from) / this.perPixel <= tileWidth;
    const gap = ends && right - left > 4 ? 1 : 0;
    const floor = bottom - top > 4 ? top + 1 : top;
    for (let row = floor; row < bottom; row++) {
      const base = row * tileWidth;
      for (let x = a; x < b - gap; x++) {
        const part = Math.min(x + 1, right) - Math.max(x, left);
        const i = base + x;
        this.cover[i] = Math.min(this.cover[i]! + part, 1);
        this.color[i] = color;
      }
    }
  }

  finish(): OffscreenCanvas {
    const canvas = new OffscreenCanvas(tileWidth, this.height);
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(tileWidth, this.height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) {
      const alpha = Math.round(this.cover[i]! * 255);
      pixels[i] = (this.color[i]! | (alpha << 24)) >>> 0;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}
