// The parts of the page that are text: verdict, details of an event, tables.

import { count, h, plural, ranks, size, time } from "./dom.js";
import { Difference, Header, Row } from "./format.js";
import { Sequence } from "./model.js";
import { css } from "./tiles.js";
import { Track } from "./track.js";
import { View } from "./view.js";

const longStack = 6; // frames that are shown at once
const longTable = 200; // rows of a table that are shown at once

// stackNode returns the frames of a stack, of which the outer ones are folded.
export function stackNode(frames: string[]): HTMLElement | null {
  if (frames.length === 0) {
    return null;
  }
  const line = (f: string): HTMLElement => h("li", {}, f);
  const inner = h("ol", { class: "stack" }, ...frames.slice(0, longStack).map(line));
  if (frames.length > longStack) {
    inner.append(
      h(
        "li",
        {},
        h(
          "details",
          {},
          h("summary", {}, plural(frames.length - longStack, "more frame")),
          h("ol", { class: "stack" }, ...frames.slice(longStack).map(line)),
        ),
      ),
    );
  }
  return inner;
}

// differenceNode describes a difference and offers to show it.
export function differenceNode(view: View, index: number, s: Sequence, d: Difference): HTMLElement {
  const show = (): void => {
    if (view.sequenceIndex !== index) {
      view.open(index);
    }
    const rank = d.variants[1]?.ranks[0];
    view.approach(
      d.request,
      s.tracks.findIndex((t) => s.rank(t) === rank),
    );
  };
  return h(
    "article",
    { class: "difference" },
    h("h3", {}, s.header.title),
    h(
      "p",
      {},
      h(
        "b",
        {},
        `${d.of === "places" ? "Places" : "Requests"} differ first at request `,
        count(d.request),
      ),
      `: ${d.kind}. `,
      h("button", { type: "button", class: "show", click: show }, "Show it"),
    ),
    h("ol", { class: "before" }, ...(d.before ?? []).map((line) => h("li", {}, line))),
    h(
      "div",
      { class: "variants" },
      ...d.variants.map((v) =>
        h(
          "section",
          {
            class:
              v.kind !== "" && d.blamed?.some((r) => v.ranks.includes(r))
                ? "variant bad"
                : "variant",
          },
          h("h4", {}, ranks(v.ranks), v.kind === "" ? null : h("em", {}, v.kind)),
          h("p", {}, v.text),
          stackNode(v.stack ?? []),
        ),
      ),
    ),
    h(
      "p",
      { class: "dim" },
      (d.blamed ?? []).length > 0
        ? `In the minority: ${ranks(d.blamed!)}. `
        : "No majority: the files do not show which rank is wrong. ",
      (d.explanation ?? []).join(" "),
    ),
  );
}

// Details shows the selected request on all ranks.
export class Details {
  readonly node = h("aside", {
    id: "details",
    "aria-live": "polite",
    "aria-label": "Selected request",
  });
  private shown = "";

  constructor(private readonly view: View) {}

  update(): void {
    const { view } = this;
    const key = view.empty
      ? ""
      : `${view.sequenceIndex} ${view.request} ${view.track} ${view.selected}`;
    if (key === this.shown) {
      return;
    }
    this.shown = key;
    if (view.empty || !view.selected) {
      this.node.replaceChildren(
        h("p", { class: "dim" }, "Click a block or call to compare the request on all ranks."),
      );
      return;
    }
    const s = view.sequence;
    this.node.replaceChildren(
      h(
        "header",
        {},
        h(
          "button",
          {
            type: "button",
            title: "previous request ([)",
            "aria-label": "previous request",
            click: () => view.reveal(view.request - 1),
          },
          "\u2190",
        ),
        h("h2", {}, `Request ${count(view.request)}`),
        h(
          "button",
          {
            type: "button",
            title: "next request (])",
            "aria-label": "next request",
            click: () => view.reveal(view.request + 1),
          },
          "\u2192",
        ),
      ),
      ...this.groups(s),
      this.neighbours(s),
    );
  }

  // groups lists the events of the request; ranks with the same event share an entry.
  private groups(s: Sequence): HTMLElement[] {
    const groups = new Map<
      string,
      { tracks: Track[]; text: string; place: string; stack: string[] }
    >();
    for (const t of s.tracks) {
      const e = t.find(this.view.request);
      const g =
        e < 0
          ? {
              tracks: [],
              text: "nothing: the file ends before, or begins after it",
              place: "",
              stack: [],
            }
          : { tracks: [], text: s.text(t, e), place: s.place(t, e), stack: s.stack(t, e) };
      const key = JSON.stringify([g.text, g.place, g.stack]);
      const known = groups.get(key) ?? g;
      (known.tracks as Track[]).push(t);
      groups.set(key, known);
    }
    const largest = Math.max(...[...groups.values()].map((g) => g.tracks.length));
    return [...groups.values()].map((g) =>
      h(
        "section",
        {
          class: groups.size > 1 && g.tracks.length < largest ? "variant bad" : "variant",
        },
        h("h4", {}, ranks(g.tracks.map((t) => s.rank(t)))),
        h("p", {}, g.text),
        g.place === "" ? null : h("p", { class: "place" }, g.place),
        stackNode(g.stack),
        this.times(s, g.tracks),
      ),
    );
  }

  private times(s: Sequence, tracks: Track[]): HTMLElement | null {
    const lines: HTMLElement[] = [];
    for (const t of tracks.slice(0, longStack)) {
      const e = t.find(this.view.request);
      if (e >= 0) {
        const at = time(t.times[e]!);
        lines.push(
          h(
            "li",
            {},
            `rank ${s.rank(t)}: event ${count(t.numbers[e]!)} in its file`,
            at === "" ? null : `, ${at}`,
          ),
        );
      }
    }
    return lines.length === 0 ? null : h("ul", { class: "dim" }, ...lines);
  }

  // neighbours lists the requests around the selected one on its rank.
  private neighbours(s: Sequence): HTMLElement {
    const track = s.tracks[this.view.track]!;
    const rows: HTMLElement[] = [];
    for (let n = this.view.request - 5; n <= this.view.request + 5; n++) {
      const e = track.find(n);
      if (e >= 0) {
        rows.push(
          h(
            "li",
            { class: n === this.view.request ? "here" : "" },
            h(
              "button",
              { type: "button", click: () => this.view.reveal(n) },
              h("span", { class: "dim" }, count(n)),
              " ",
              s.text(track, e),
            ),
          ),
        );
      }
    }
    return h(
      "section",
      {},
      h("h4", {}, `Around it on rank ${s.rank(track)}`),
      h("ol", { class: "near" }, ...rows),
    );
  }
}

type Cell = string | Node;

function table(titles: string[], rows: Cell[][]): HTMLElement {
  const row = (cells: Cell[]): HTMLElement => h("tr", {}, ...cells.map((c) => h("td", {}, c)));
  const body = h("tbody", {}, ...rows.slice(0, longTable).map(row));
  const node = h(
    "div",
    { class: "scroll", tabindex: 0 },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...titles.map((t) => h("th", { scope: "col" }, t)))),
      body,
    ),
  );
  if (rows.length > longTable) {
    const more = h(
      "button",
      {
        type: "button",
        click: () => {
          body.append(...rows.slice(longTable).map(row));
          more.remove();
        },
      },
      `Show ${plural(rows.length - longTable, "more row")}`,
    );
    node.append(more);
  }
  return node;
}

function section(id: string, title: string, number: number, ...children: Node[]): HTMLElement {
  return h(
    "section",
    { id, class: "table" },
    h("h2", {}, title, " ", h("span", { class: "dim" }, count(number))),
    ...children,
  );
}

// tables returns the tables of the page that are not empty.
export function tables(header: Header): HTMLElement[] {
  const all: HTMLElement[] = [];
  const rank = (i: number): number => header.ranks[i]?.rank ?? i;
  const list = (id: string, title: string, rows: Row[] | null): void => {
    if (rows !== null && rows.length > 0) {
      all.push(
        section(
          id,
          title,
          rows.length,
          table(
            ["ranks", "group", "what", "when"],
            rows.map((r) => [ranks(r.ranks.map(rank)), r.group, r.text, time(r.time)]),
          ),
        ),
      );
    }
  };
  list("faults", "Faults", header.faults);
  list("pending", "Pending", header.pending);
  const paths = header.paths ?? [];
  if (paths.length > 0) {
    all.push(
      section(
        "paths",
        "Calls by path",
        paths.length,
        table(
          ["group", "operation", "path", "calls", "bytes", "ranks"],
          paths.map((p) => [
            p.group,
            p.operation,
            p.path,
            range(p.calls, count),
            range(p.bytes, size),
            ranks(p.calls.flatMap((n, i) => (n > 0 ? [rank(i)] : []))),
          ]),
        ),
      ),
    );
  }
  const windows = header.windows ?? [];
  if (windows.length > 0) {
    all.push(
      section(
        "windows",
        "Windows",
        windows.length,
        table(
          ["group", "pool", "segment", "size", "registered on"],
          windows.map((w) => [
            w.group,
            w.pool,
            String(w.segment),
            size(w.bytes),
            states(w.states, rank),
          ]),
        ),
      ),
    );
  }
  all.push(
    section(
      "files",
      "Files",
      header.ranks.length,
      table(
        ["rank", "file", "format", "events", "notes"],
        header.ranks.map((r) => [
          String(r.rank),
          r.file,
          r.format,
          count(r.events),
          (r.notes ?? []).join(" "),
        ]),
      ),
      notes(header.notes ?? []),
    ),
  );
  return all;
}

function notes(lines: string[]): HTMLElement {
  return h("ul", { class: "dim" }, ...lines.map((n) => h("li", {}, n)));
}

// range formats the smallest and the largest value of the ranks that have one.
function range(values: number[], format: (n: number) => string): string {
  const some = values.filter((v) => v > 0);
  const low = some.length === 0 ? 0 : Math.min(...some);
  const high = Math.max(0, ...some);
  return low === 0 && high === 0
    ? ""
    : low === high
      ? format(low)
      : `${format(low)} \u2013 ${format(high)}`;
}

function states(values: number[], rank: (i: number) => number): Node {
  const names = ["not registered", "registered", "deregistered"];
  return h(
    "span",
    { class: "states" },
    ...values.map((v, i) =>
      h(
        "i",
        {
          class: `state${v}`,
          title: `rank ${rank(i)}: ${names[v] ?? v}`,
        },
        String(rank(i)),
      ),
    ),
  );
}

// legend lists the colours of the ranks' curves.
export function legend(s: Sequence): HTMLElement {
  if (s.header.calls && s.late.length === 0) {
    return h("ul"); // there are no curves
  }
  const few = s.tracks.length <= 16;
  return h(
    "ul",
    { class: "legend" },
    ...(few
      ? s.tracks.map((t, i) => {
          const swatch = h("i");
          swatch.style.background = css(i);
          return h("li", {}, swatch, `rank ${s.rank(t)}`);
        })
      : [h("li", {}, "largest of all ranks")]),
  );
}
