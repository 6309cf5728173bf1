// The predictions of one time as bars, and those of all times as a table.

import { className, count, element, number, percent, swatch, time } from "./formatting.js";
import { classColours } from "./theme.js";

const SHOWN = 10; // classes; the rest is one row

/** Bars of the counts of one frame. */
export function showCounts(box, graph, frame) {
  box.replaceChildren(frame.numbers ? numbers(frame.numbers) : bars(graph, frame));
}

function bars(graph, { counts }) {
  const colours = classColours(counts.length);
  const total = counts.reduce((sum, value) => sum + value, 0);
  const order = counts.map((_, i) => i);
  const listed = counts.length > SHOWN ? order.sort((a, b) => counts[b] - counts[a]).slice(0, SHOWN) : order;
  const rows = listed.map((i) => bar([swatch(colours[i]), " ", className(graph.class_names, i)], counts[i], total, colours[i]));
  const rest = total - listed.reduce((sum, i) => sum + counts[i], 0);
  if (counts.length > SHOWN) rows.push(bar([`${counts.length - SHOWN} others`], rest, total, "var(--soft)"));
  return element("table", { class: "bars" }, element("caption", {}, `Predictions by class, of ${count(total)}`), element("tbody", {}, ...rows));
}

function bar(name, value, total, colour) {
  const filled = element("div");
  filled.style.width = `${(100 * value) / total}%`;
  filled.style.background = colour;
  return element("tr", {}, element("th", { scope: "row" }, ...name), element("td", { class: "bar", "aria-hidden": "true" }, filled), element("td", {}, `${count(value)} (${percent(value / total)})`));
}

function numbers({ least, mean, most }) {
  const rows = Object.entries({ least, mean, most }).map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, number(value))));
  return element("table", { class: "bars" }, element("caption", {}, "Predicted numbers"), element("tbody", {}, ...rows));
}

/** All frames as rows of a table, for those who do not see the pictures. */
export function fillTable(table, graph, frames, answer) {
  const classes = (frames[0].counts ?? []).slice(0, SHOWN).map((_, i) => className(graph.class_names, i));
  const head = ["step", "time", "alignment", ...(graph.regression ? ["least", "mean", "most"] : classes), ...("accuracy" in frames[0] ? ["accuracy"] : [])];
  const rows = frames.map((frame) => {
    const values = graph.regression ? Object.values(frame.numbers).map(number) : frame.counts.slice(0, SHOWN).map(count);
    const cells = [time(frame.time, graph.end), number(frame.alignment), ...values, ...("accuracy" in frame ? [percent(frame.accuracy)] : [])];
    const name = frame === answer ? `${count(frame.step)} (answer)` : count(frame.step);
    const row = element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((text) => element("td", {}, text)));
    if (frame === answer) row.className = "answer";
    return row;
  });
  table.replaceChildren(element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
}
