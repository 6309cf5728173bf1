// What the two plots share: axes in the colours of the page, and the line of the chosen time.

import { colour } from "./theme.js";

const FONT = "12px system-ui, sans-serif";

/** Options of a plot over the time of a run. `texts` formats the values of the vertical axis. */
export function timeOptions({ width, height, end, range, texts, top, series, draw }) {
  const axis = { stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false }, font: FONT };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { show: false },
    padding: [top, 20, 0, 0],
    scales: { x: { time: false, range: [0, end] }, y: { range } },
    axes: [
      { ...axis, size: 30, label: "time t", labelSize: 18, labelGap: 0, labelFont: FONT },
      { ...axis, size: 56, values: (_, all) => all.map(texts) },
    ],
    series: [{}, ...series.map((stroke) => ({ stroke, width: 2, points: { show: false } }))],
    hooks: { draw: [draw] },
  };
}

/** A dashed vertical line at a time; none for null. */
export function momentLine({ ctx, bbox, valToPos }, time) {
  if (time === null) return;
  const x = valToPos(time, "x", true);
  ctx.save();
  ctx.strokeStyle = colour("soft");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
