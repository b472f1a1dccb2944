// Finds events by their stacks, texts, sizes and numbers.

import { Kind, isRequest } from "./format.js";
import { Sequence } from "./model.js";
import { Track } from "./track.js";

const units: Record<string, number> = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  kib: 1024,
  mib: 1024 ** 2,
  gib: 1024 ** 3,
  k: 1024,
  m: 1024 ** 2,
  g: 1024 ** 3,
};

export class Search {
  private results = new Map<Track, Int32Array>();
  private all: Int32Array = new Int32Array(0);
  query = "";
  runs = 0; // number of searches so far

  // run searches a sequence. It returns the number of requests that match on any rank.
  run(sequence: Sequence, query: string): number {
    this.query = query.trim().toLowerCase();
    this.runs++;
    this.results.clear();
    this.all = new Int32Array(0);
    if (this.query === "") {
      return 0;
    }
    const matches = this.matcher(sequence);
    const union = new Set<number>();
    for (const track of sequence.tracks) {
      const found = matches(track);
      this.results.set(track, found);
      found.forEach((n) => union.add(n));
    }
    this.all = Int32Array.from(union).sort();
    return this.all.length;
  }

  // matcher returns a function that lists the requests of a track that match the query.
  private matcher(sequence: Sequence): (track: Track) => Int32Array {
    const header = sequence.data.header;
    const number = /^#(-?\d+)$/.exec(this.query);
    const amount = /^(\d+(?:\.\d+)?)\s*([kmg]?i?b?)$/.exec(this.query);
    const bytes = amount === null ? -1 : Number(amount[1]) * (units[amount[2]!] ?? 1);
    const contains = (text: string): boolean => text.toLowerCase().includes(this.query);
    const frames = new Set<number>();
    header.frames?.forEach((f, i) => contains(f) && frames.add(i));
    const stacks = new Uint8Array(header.stackCount + 1);
    if (frames.size > 0) {
      sequence.data.stacks().forEach((s, i) => {
        stacks[i + 1] = s.some((f) => frames.has(f)) ? 1 : 0;
      });
    }
    const texts = (header.texts ?? []).map(contains);
    const kinds = ["", "alloc", "free"].map((k) => k !== "" && k === this.query);
    return (track) => {
      const found: number[] = [];
      const { requests, sizes, kinds: all, stacks: at, blockNumbers } = track;
      for (let i = 0; i < track.count; i++) {
        const kind = all[i]!;
        if (
          isRequest(kind) &&
          (number !== null
            ? requests[i] === Number(number[1])
            : stacks[at[i]!] === 1 ||
              kinds[kind] === true ||
              sizes[i] === bytes ||
              (kind === Kind.Call && texts[blockNumbers[i]!] === true))
        ) {
          found.push(requests[i]!);
        }
      }
      return Int32Array.from(found);
    };
  }

  // positions returns matches in a range, at most about one per pixel.
  positions(track: Track, from: number, to: number, pixels: number): number[] {
    const list = this.results.get(track);
    if (list === undefined || list.length === 0) {
      return [];
    }
    const step = (to - from) / pixels;
    const out: number[] = [];
    for (let i = lower(list, from); i < list.length && list[i]! < to; ) {
      out.push(list[i]!);
      i = Math.max(lower(list, list[i]! + step), i + 1);
    }
    return out;
  }

  // next returns the match after a request, or before it; it continues at the other end.
  next(request: number, forward: boolean): number | null {
    if (this.all.length === 0) {
      return null;
    }
    const i = forward ? lower(this.all, request + 1) : lower(this.all, request) - 1;
    return this.all[(i + this.all.length) % this.all.length]!;
  }
}

// lower returns the index of the first element that is not less than a value.
function lower(list: Int32Array, value: number): number {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle]! < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
