// The state of the page: which sequence, requests and event it shows. The URL's fragment has it.

import { Model, Sequence } from "./model.js";

export type Mode = "differences" | "stack" | "size" | "stream";
export const modes: Mode[] = ["differences", "stack", "size", "stream"];

// margin is the empty part at each end of the whole range.
const margin = 0.01;
const narrowest = 4; // requests

export class View {
  sequenceIndex = 0;
  from = 0;
  to = 1;
  request = -1; // selected request; valid if selected
  selected = false;
  track = 0; // selected rank, as index of the sequence's tracks
  mode: Mode = "stack";
  query = "";
  private listeners: (() => void)[] = [];

  constructor(public model: Model) {
    const different = model.sequences.findIndex((s) => s.differences.length > 0);
    const pool = model.sequences.findIndex((s) => !s.header.calls);
    this.open(different >= 0 ? different : Math.max(pool, 0));
  }

  get sequence(): Sequence {
    return this.model.sequences[this.sequenceIndex]!;
  }
  get empty(): boolean {
    return this.model.sequences.length === 0;
  }

  onChange(f: () => void): void {
    this.listeners.push(f);
  }
  changed(): void {
    this.listeners.forEach((f) => f());
  }

  // replace shows a newer model. It keeps the range, unless that reached the end, which moves.
  replace(model: Model): void {
    const atEnd = !this.empty && this.to >= this.sequence.end;
    this.model = model;
    this.sequenceIndex = Math.min(this.sequenceIndex, Math.max(model.sequences.length - 1, 0));
    if (!this.empty && atEnd) {
      this.fit();
    }
    this.changed();
  }

  // open shows a sequence as a whole.
  open(index: number): void {
    this.sequenceIndex = Math.min(Math.max(index, 0), Math.max(this.model.sequences.length - 1, 0));
    this.selected = false;
    this.track = 0;
    if (this.empty) {
      return;
    }
    this.mode = this.sequence.differences.length > 0 ? "differences" : "stack";
    const d = this.sequence.differences[0];
    if (d !== undefined) {
      this.select(d.request, this.suspect());
    }
    this.fit();
  }

  // suspect returns the track of a rank that differs.
  private suspect(): number {
    const rank = this.sequence.differences[0]?.variants[1]?.ranks[0];
    return Math.max(
      this.sequence.tracks.findIndex((t) => this.sequence.rank(t) === rank),
      0,
    );
  }

  fit(): void {
    this.setRange(this.sequence.first, this.sequence.end);
  }

  // setRange shows requests, as far as they exist.
  setRange(from: number, to: number): void {
    const { first, end } = this.sequence;
    const whole = end - first;
    const low = first - whole * margin;
    const high = end + whole * margin;
    const width = Math.min(Math.max(to - from, Math.min(narrowest, whole)), high - low);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - width / 2, low), high - width);
    this.to = this.from + width;
    this.changed();
  }

  // zoom scales the range around a request.
  zoom(factor: number, around = (this.from + this.to) / 2): void {
    const narrow = Math.min(narrowest, this.sequence.end - this.sequence.first);
    factor = Math.max(factor, narrow / (this.to - this.from));
    this.setRange(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(requests: number): void {
    this.setRange(this.from + requests, this.to + requests);
  }

  select(request: number, track = this.track): void {
    const { first, end } = this.sequence;
    this.request = Math.min(Math.max(Math.round(request), first), end);
    this.track = Math.min(Math.max(track, 0), this.sequence.tracks.length - 1);
    this.selected = true;
    this.changed();
  }

  // reveal selects a request and moves it into view.
  reveal(request: number, track = this.track): void {
    this.select(request, track);
    const width = this.to - this.from;
    if (this.request < this.from + width * 0.02 || this.request > this.to - width * 0.02) {
      this.setRange(this.request - width / 2, this.request + width / 2);
    }
  }

  // approach selects a request and shows the requests around it.
  approach(request: number, track = this.track): void {
    this.select(request, track);
    const width = Math.min(200, this.sequence.end - this.sequence.first);
    this.setRange(request - width / 2, request + width / 2);
  }

  // fragment returns the state as the fragment of a URL.
  fragment(): string {
    const p = new URLSearchParams();
    p.set("s", String(this.sequenceIndex));
    p.set("from", this.from.toFixed(1));
    p.set("to", this.to.toFixed(1));
    p.set("color", this.mode);
    if (this.selected && !this.empty) {
      p.set("at", String(this.request));
      p.set("rank", String(this.sequence.rank(this.sequence.tracks[this.track]!)));
    }
    if (this.query !== "") {
      p.set("q", this.query);
    }
    return p.toString();
  }

  // restore takes the state from a fragment. It ignores what is not valid.
  restore(fragment: string): void {
    if (this.empty) {
      return;
    }
    const p = new URLSearchParams(fragment.replace(/^#/, ""));
    const number = (name: string): number => (p.has(name) ? Number(p.get(name)) : NaN);
    const index = number("s");
    if (
      Number.isInteger(index) &&
      index >= 0 &&
      index < this.model.sequences.length &&
      index !== this.sequenceIndex
    ) {
      this.open(index);
    }
    const mode = modes.find((m) => m === p.get("color"));
    this.mode = mode ?? this.mode;
    this.query = (p.get("q") ?? this.query).slice(0, 1000);
    const rank = number("rank");
    const track = this.sequence.tracks.findIndex((t) => this.sequence.rank(t) === rank);
    if (Number.isFinite(number("at"))) {
      this.select(number("at"), track >= 0 ? track : this.track);
    }
    if (Number.isFinite(number("from")) && number("to") > number("from")) {
      this.setRange(number("from"), number("to"));
    } else if (p.has("at")) {
      this.approach(this.request);
    }
    this.changed();
  }
}
