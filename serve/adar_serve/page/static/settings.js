// The form: model, graph, budget, solver and exit.

import { count, element } from "./formatting.js";

export class Settings {
  constructor(at) {
    this.at = at; // the elements of the page by id
    this.file = null;
    const { model, sample, file, drop } = this.at;
    model.addEventListener("change", () => this.showModel());
    sample.addEventListener("change", () => this.showSample());
    file.addEventListener("change", () => this.choose(file.files[0] ?? null));
    this.at["forget-file"].addEventListener("click", () => this.forget());
    for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => this.over(event, true));
    for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => this.over(event, false));
    drop.addEventListener("drop", (event) => this.choose(event.dataTransfer.files[0] ?? null));
    for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault()); // a missed drop must not leave the page
  }

  fill(choices) {
    this.choices = choices;
    const { model, budget } = this.at;
    model.replaceChildren(...choices.models.map((one, i) => new Option(`${one.name}, version ${one.version}`, i)));
    this.at["model-field"].hidden = choices.models.length < 2;
    budget.max = choices.limits.steps;
    budget.value = choices.max_steps;
    this.showModel();
  }

  get model() {
    return this.choices.models[this.at.model.value];
  }

  showModel() {
    const { sample, solver, exit } = this.at;
    const { samples, graphs, solvers, exits, exit: own, features, description } = this.model;
    const groups = [element("optgroup", { label: "Made by the server" }, ...samples.map((one) => new Option(one.name, `sample ${one.name}`)))];
    if (graphs.length) groups.push(element("optgroup", { label: "Kept on the server" }, ...graphs.map((name) => new Option(name, `graph ${name}`))));
    sample.replaceChildren(...groups);
    solver.replaceChildren(...solvers.map((name) => new Option(name, name)));
    exit.replaceChildren(...exits.map((name) => new Option(name === own ? `${name} (of the bundle)` : name, name)));
    exit.value = own;
    const content = features === null ? "any features, and class descriptions or known labels" : `${count(features)} features a node`;
    this.at["file-help"].textContent = `.npz with ${content}, up to ${count(this.choices.limits.body_mib)} MiB`;
    this.at.about.textContent = description ?? "Run a bundle on a graph, one step at a time.";
    this.showSample();
  }

  showSample() {
    const [kind, name] = this.at.sample.value.split(" ");
    const found = kind === "sample" ? this.model.samples.find((one) => one.name === name) : null;
    this.at["sample-settings"].hidden = !found;
    this.at["sample-about"].textContent = found ? found.about : "a graph that was sent with PUT /graphs";
    if (!found) return;
    const sizes = found.nodes.map((size) => new Option(count(size), size));
    this.at.nodes.replaceChildren(...sizes);
    this.at.nodes.value = found.nodes.find((size) => size >= 1000) ?? found.nodes.at(-1);
  }

  /** A file replaces the sample. */
  showFile() {
    this.at.chosen.hidden = this.file === null;
    this.at.sample.disabled = this.at.nodes.disabled = this.at.seed.disabled = this.file !== null;
  }

  over(event, inside) {
    event.preventDefault();
    this.at.drop.classList.toggle("over", inside);
  }

  choose(file) {
    if (!file) return;
    this.file = file;
    this.at["chosen-name"].textContent = `${file.name} (${count(Math.ceil(file.size / 1024))} KiB) `;
    this.showFile();
  }

  forget() {
    this.file = null;
    this.at.file.value = "";
    this.showFile();
    this.at.file.focus();
  }

  /** The parameters of a run. A chosen file replaces the sample. */
  get parameters() {
    const { budget, solver, exit, nodes, seed, sample } = this.at;
    const common = { version: this.model.version, max_steps: budget.value, solver: solver.value, exit: exit.value };
    if (this.file) return common;
    const [kind, name] = sample.value.split(" ");
    return kind === "graph" ? { ...common, graph: name } : { ...common, sample: name, nodes: nodes.value, seed: seed.value };
  }
}
