// The share of each class over the times of a run, as lines in the colours of the classes.

import { momentLine, timeOptions } from "./plots.js";
import { classColours, onScheme } from "./theme.js";

const SHOWN = 5; // classes with a line: those that are predicted most often at the end
const HEIGHT = 200;

export class Shares {
  constructor(box) {
    this.box = box;
    this.clear(1);
    new ResizeObserver(() => this.plot?.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
    onScheme(() => this.build());
  }

  clear(end) {
    this.end = end;
    this.frames = [];
    this.moment = null;
    this.build();
  }

  /** Draw the frames of a run, and the time that is shown. */
  show(frames, time) {
    this.moment = time;
    if (!frames[0].counts) return;
    const same = this.frames.length === frames.length;
    this.frames = [...frames];
    if (same) this.plot.redraw(false);
    else this.build();
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    this.box.hidden = this.frames.length < 2;
    if (this.box.hidden) return;
    const last = this.frames.at(-1).counts;
    const colours = classColours(last.length);
    const classes = last.map((_, i) => i).sort((a, b) => last[b] - last[a]).slice(0, SHOWN);
    const total = last.reduce((sum, value) => sum + value, 0);
    const data = [this.frames.map((one) => one.time), ...classes.map((i) => this.frames.map((one) => (100 * one.counts[i]) / total))];
    const options = timeOptions({
      width: this.box.clientWidth,
      height: HEIGHT,
      end: this.end,
      range: [0, 100],
      texts: (value) => `${value} %`,
      top: 12,
      series: classes.map((i) => colours[i]),
      draw: (plot) => momentLine(plot, this.moment),
    });
    this.plot = new uPlot(options, data, this.box);
  }
}
