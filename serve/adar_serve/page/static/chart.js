// The curve of the alignment: it grows with the run, marks its peak, and shows the chosen time.

import { number, time as timeText } from "./formatting.js";
import { momentLine, timeOptions } from "./plots.js";
import { colour, onScheme } from "./theme.js";

const MARK = 5; // radius in CSS pixels

export class Chart {
  constructor(box) {
    this.box = box;
    this.clear(1);
    new ResizeObserver(() => this.resize()).observe(box);
    onScheme(() => this.build());
  }

  clear(end) {
    this.end = end;
    this.data = [[], []];
    this.peak = null; // index of the highest state, or of the answer once it is known
    this.answered = false;
    this.moment = null;
    this.build();
    this.describe();
  }

  add(time, alignment) {
    const [times, values] = this.data;
    if (times.length && time < times.at(-1)) return; // the loop went back to a peak between two states
    times.push(time);
    values.push(alignment);
    if (this.peak === null || alignment > this.peak.alignment) this.peak = { time, alignment };
    this.update();
  }

  answer(time, alignment) {
    this.peak = { time, alignment };
    this.answered = true;
    this.update();
    this.describe();
  }

  /** Show a time, or no time (null). */
  show(time) {
    this.moment = time;
    this.plot.redraw(false);
  }

  update() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.plot.setData(this.data);
    });
  }

  build() {
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.data, this.box);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width && height) this.plot.setSize({ width, height });
  }

  options() {
    return timeOptions({
      width: this.box.clientWidth || 600,
      height: this.box.clientHeight || 260,
      end: this.end,
      range: (_, low, high) => padded(low, high),
      texts: number,
      top: 24,
      series: [colour("tone-0")],
      draw: (plot) => this.marks(plot),
    });
  }

  marks(plot) {
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    momentLine(plot, this.moment);
    ctx.save();
    if (this.peak !== null) {
      const [x, y] = [plot.valToPos(this.peak.time, "x", true), plot.valToPos(this.peak.alignment, "y", true)];
      ctx.beginPath();
      ctx.arc(x, y, MARK * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = colour("paper");
      ctx.strokeStyle = colour("tone-1");
      ctx.lineWidth = 2.5 * ratio;
      ctx.fill();
      ctx.stroke();
      this.label(plot, x, y, ratio);
    }
    ctx.restore();
  }

  label(plot, x, y, ratio) {
    const { ctx, bbox } = plot;
    const text = `${this.answered ? "answer" : "highest so far"}, t = ${timeText(this.peak.time, this.end)}`;
    ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    const half = ctx.measureText(text).width / 2;
    const left = Math.min(Math.max(x, bbox.left + half), bbox.left + bbox.width - half);
    const bottom = y - 2 * MARK * ratio;
    ctx.fillStyle = colour("paper"); // the line of the time must not cross the text
    ctx.fillRect(left - half, bottom - 14 * ratio, 2 * half, 15 * ratio);
    ctx.fillStyle = colour("ink");
    ctx.textAlign = "center";
    ctx.textBaseline = "bottom";
    ctx.fillText(text, left, bottom);
  }

  describe() {
    const { box, data, peak, end } = this;
    const text = this.answered
      ? `Curve of the alignment over ${data[0].length} states, from ${number(data[1][0])} at the start. The answer is at t = ${timeText(peak.time, end)} with ${number(peak.alignment)}.`
      : "Curve of the alignment. No answer yet.";
    box.setAttribute("aria-label", text);
  }
}

function padded(low, high) {
  if (low === null || low === undefined) return [0, 1];
  const space = (high - low || Math.abs(high) || 1) * 0.12;
  return [low - space, high + space];
}
