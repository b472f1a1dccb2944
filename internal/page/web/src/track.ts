// Turns the columns of a track into arrays, blocks and totals, when they are first needed.

import { Data, Kind, TrackHeader, isRequest, readDeltas, readUnsigned } from "./format.js";

// Blocks describes the blocks of a pool by their number, over requests.
export interface Blocks {
  count: number;
  allocs: number; // blocks from this number on are older than the track
  start: Int32Array; // request that allocates the block
  end: Int32Array; // request after which the memory is free
  event: Int32Array; // index of the alloc event, or -1
}

export class Track {
  private cache = new Map<string, Int32Array | Float64Array>();
  private kindColumn: Uint8Array | null = null;
  private blockTable: Blocks | null = null;
  private bins: Int32Array[] | null = null;
  private pyramid: Float64Array[] | null = null;

  constructor(
    private readonly data: Data,
    readonly header: TrackHeader,
    readonly calls: boolean,
  ) {}

  get count(): number {
    return this.header.events;
  }

  get kinds(): Uint8Array {
    return (this.kindColumn ??= this.data.bytes(this.header.columns["kind"]));
  }

  private integers(name: string): Int32Array {
    return this.column(name, () => readUnsigned(this.raw(name), new Int32Array(this.count)));
  }

  private floats(name: string): Float64Array {
    return this.column(name, () => readUnsigned(this.raw(name), new Float64Array(this.count)));
  }

  private raw(name: string): Uint8Array {
    return this.data.bytes(this.header.columns[name]);
  }

  private column<T extends Int32Array | Float64Array>(name: string, make: () => T): T {
    let c = this.cache.get(name);
    if (c === undefined) {
      c = make();
      this.cache.set(name, c);
    }
    return c as T;
  }

  get sizes(): Float64Array {
    return this.floats("size");
  }
  get bytes(): Float64Array {
    return this.floats("bytes");
  }
  get offsets(): Float64Array {
    return this.floats("offset");
  }
  get segments(): Int32Array {
    return this.integers("segment");
  } // 1 + index
  get streams(): Int32Array {
    return this.integers("stream");
  }
  get stacks(): Int32Array {
    return this.integers("stack");
  } // 1 + index
  get blockNumbers(): Int32Array {
    // 1 + number, or the index of a call's text
    return this.column("block", () => readDeltas(this.raw("block"), new Int32Array(this.count)));
  }
  get numbers(): Float64Array {
    return this.column("number", () =>
      readDeltas(this.raw("number"), new Float64Array(this.count)),
    );
  }
  get times(): Float64Array {
    return this.column("time", () => readDeltas(this.raw("time"), new Float64Array(this.count)));
  }

  // requests returns the number of the request of each event. Other events have the number of the
  // next request.
  get requests(): Int32Array {
    return this.column("request", () => {
      const out = new Int32Array(this.count);
      let x = this.header.first;
      for (let i = 0; i < out.length; i++) {
        out[i] = x;
        if (isRequest(this.kinds[i]!)) {
          x++;
        }
      }
      return out;
    });
  }

  // end returns the number after that of the last request.
  get end(): number {
    const n = this.count;
    return n === 0
      ? this.header.first
      : this.requests[n - 1]! + (isRequest(this.kinds[n - 1]!) ? 1 : 0);
  }

  // find returns the index of a request's event, or -1.
  find(request: number): number {
    const x = this.requests;
    let low = 0;
    let high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle]! < request) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (; low < x.length && x[low] === request; low++) {
      if (isRequest(this.kinds[low]!)) {
        return low;
      }
    }
    return -1;
  }

  // blocks returns the blocks of a pool.
  get blocks(): Blocks {
    return (this.blockTable ??= this.makeBlocks());
  }

  private makeBlocks(): Blocks {
    const { kinds, requests, blockNumbers } = this;
    let allocs = 0;
    let older = 0;
    for (let i = 0; i < kinds.length; i++) {
      allocs += kinds[i] === Kind.Alloc ? 1 : 0;
      older += kinds[i] === Kind.Older ? 1 : 0;
    }
    const count = allocs + older;
    const end = this.end;
    const b: Blocks = {
      count,
      allocs,
      start: new Int32Array(count),
      end: new Int32Array(count).fill(end),
      event: new Int32Array(count).fill(-1),
    };
    // Older blocks have the last numbers. A free refers to them by their place.
    const places = new Map<string, number>();
    const place = (i: number): string => `${this.segments[i]} ${this.offsets[i]}`;
    for (let i = 0; i < kinds.length; i++) {
      const kind = kinds[i]!;
      let n = blockNumbers[i]! - 1;
      if (kind === Kind.Older) {
        n = allocs + places.size;
        places.set(place(i), n);
      } else if (n < 0 && places.size > 0 && (kind === Kind.Free || kind === Kind.FreeDone)) {
        n = places.get(place(i)) ?? -1;
      }
      if (n < 0 || n >= count) {
        continue;
      }
      switch (kind) {
        case Kind.Alloc:
        case Kind.Older:
          b.start[n] = requests[i]!;
          b.event[n] = i;
          break;
        case Kind.Free: // the memory is free at once unless a FreeDone follows
        case Kind.FreeDone:
          b.end[n] = Math.max(requests[i]!, b.start[n]! + 1);
      }
    }
    return b;
  }

  // visit calls f with the number of each block that lives in a range of requests.
  visit(from: number, to: number, f: (block: number) => void): void {
    const { start, end } = this.blocks;
    this.bins ??= this.makeBins();
    for (let level = 0; level < this.bins.length; level++) {
      const list = this.bins[level]!;
      const first = from - 2 ** (level + 1);
      let low = 0;
      let high = list.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[list[middle]!]! < first) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      for (; low < list.length; low++) {
        const n = list[low]!;
        if (start[n]! >= to) {
          break;
        }
        if (end[n]! > from) {
          f(n);
        }
      }
    }
  }

  // makeBins lists blocks by the logarithm of their lifetime, in the order of their beginning.
  private makeBins(): Int32Array[] {
    const { count, allocs, start, end, event } = this.blocks;
    const level = (n: number): number => 31 - Math.clz32(Math.max(end[n]! - start[n]!, 1));
    const sizes = new Int32Array(32);
    for (let n = 0; n < count; n++) {
      sizes[level(n)]! += event[n]! >= 0 ? 1 : 0;
    }
    const bins = Array.from(sizes, (size) => new Int32Array(size));
    sizes.fill(0);
    for (let i = 0; i < count; i++) {
      const n = (i + allocs) % count; // older blocks begin first
      if (event[n]! >= 0) {
        const l = level(n);
        bins[l]![sizes[l]!++] = n;
      }
    }
    return bins;
  }

  // totals returns maxima of the allocated bytes: element i of level k is the maximum over the
  // requests from i * 2^k on, counted from the first.
  get totals(): Float64Array[] {
    return (this.pyramid ??= pyramidOf(this.makeTotals()));
  }

  private makeTotals(): Float64Array {
    const { blocks, sizes } = this;
    const first = this.header.first;
    const change = new Float64Array(Math.max(this.end - first, 0) + 1);
    for (let n = 0; n < blocks.count; n++) {
      const e = blocks.event[n]!;
      if (e >= 0) {
        change[blocks.start[n]! - first]! += sizes[e]!;
        change[blocks.end[n]! - first]! -= sizes[e]!;
      }
    }
    let sum = 0;
    for (let i = 0; i < change.length; i++) {
      sum += change[i]!;
      change[i] = sum;
    }
    return change.subarray(0, Math.max(change.length - 1, 1));
  }
}

// pyramidOf returns the values, and maxima of pairs, fours and so on.
export function pyramidOf(values: Float64Array): Float64Array[] {
  const levels = [values];
  for (let v = values; v.length > 64; ) {
    const next = new Float64Array((v.length + 1) >> 1);
    for (let i = 0; i < next.length; i++) {
      next[i] = Math.max(v[2 * i]!, v[Math.min(2 * i + 1, v.length - 1)]!);
    }
    levels.push(next);
    v = next;
  }
  return levels;
}

// maximum returns the maximum of a pyramid over a range of elements, or NaN outside the values.
export function maximum(levels: Float64Array[], from: number, to: number): number {
  const n = levels[0]!.length;
  if (to <= 0 || from >= n) {
    return NaN;
  }
  const k = Math.min(Math.max(Math.floor(Math.log2(Math.max(to - from, 1))), 0), levels.length - 1);
  const level = levels[k]!;
  const first = Math.max(Math.floor(from / 2 ** k), 0);
  const last = Math.min(Math.max(Math.ceil(to / 2 ** k), first + 1), level.length);
  let most = NaN;
  for (let i = first; i < last; i++) {
    most = Number.isNaN(most) ? level[i]! : Math.max(most, level[i]!);
  }
  return most;
}
