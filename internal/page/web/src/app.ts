// Assembles the page and reacts to keys, links and new data.

import { Chart } from "./chart.js";
import { count, h, plural } from "./dom.js";
import { Data, embedded, unpack } from "./format.js";
import { Lanes } from "./lanes.js";
import { Model } from "./model.js";
import { Details, differenceNode, legend, tables } from "./panels.js";
import { Search } from "./search.js";
import { Mode, View, modes } from "./view.js";

const modeNames: Record<Mode, string> = {
  differences: "differences",
  stack: "call site",
  size: "size",
  stream: "stream",
};
const pollTime = 1000; // milliseconds between two requests for live data
const answerTime = 8000; // milliseconds; the server waits up to 3 s for other ranks
const lateText =
  "The rank that serves the page does not answer. It may be stopped: use symmem status.";

const keys: [string, string][] = [
  ["\u2190 \u2192", "pan"],
  ["+ \u2212", "zoom"],
  ["f", "show everything"],
  ["d", "go to the difference"],
  ["[ ]", "previous, next request"],
  ["\u2191 \u2193", "select a rank"],
  ["/", "search"],
  ["n N", "next, previous match"],
  ["p", "next pool or group"],
  ["c", "change colours"],
  ["< >", "lower, higher lanes"],
  ["t", "light or dark"],
  ["Esc", "close, deselect"],
  ["?", "these keys"],
];

class App {
  private readonly search = new Search();
  private readonly lanes: Lanes;
  private readonly chart: Chart;
  private readonly details: Details;
  private readonly top = h("div", { id: "top" });
  private readonly about = h("div", { id: "about" });
  private readonly legend = h("div", { id: "legend" });
  private readonly bottom = h("main", { id: "tables" });
  private readonly picker = h("select", {
    "aria-label": "pool or group",
    change: () => this.view.open(Number(this.picker.value)),
  });
  private readonly colors = h("select", {
    "aria-label": "colours",
    change: () => {
      this.view.mode = this.colors.value as Mode;
      this.view.changed();
    },
  });
  private readonly input = h("input", {
    type: "search",
    placeholder: "Search stacks, calls, sizes, #request",
    "aria-label": "search",
    spellcheck: "false",
    input: () => this.typed(),
    keydown: (e) => this.inputKey(e as KeyboardEvent),
  });
  private readonly found = h("output", { class: "dim" });
  private readonly help: HTMLDialogElement;
  private frame = 0;
  private timer = 0;
  private written = "";

  constructor(private readonly view: View) {
    this.lanes = new Lanes(view, this.search, () => this.schedule());
    this.chart = new Chart(view);
    this.details = new Details(view);
    this.help = h(
      "dialog",
      { id: "help", click: () => this.help.close() },
      h("h2", {}, "Keys"),
      h(
        "dl",
        {},
        ...keys.flatMap(([k, what]) => [h("dt", {}, h("kbd", {}, k)), h("dd", {}, what)]),
      ),
      h(
        "p",
        { class: "dim" },
        "Drag or scroll sideways to pan. Scroll with Ctrl, pinch, or drag in the " +
          "chart to zoom.",
      ),
    );
    const button = (text: string, title: string, f: () => void): HTMLElement =>
      h("button", { type: "button", title, "aria-label": title, click: f }, text);
    const tools = h(
      "div",
      { id: "tools", role: "toolbar" },
      this.picker,
      this.colors,
      button("\u2212", "zoom out (\u2212)", () => view.zoom(2)),
      button("+", "zoom in (+)", () => view.zoom(0.5)),
      button("Fit", "show everything (f)", () => view.fit()),
      button("Difference", "go to the difference (d)", () => this.toDifference()),
      this.input,
      this.found,
      button("?", "keys (?)", () => this.help.showModal()),
    );
    const node = document.getElementById("app")!;
    node.replaceChildren(
      this.top,
      tools,
      h(
        "div",
        { id: "main" },
        h("div", { id: "maps" }, this.about, this.chart.node, this.lanes.node, this.legend),
        this.details.node,
      ),
      this.bottom,
      this.help,
    );
    view.onChange(() => this.schedule());
    document.addEventListener("keydown", (e) => this.key(e));
    window.addEventListener("hashchange", () => this.restore());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    this.rebuild();
    this.restore();
    this.schedule();
  }

  private restore(): void {
    if (location.hash !== "" && location.hash !== `#${this.written}`) {
      this.view.restore(location.hash);
      this.input.value = this.view.query;
      this.runSearch();
    }
  }

  // rebuild fills in the parts that depend on the data alone.
  private rebuild(): void {
    const { model } = this.view;
    const header = model.data.header;
    document.title = header.title;
    const state = !header.compared ? "" : header.agree ? "good" : "bad";
    const events = header.ranks.reduce((n, r) => n + r.events, 0);
    this.top.replaceChildren(
      h(
        "header",
        {},
        h("h1", {}, header.title),
        h(
          "p",
          { class: "dim" },
          `${plural(header.ranks.length, "file")}, ${plural(events, "event")}`,
        ),
        h(
          "button",
          {
            type: "button",
            id: "theme",
            title: "light or dark (t)",
            "aria-label": "light or dark",
            click: () => this.toggleTheme(),
          },
          "\u25d0",
        ),
      ),
      h("p", { id: "verdict", class: state, role: "status" }, header.verdict),
    );
    this.picker.replaceChildren(
      ...model.sequences.map((s, i) =>
        h(
          "option",
          { value: i },
          s.header.title + (s.differences.length > 0 ? " \u2014 differs" : ""),
        ),
      ),
    );
    this.colors.replaceChildren(...modes.map((m) => h("option", { value: m }, modeNames[m])));
    const differences = model.sequences.flatMap((s, i) =>
      s.differences.map((d) => differenceNode(this.view, i, s, d)),
    );
    this.bottom.replaceChildren(
      ...(differences.length === 0
        ? []
        : [h("section", { id: "differences" }, h("h2", {}, "Differences"), ...differences)]),
      ...tables(header),
    );
    document.getElementById("main")!.hidden = this.view.empty;
    document.getElementById("tools")!.hidden = this.view.empty;
  }

  // replace shows newer data.
  replace(data: Data): void {
    this.view.replace(new Model(data));
    this.rebuild();
  }

  private schedule(): void {
    if (this.frame === 0) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
  }

  private draw(): void {
    const { view } = this;
    if (view.empty) {
      return;
    }
    if (this.picker.value !== String(view.sequenceIndex) || this.about.childElementCount === 0) {
      this.picker.value = String(view.sequenceIndex);
      this.describe();
    }
    this.colors.value = view.mode;
    this.lanes.update();
    const gutter = this.lanes.node.querySelector<HTMLElement>(".label")?.offsetWidth ?? 0;
    const left = this.lanes.node.clientWidth > this.lanes.width ? gutter : 0;
    this.chart.draw(this.lanes.width, Math.max(left, 0));
    const unfinished = this.lanes.draw();
    this.details.update();
    document.body.dataset["painted"] = unfinished ? "no" : "yes";
    if (unfinished) {
      this.schedule();
    }
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.writeFragment(), 200);
  }

  // describe states what the maps of the sequence show.
  private describe(): void {
    const s = this.view.sequence;
    this.about.replaceChildren(
      h(
        "p",
        {},
        h("b", {}, s.header.title),
        s.header.calls
          ? ": calls of each rank, and how late they are after the first rank"
          : ": allocated bytes, and memory by segments",
        h("span", { class: "dim" }, ` \u2014 ${plural(s.header.equal, "request")} agree`),
      ),
    );
    this.legend.replaceChildren(
      legend(s),
      ...(s.differences.length === 0
        ? []
        : [h("p", { class: "dim" }, `In lanes, red differs from rank ${s.rank(s.reference)}.`)]),
      ...(s.header.notes ?? []).map((n) => h("p", { class: "dim" }, n)),
    );
    this.runSearch();
  }

  private writeFragment(): void {
    this.written = this.view.fragment();
    history.replaceState(null, "", `#${this.written}`);
  }

  private toDifference(): void {
    const index = this.view.model.sequences.findIndex((s) => s.differences.length > 0);
    if (index < 0) {
      return;
    }
    if (this.view.sequence.differences.length === 0) {
      this.view.open(index);
    }
    const s = this.view.sequence;
    const d = s.differences[0]!;
    const rank = d.variants[1]?.ranks[0];
    this.view.approach(
      d.request,
      Math.max(
        s.tracks.findIndex((t) => s.rank(t) === rank),
        0,
      ),
    );
  }

  private typing = 0;

  private typed(): void {
    clearTimeout(this.typing);
    this.typing = window.setTimeout(() => this.runSearch(), 150);
  }

  private runSearch(): void {
    this.view.query = this.input.value;
    const n = this.view.empty ? 0 : this.search.run(this.view.sequence, this.input.value);
    this.found.textContent =
      this.search.query === "" ? "" : plural(n, "match").replace("matchs", "matches");
    this.schedule();
  }

  private toMatch(forward: boolean): void {
    const from = this.view.selected ? this.view.request : this.view.sequence.first - 1;
    const next = this.search.next(from, forward);
    if (next !== null) {
      this.view.reveal(next);
    }
  }

  private inputKey(e: KeyboardEvent): void {
    if (e.key === "Enter") {
      clearTimeout(this.typing);
      this.runSearch();
      this.toMatch(!e.shiftKey);
    } else if (e.key === "Escape") {
      this.input.value = "";
      this.runSearch();
      this.input.blur();
    }
    e.stopPropagation();
  }

  private toggleTheme(): void {
    const root = document.documentElement;
    const dark =
      root.dataset["theme"] === undefined
        ? matchMedia("(prefers-color-scheme: dark)").matches
        : root.dataset["theme"] === "dark";
    root.dataset["theme"] = dark ? "light" : "dark";
    this.schedule();
  }

  private key(e: KeyboardEvent): void {
    const { view } = this;
    const target = e.target as HTMLElement;
    if (
      e.ctrlKey ||
      e.metaKey ||
      e.altKey ||
      view.empty ||
      this.help.open ||
      target.tagName === "SELECT" ||
      target.tagName === "INPUT"
    ) {
      return;
    }
    const width = view.to - view.from;
    const at = view.selected ? view.request : Math.round((view.from + view.to) / 2);
    const actions: Record<string, () => void> = {
      ArrowLeft: () => view.pan(-width * (e.shiftKey ? 0.9 : 0.1)),
      ArrowRight: () => view.pan(width * (e.shiftKey ? 0.9 : 0.1)),
      ArrowUp: () => view.select(at, view.track - 1),
      ArrowDown: () => view.select(at, view.track + 1),
      "+": () => view.zoom(0.5, this.center()),
      "=": () => view.zoom(0.5, this.center()),
      "-": () => view.zoom(2, this.center()),
      Home: () => view.pan(view.sequence.first - view.from),
      f: () => view.fit(),
      End: () => view.pan(view.sequence.end - view.to),
      d: () => this.toDifference(),
      "[": () => view.reveal(at - 1),
      "]": () => view.reveal(at + 1),
      n: () => this.toMatch(true),
      N: () => this.toMatch(false),
      p: () => view.open((view.sequenceIndex + 1) % view.model.sequences.length),
      c: () => {
        view.mode = modes[(modes.indexOf(view.mode) + 1) % modes.length]!;
        view.changed();
      },
      "<": () => this.lanes.setHeight(this.lanes.height / 1.25),
      ">": () => this.lanes.setHeight(this.lanes.height * 1.25),
      t: () => this.toggleTheme(),
      "?": () => this.help.showModal(),
      "/": () => this.input.focus(),
      Escape: () => {
        view.selected = false;
        view.changed();
      },
    };
    const action = actions[e.key];
    if (action !== undefined) {
      e.preventDefault();
      action();
    }
  }

  // center returns the request around which keys zoom: the selected one if it is visible.
  private center(): number {
    const { selected, request, from, to } = this.view;
    return selected && request >= from && request <= to ? request : (from + to) / 2;
  }
}

// fetchData returns the data at a URL, or null if they have not changed since the last call.
let tag = "";
async function fetchData(source: string): Promise<Data | null> {
  const aborter = new AbortController();
  const timer = setTimeout(() => aborter.abort(new Error(lateText)), answerTime);
  const response = await fetch(source, {
    headers: tag === "" ? {} : { "If-None-Match": tag },
    signal: aborter.signal,
  });
  clearTimeout(timer); // the data may take longer
  if (response.status === 304) {
    return null;
  }
  if (!response.ok) {
    throw new Error(`The server answered ${response.status} ${response.statusText}.`);
  }
  tag = response.headers.get("ETag") ?? "";
  return new Data(await unpack(new Uint8Array(await response.arrayBuffer())));
}

// follow fetches live data until the page is closed.
async function follow(app: App, source: string): Promise<void> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, pollTime));
    try {
      const data = document.hidden ? null : await fetchData(source);
      delete document.body.dataset["lost"];
      if (data !== null) {
        app.replace(data);
      }
    } catch (e) {
      document.body.dataset["lost"] = text(e);
    }
  }
}

function text(e: unknown): string {
  return e instanceof Error ? e.message : String(e);
}

async function main(): Promise<void> {
  const source = document.getElementById("data")?.dataset["source"];
  try {
    const bytes = await embedded();
    const data = bytes !== null ? new Data(bytes) : await fetchData(source ?? "data.bin");
    const app = new App(new View(new Model(data!)));
    document.body.dataset["ready"] = count(data!.header.ranks.length);
    if (data!.header.live && source !== undefined) {
      void follow(app, source);
    }
  } catch (e) {
    document
      .getElementById("app")!
      .replaceChildren(
        h(
          "p",
          { id: "verdict", class: "bad", role: "alert" },
          `The page cannot be shown: ${text(e)}`,
        ),
      );
    document.body.dataset["ready"] = "failed";
    throw e;
  }
}

void main();
