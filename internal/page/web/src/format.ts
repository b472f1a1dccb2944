// Decodes the data of a page. The format is described in doc.go of the Go package page.

export interface Rank {
  rank: number;
  file: string;
  format: string;
  events: number;
  notes: string[] | null;
}
export interface Variant {
  ranks: number[];
  text: string;
  kind: string;
  stack: string[] | null;
}
export interface Difference {
  of: string;
  kind: string;
  request: number;
  variants: Variant[];
  blamed: number[] | null;
  before: string[] | null;
  explanation: string[] | null;
}
export interface SegmentInfo {
  bytes: number;
  old?: boolean;
}
export interface TrackHeader {
  rank: number;
  first: number;
  events: number;
  segments: SegmentInfo[] | null;
  columns: Record<string, [number, number]>;
}
export interface SequenceHeader {
  title: string;
  calls: boolean;
  equal: number;
  tracks: TrackHeader[];
  differences: Difference[] | null;
  notes: string[] | null;
}
export interface WindowRow {
  group: string;
  pool: string;
  segment: number;
  bytes: number;
  states: number[];
}
export interface Row {
  ranks: number[];
  group: string;
  text: string;
  time: number;
}
export interface PathRow {
  group: string;
  operation: string;
  path: string;
  calls: number[];
  bytes: number[];
}
export interface Header {
  title: string;
  live?: boolean;
  agree: boolean;
  compared: boolean;
  verdict: string;
  ranks: Rank[];
  sequences: SequenceHeader[] | null;
  windows: WindowRow[] | null;
  pending: Row[] | null;
  faults: Row[] | null;
  paths: PathRow[] | null;
  notes: string[] | null;
  texts: string[] | null;
  frames: string[] | null;
  stackCount: number;
  stacks: [number, number];
}

export const enum Kind {
  Alloc = 1,
  Free,
  FreeDone,
  SegmentAdd,
  SegmentRemove,
  Call,
  Older,
}

// isRequest reports whether ranks must make the same request.
export function isRequest(kind: number): boolean {
  return kind === Kind.Alloc || kind === Kind.Free || kind === Kind.Call;
}

// Data gives access to the header and the columns.
export class Data {
  readonly header: Header;
  private readonly columns: Uint8Array;
  private stackTable: Int32Array[] | null = null;

  constructor(bytes: Uint8Array) {
    const magic = "SYMPAGE\x01";
    for (let i = 0; i < magic.length; i++) {
      if (bytes[i] !== magic.charCodeAt(i)) {
        throw new Error("These are no data of a page, or they have another version than the page.");
      }
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = view.getUint32(8, true);
    this.header = JSON.parse(new TextDecoder().decode(bytes.subarray(12, 12 + length))) as Header;
    this.header.ranks ??= [];
    this.columns = bytes.subarray(12 + length);
  }

  // bytes returns a column.
  bytes(at: [number, number] | undefined): Uint8Array {
    if (at === undefined) {
      return new Uint8Array(0);
    }
    if (at[0] + at[1] > this.columns.length) {
      throw new Error("The data of the page are cut off.");
    }
    return this.columns.subarray(at[0], at[0] + at[1]);
  }

  // stacks returns the frames of each stack, as indexes.
  stacks(): Int32Array[] {
    if (this.stackTable === null) {
      const r = new Varints(this.bytes(this.header.stacks));
      this.stackTable = [];
      for (let i = 0; i < this.header.stackCount; i++) {
        const frames = new Int32Array(r.next());
        for (let k = 0; k < frames.length; k++) {
          frames[k] = r.next();
        }
        this.stackTable.push(frames);
      }
    }
    return this.stackTable;
  }
}

// Varints reads the varints of a column.
export class Varints {
  private at = 0;
  constructor(private readonly bytes: Uint8Array) {}

  next(): number {
    const bytes = this.bytes;
    let b = bytes[this.at++]!;
    if (b < 0x80) {
      return b;
    }
    let value = b & 0x7f;
    let scale = 128;
    while (b >= 0x80 && this.at < bytes.length) {
      b = bytes[this.at++]!;
      value += (b & 0x7f) * scale;
      scale *= 128;
    }
    return value;
  }

  signed(): number {
    const v = this.next();
    return v % 2 === 0 ? v / 2 : -(v + 1) / 2;
  }
}

type Numbers = Float64Array | Int32Array;

// readUnsigned decodes a column of varints into an array.
export function readUnsigned<T extends Numbers>(bytes: Uint8Array, out: T): T {
  const r = new Varints(bytes);
  for (let i = 0; i < out.length; i++) {
    out[i] = r.next();
  }
  return out;
}

// readDeltas decodes a column of differences into an array.
export function readDeltas<T extends Numbers>(bytes: Uint8Array, out: T): T {
  const r = new Varints(bytes);
  let value = 0;
  for (let i = 0; i < out.length; i++) {
    value += r.signed();
    out[i] = value;
  }
  return out;
}

// embedded returns the data in the page, or null if the page fetches them from a source.
export async function embedded(): Promise<Uint8Array | null> {
  const node = document.getElementById("data");
  const text = node?.textContent?.trim() ?? "";
  if (text === "") {
    return null;
  }
  const bytes = fromBase64(text);
  node!.textContent = ""; // a copy of the data would stay in memory
  return unpack(bytes);
}

function fromBase64(text: string): Uint8Array {
  const native = (Uint8Array as unknown as { fromBase64?: (s: string) => Uint8Array }).fromBase64;
  if (native !== undefined) {
    return native.call(Uint8Array, text);
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes;
}

// unpack decompresses data that are compressed with gzip.
export async function unpack(bytes: Uint8Array): Promise<Uint8Array> {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) {
    return bytes;
  }
  const stream = new Blob([bytes as BlobPart])
    .stream()
    .pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
