// Draws the allocated bytes of each rank, or how late its calls are, over requests.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { h, size } from "./dom.js";
import { Sequence } from "./model.js";
import { css } from "./tiles.js";
import { maximum } from "./track.js";
import { View } from "./view.js";

const mostCurves = 16;
const height = 150;
const right = 16; // right of the plot, as of the lanes
const whole = Array.from({ length: 40 }, (_, i) => [1, 2, 5][i % 3]! * 10 ** Math.floor(i / 3));
const binary = Array.from({ length: 52 }, (_, i) => 2 ** i);

// Curve is a line of the chart: a rank, or the largest value of all ranks.
interface Curve {
  label: string;
  levels: { first: number; pyramid: Float64Array[] }[];
  color: string;
}

export class Chart {
  readonly node = h("div", { id: "chart" });
  private plot: uPlot | null = null;
  private shown: Sequence | null = null;
  private curves: Curve[] = [];
  private theme = "";
  private range = ""; // that is drawn

  constructor(private readonly view: View) {}

  // draw shows the view's range, with the plot as wide as the lanes and right of a margin.
  draw(width: number, left: number): void {
    if (this.view.empty) {
      return;
    }
    const style = getComputedStyle(document.documentElement);
    const theme = style.getPropertyValue("--text") + style.getPropertyValue("--bad");
    if (this.shown !== this.view.sequence || theme !== this.theme) {
      this.shown = this.view.sequence;
      this.theme = theme;
      this.curves = curvesOf(this.shown);
      this.range = "";
      this.plot?.destroy();
      this.plot = this.curves.length === 0 ? null : this.make(width, left, style);
    }
    const plot = this.plot;
    const range = `${this.view.from} ${this.view.to} ${width} ${left}`;
    if (plot === null || range === this.range) {
      return;
    }
    this.range = range;
    if (plot.width !== width + left + right) {
      plot.setSize({ width: width + left + right, height });
    }
    plot.batch(() => {
      plot.setData(this.values(width), false);
      plot.setScale("x", { min: this.view.from, max: this.view.to });
      plot.setScale("y", { min: 0, max: this.most * 1.08 || 1 });
    });
  }

  private most = 0;

  // values returns a maximum of each curve for every pixel.
  private values(width: number): uPlot.AlignedData {
    const step = 2 ** Math.max(Math.floor(Math.log2((this.view.to - this.view.from) / width)), 0);
    const begin = Math.floor(Math.max(this.view.from, this.shown!.first) / step) * step;
    const end = Math.min(this.view.to + step, this.shown!.end);
    const n = Math.max(Math.ceil((end - begin) / step), 1);
    const x = new Float64Array(n + 1);
    const rows: (number | null)[][] = this.curves.map(() =>
      new Array<number | null>(n + 1).fill(null),
    );
    this.most = 0;
    for (let i = 0; i < n; i++) {
      x[i] = begin + i * step;
      for (let c = 0; c < rows.length; c++) {
        let most = NaN;
        for (const { first, pyramid } of this.curves[c]!.levels) {
          const v = maximum(pyramid, x[i]! - first, x[i]! - first + step);
          most = Number.isNaN(most) || v > most ? v : most;
        }
        rows[c]![i] = Number.isNaN(most) ? null : most;
        this.most = most > this.most ? most : this.most;
      }
    }
    x[n] = Math.min(begin + n * step, this.shown!.end); // the end of the last step
    rows.forEach((row) => (row[n] = row[n - 1]!));
    return [x, ...rows] as unknown as uPlot.AlignedData;
  }

  private make(width: number, left: number, style: CSSStyleDeclaration): uPlot {
    const text = style.getPropertyValue("--dim");
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const bad = style.getPropertyValue("--bad");
    const font = `11px ${style.getPropertyValue("--mono")}`;
    const unit = this.shown!.header.calls ? (v: number): string => `${v} ms` : size;
    return new uPlot(
      {
        width: width + left + right,
        height,
        pxAlign: 0,
        padding: [8, right, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
        scales: { x: { time: false, auto: false }, y: { auto: false } },
        series: [
          {},
          ...this.curves.map((c) => ({
            label: c.label,
            stroke: c.color,
            width: 1.25,
            points: { show: false },
            paths: uPlot.paths.stepped!({ align: 1 }),
          })),
        ],
        axes: [
          { stroke: text, grid, ticks: grid, font, size: 30, incrs: whole },
          {
            stroke: text,
            grid,
            ticks: grid,
            font,
            size: left,
            values: (_, splits) => splits.map((v) => unit(v)),
            ...(this.shown!.header.calls ? {} : { incrs: binary }),
          },
        ],
        hooks: {
          draw: [(u) => this.drawDifferences(u, bad)],
          setSelect: [
            (u) => {
              if (u.select.width > 5) {
                const from = u.posToVal(u.select.left, "x");
                const to = u.posToVal(u.select.left + u.select.width, "x");
                u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
                this.view.setRange(from, to);
              }
            },
          ],
        },
      },
      this.values(width),
      this.node,
    );
  }

  private drawDifferences(u: uPlot, color: string): void {
    u.ctx.fillStyle = color;
    for (const d of this.shown!.differences) {
      const x = u.valToPos(d.request, "x", true);
      if (x >= u.bbox.left && x <= u.bbox.left + u.bbox.width) {
        u.ctx.fillRect(Math.round(x), u.bbox.top, Math.round(devicePixelRatio), u.bbox.height);
      }
    }
  }
}

function curvesOf(sequence: Sequence): Curve[] {
  const pyramids = sequence.header.calls ? sequence.late : sequence.tracks.map((t) => t.totals);
  const all = sequence.tracks
    .map((t, i) => ({
      label: `rank ${sequence.rank(t)}`,
      color: css(i),
      levels: pyramids[i] ? [{ first: t.header.first, pyramid: pyramids[i]! }] : [],
    }))
    .filter((c) => c.levels.length > 0);
  if (all.length <= mostCurves) {
    return all;
  }
  return [{ label: "largest", color: css(0), levels: all.flatMap((c) => c.levels) }];
}
