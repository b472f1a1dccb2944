// Combines the tracks of a pool or group.

import { Data, Difference, Kind, SequenceHeader } from "./format.js";
import { Track, pyramidOf } from "./track.js";
import { count, size } from "./dom.js";

// Sequence is a pool or a group on all ranks.
export class Sequence {
  readonly tracks: Track[];
  readonly first: number; // number of the first request of any rank
  readonly end: number; // number after that of the last request
  private baseTable: Float64Array | null = null;
  private lateTable: (Float64Array[] | null)[] | null = null;

  constructor(
    readonly data: Data,
    readonly header: SequenceHeader,
  ) {
    this.tracks = header.tracks.map((t) => new Track(data, t, header.calls));
    this.first = Math.min(0, ...this.tracks.map((t) => t.header.first));
    this.end = Math.max(1, ...this.tracks.map((t) => t.end));
  }

  get differences(): Difference[] {
    return this.header.differences ?? [];
  }

  rank(track: Track): number {
    return this.data.header.ranks[track.header.rank]!.rank;
  }

  // reference returns the track that others are compared with: one of the majority.
  get reference(): Track {
    const rank = this.differences[0]?.variants[0]?.ranks[0];
    return this.tracks.find((t) => this.rank(t) === rank) ?? this.tracks[0]!;
  }

  // bases returns the sum of the sizes of the segments before each segment. A segment has the size
  // of its largest copy, so equal places have equal heights on all ranks. The last element is the
  // sum of all sizes.
  get bases(): Float64Array {
    if (this.baseTable === null) {
      const n = Math.max(0, ...this.tracks.map((t) => t.header.segments?.length ?? 0));
      this.baseTable = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) {
        const sizes = this.tracks.map((t) => t.header.segments?.[i]?.bytes ?? 0);
        this.baseTable[i + 1] = this.baseTable[i]! + Math.max(...sizes, 1);
      }
    }
    return this.baseTable;
  }

  // late returns, for each track, how many milliseconds after the first rank it made each call. It
  // returns an empty list if the times are unknown.
  get late(): (Float64Array[] | null)[] {
    return (this.lateTable ??= this.makeLate());
  }

  private makeLate(): (Float64Array[] | null)[] {
    const length = this.end - this.first;
    const earliest = new Float64Array(length).fill(Infinity);
    const timed = this.tracks.filter((t) => t.count > 0 && t.times[0] !== 0);
    if (timed.length < 2) {
      return [];
    }
    for (const t of timed) {
      t.times.forEach((time, i) => {
        const at = t.requests[i]! - this.first;
        earliest[at] = Math.min(earliest[at]!, time);
      });
    }
    return this.tracks.map((t) =>
      timed.includes(t)
        ? pyramidOf(
            t.times.map((time, i) => (time - earliest[t.requests[i]! - this.first]!) / 1000),
          )
        : null,
    );
  }

  // text describes an event of a track.
  text(track: Track, event: number): string {
    const bytes = track.sizes[event]!;
    const block = track.blockNumbers[event]!;
    switch (track.kinds[event]) {
      case Kind.Alloc:
        return (
          `alloc ${count(bytes)} B, allocation ${count(block - 1 - this.skippedBlocks(track))}, ` +
          `stream ${track.streams[event]}`
        );
      case Kind.Free:
      case Kind.FreeDone: {
        const what =
          block === 0
            ? "a block that is older than the file"
            : `allocation ${count(block - 1 - this.skippedBlocks(track))}`;
        const done = track.kinds[event] === Kind.Free ? "free" : "free completed:";
        return `${done} ${what}, ${count(bytes)} B, stream ${track.streams[event]}`;
      }
      case Kind.Call:
        return this.data.header.texts?.[block] ?? "?";
      case Kind.SegmentAdd:
        return `segment of ${size(bytes)}`;
      default:
        return `segment of ${size(bytes)} removed`;
    }
  }

  // place describes where an event's block is, or returns "".
  place(track: Track, event: number): string {
    const segment = track.segments[event]!;
    return segment === 0 || track.calls
      ? ""
      : `segment ${segment - 1}, offset 0x${track.offsets[event]!.toString(16)}`;
  }

  // stack returns the frames of an event, innermost first.
  stack(track: Track, event: number): string[] {
    const at = track.stacks[event]!;
    const frames = at === 0 ? [] : Array.from(this.data.stacks()[at - 1] ?? []);
    return frames.map((f) => this.data.header.frames?.[f] ?? "?");
  }

  private skipped = new Map<Track, number>();

  // skippedBlocks returns the number of allocations before request 0.
  skippedBlocks(track: Track): number {
    let n = this.skipped.get(track);
    if (n === undefined) {
      n = 0;
      for (let i = 0; i < track.count && track.requests[i]! < 0; i++) {
        n += track.kinds[i] === Kind.Alloc ? 1 : 0;
      }
      this.skipped.set(track, n);
    }
    return n;
  }
}

// Model is everything that the page shows.
export class Model {
  readonly sequences: Sequence[];
  constructor(readonly data: Data) {
    this.sequences = (data.header.sequences ?? [])
      .filter((s) => s.tracks.length > 0)
      .map((s) => new Sequence(data, s));
  }
}
