// The page: reads the choices, starts and cancels runs, and hands the events of a run to its parts.

import { choices, run, ServerError, setToken } from "./api.js";
import { Chart } from "./chart.js";
import { Drawing } from "./drawing.js";
import { count, element, number, percent, seconds, time } from "./formatting.js";
import { fillTable, showCounts } from "./predictions.js";
import { Settings } from "./settings.js";
import { Shares } from "./shares.js";
import { calm, onScheme } from "./theme.js";
import { Timeline } from "./timeline.js";

const at = Object.fromEntries([...document.querySelectorAll("[id]")].map((one) => [one.id, one]));
const settings = new Settings(at);
const chart = new Chart(at.chart);
const drawing = new Drawing({ box: at.drawing, tools: at["drawing-tools"], legend: at.legend, facts: at["node-facts"] });
const shares = new Shares(at.shares);
const timeline = new Timeline({ slider: at.time, play: at.play, moment: at.moment, onFrame: showFrame });

const narrow = matchMedia("(max-width: 900px)"); // the results are below the form

let graph = null; // facts about the graph of the run
let cancelled = null; // the AbortController of the run
let shown = null; // the frame that is shown

function showFrame(frame) {
  shown = frame;
  chart.show(frame.time);
  drawing.show(frame);
  showCounts(at.counts, graph, frame);
  shares.show(timeline.frames, frame.time);
  showFigures(frame);
}

const NOTHING = [
  ["time", "–", "of the state that is shown"],
  ["alignment", "–", "at this time"],
  ["mean certainty", "–", "largest probability"],
  ["run", "–", "cell calls"],
  ["graph", "–", "nodes"],
];

function showFigures(frame) {
  const tiles = [
    ["time", time(frame.time, graph.end), `step ${count(frame.step)}`],
    ["alignment", number(frame.alignment), "at this time"],
  ];
  if ("mean_certainty" in frame) tiles.push(["mean certainty", percent(frame.mean_certainty), "largest probability"]);
  if ("accuracy" in frame) tiles.push(["accuracy", percent(frame.accuracy), "on labels that the run did not use"]);
  if (graph.answer) tiles.push(["run", seconds(graph.answer.seconds), solverText(graph.answer)]);
  tiles.push(["graph", count(graph.nodes), `nodes, ${count(graph.edges)} edges`]);
  showTiles(tiles);
}

/** Such as "ab2, 40 calls"; a solver without a fixed number of calls names only itself. */
function solverText({ solver, cell_calls: calls }) {
  return solver.includes("calls") ? solver : `${solver}, ${count(calls)} calls`;
}

function showTiles(tiles) {
  at.figures.replaceChildren(...tiles.map(([name, value, detail]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, detail)))));
}

// Events of a run ---------------------------------------------------------------------------------------------

const handlers = {
  graph(facts) {
    graph = facts;
    at.progress.max = facts.end;
    at.numbers.hidden = true;
    chart.clear(facts.end);
    shares.clear(facts.end);
    timeline.clear(facts.end);
    drawing.begin(facts, settings.choices.drawn);
    if (narrow.matches) at.results.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
    say("The run has started.");
  },
  step(step) {
    chart.add(step.time, step.alignment);
    at.progress.value = Math.max(at.progress.value, step.time);
    at.state.textContent = `Running: step ${count(step.step)}, t = ${time(step.time, graph.end)}`;
  },
  frame(frame) {
    timeline.add(frame);
  },
  answer(answer) {
    graph.answer = answer;
    chart.answer(answer.frame.time, answer.frame.alignment);
    timeline.answer(answer.frame);
    fillTable(at.table, graph, timeline.frames, answer.frame);
    at.numbers.hidden = false;
    at.progress.value = at.progress.max;
    at.state.textContent = `Finished: ${answer.why}.`;
    say(`Finished at t = ${time(answer.frame.time, graph.end)} after ${count(answer.cell_calls)} cell calls: ${answer.why}.`);
  },
  error({ error }) {
    throw new ServerError(error, 0, null);
  },
};

async function start() {
  const mine = new AbortController();
  cancelled = mine;
  setRunning(true);
  at.problem.hidden = true;
  at.progress.value = 0;
  at.state.textContent = "Waiting for the server.";
  try {
    let last = null;
    for await (const [name, content] of run(settings.model.name, settings.parameters, settings.file, mine.signal)) {
      handlers[name](content);
      last = name;
    }
    if (last !== "answer") throw new ServerError("The connection ended before the answer.", 0, null);
  } catch (error) {
    failed(error, mine);
  } finally {
    if (cancelled === mine) setRunning(false);
  }
}

function failed(error, mine) {
  if (mine.signal.aborted) {
    at.state.textContent = "Cancelled.";
    say("The run was cancelled.");
    return;
  }
  at.state.textContent = "The run failed.";
  if (error.status === 401) return askToken(error.message, start);
  at.problem.hidden = false;
  if (error.status === 429 && error.retryAfter) return countDown(error.retryAfter, mine);
  at.problem.textContent = error instanceof ServerError ? error.message : `The connection was lost (${error.message}).`;
}

/** The queue is full: say when to try again. */
function countDown(wait, mine) {
  at.problem.textContent = `The server is busy. Try again in ${wait} s.`;
  setTimeout(() => {
    if (cancelled === mine) at.problem.textContent = "The server was busy. Try again now.";
  }, 1000 * wait);
}

function setRunning(running) {
  at.run.disabled = running;
  at.cancel.disabled = !running;
  at.settings.setAttribute("aria-busy", running);
}

function say(text) {
  at.announcement.textContent = text;
}

// Start -------------------------------------------------------------------------------------------------------

function askToken(message, then) {
  at["token-problem"].hidden = !message || !sessionStorage.length;
  at["token-problem"].textContent = "The server does not accept this token.";
  at["token-dialog"].returnValue = "";
  at["token-dialog"].showModal();
  at["token-form"].onsubmit = () => {
    setToken(at.token.value);
    then();
  };
}

async function load() {
  try {
    settings.fill(await choices());
  } catch (error) {
    if (error.status === 401) return askToken(error.message, load);
    at.problem.hidden = false;
    at.problem.textContent = error.message;
    return;
  }
  setRunning(false);
}

at.settings.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
at.cancel.addEventListener("click", () => cancelled?.abort());
at.colouring.addEventListener("change", (event) => drawing.colourBy(event.target.value));
at["zoom-in"].addEventListener("click", () => drawing.zoom(1.5));
at["zoom-out"].addEventListener("click", () => drawing.zoom(1 / 1.5));
at["zoom-fit"].addEventListener("click", () => drawing.fit());
onScheme(() => shown && showFrame(shown));
showTiles(NOTHING);
at.run.disabled = true;
at.numbers.hidden = true;
load();
