// The graph on a canvas, coloured by the predictions or by their certainty. A board keeps its cells in place.

import { className, count, element, number, swatch } from "./formatting.js";
import { calm, classColours, colour, onScheme, ramp } from "./theme.js";

const CELL = 10; // size of a cell of a board
const RADIUS = 4; // of a node that is not a cell
const LINK = 16; // length that an edge aims at
const WAIT = 0.2; // seconds of an animation; none with reduced motion

export class Drawing {
  constructor(page) {
    Object.assign(this, page); // box, tools, legend, facts
    this.by = "prediction";
    new ResizeObserver(() => this.resize()).observe(this.box);
    onScheme(() => this.recolour());
  }

  /** Draw a graph; with no drawing in its facts, say why. */
  begin(graph, limits) {
    this.graph = graph;
    this.frame = null;
    this.plot?._destructor();
    this.plot = null;
    this.box.replaceChildren();
    this.facts.textContent = "";
    this.legend.replaceChildren();
    this.tools.hidden = !graph.drawing;
    this.box.classList.toggle("none", !graph.drawing);
    if (!graph.drawing) {
      const why = `No drawing: graphs of up to ${count(limits.nodes)} nodes and ${count(limits.edges)} edges are drawn if the model predicts nodes.`;
      this.box.append(element("p", { class: "empty" }, why));
      this.box.setAttribute("aria-label", why);
      return;
    }
    this.build(graph.drawing);
    this.box.setAttribute("aria-label", `Drawing of the graph with ${count(graph.nodes)} nodes. The table of predictions has its counts.`);
    this.recolour();
  }

  build({ edges, side }) {
    const nodes = Array.from({ length: this.graph.nodes }, (_, id) => (side ? cell(id, side) : { id }));
    const links = side ? [] : Array.from({ length: edges.length / 2 }, (_, i) => ({ source: edges[2 * i], target: edges[2 * i + 1] }));
    this.side = side;
    this.fitted = false;
    this.plot = new ForceGraph(this.box)
      .width(this.box.clientWidth)
      .height(this.box.clientHeight)
      .backgroundColor("rgba(0,0,0,0)")
      .nodeLabel(null)
      .enableNodeDrag(false)
      .autoPauseRedraw(true)
      .nodeRelSize(RADIUS)
      .linkWidth(0.5)
      .warmupTicks(side ? 0 : calm.matches ? 120 : 20)
      .cooldownTicks(side || calm.matches ? 0 : 120)
      .onNodeHover((node) => this.tell(node))
      .onNodeClick((node) => this.tell(node))
      .onEngineStop(() => this.fitOnce())
      .graphData({ nodes, links });
    if (side) {
      this.plot.nodeCanvasObject((node, ctx) => this.square(node, ctx)).nodePointerAreaPaint(square);
    } else {
      this.plot.d3Force("link").distance(LINK);
      this.plot.d3Force("charge").strength(-25).distanceMax(20 * LINK);
      this.plot.d3Force("pull", (alpha) => nodes.forEach((node) => pull(node, alpha)));
    }
    this.fit(0);
  }

  square(node, ctx) {
    square(node, this.colourOf(node), ctx);
  }

  /** Show the predictions of a frame. */
  show(frame) {
    this.frame = frame;
    this.repaint();
  }

  colourBy(what) {
    this.by = what;
    this.recolour();
  }

  recolour() {
    if (!this.plot) return;
    const classes = this.frame?.counts?.length ?? this.graph.class_names?.length ?? 0;
    [this.colours, this.ramp, this.plain] = [classColours(classes), ramp(), colour("rule")];
    this.plot.linkColor(() => this.plain);
    this.repaint();
    this.explain();
  }

  repaint() {
    if (!this.plot) return;
    if (this.frame?.counts && this.colours.length !== this.frame.counts.length) return this.recolour();
    this.plot.nodeColor((node) => this.colourOf(node));
  }

  colourOf({ id }) {
    const { frame } = this;
    if (!frame) return this.plain;
    if (frame.value) return this.between(frame.value[id], frame.numbers.least, frame.numbers.most);
    if (this.by === "prediction") return this.colours[frame.prediction[id]];
    return this.between(frame.certainty[id], 100 / this.colours.length, 100);
  }

  between(value, low, high) {
    const share = Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
    return this.ramp[Math.round(share * (this.ramp.length - 1))];
  }

  explain() {
    const { legend, graph, colours } = this;
    if (graph.regression || this.by === "certainty") {
      const [low, high] = graph.regression ? ["lowest", "highest"] : ["unsure", "certain"];
      legend.replaceChildren(element("span", {}, low, element("i", { class: "ramp" }), high));
      return;
    }
    const shown = colours.slice(0, 12).map((tone, i) => element("span", {}, swatch(tone), className(graph.class_names, i)));
    legend.replaceChildren(...shown, ...(colours.length > 12 ? [`and ${colours.length - 12} more`] : []));
  }

  tell(node) {
    const { frame, graph } = this;
    if (!node || !frame) return;
    const what = frame.value
      ? number(frame.value[node.id])
      : `${className(graph.class_names, frame.prediction[node.id])}, ${frame.certainty[node.id]} % certain`;
    this.facts.textContent = `Node ${count(node.id)}: ${what}`;
  }

  resize() {
    if (!this.plot || !this.box.clientWidth) return;
    this.plot.width(this.box.clientWidth).height(this.box.clientHeight);
    this.fit(0);
  }

  fitOnce() {
    if (!this.fitted) this.fit();
    this.fitted = true;
  }

  fit(wait = pause()) {
    const side = Math.min(this.box.clientWidth, this.box.clientHeight);
    this.plot?.zoomToFit(wait, Math.max(16, (0.45 * side) / this.graph.nodes)); // a node does not fill the box
  }

  zoom(factor) {
    this.plot?.zoom(this.plot.zoom() * factor, pause());
  }
}

function pause() {
  return calm.matches ? 0 : 1000 * WAIT;
}

/** Parts that are not connected stay near the others. */
function pull(node, alpha) {
  node.vx -= 0.08 * alpha * node.x;
  node.vy -= 0.08 * alpha * node.y;
}

function cell(id, side) {
  return { id, fx: CELL * (id % side), fy: CELL * Math.floor(id / side) };
}

function square({ x, y }, tint, ctx) {
  ctx.fillStyle = tint;
  ctx.fillRect(x - CELL / 2, y - CELL / 2, CELL - 0.6, CELL - 0.6);
}
