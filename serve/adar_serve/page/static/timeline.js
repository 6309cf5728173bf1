// The frames of a run: a slider over their times, and a button that plays them.

import { count, number, time } from "./formatting.js";

const PLAY = 120; // milliseconds a frame

export class Timeline {
  constructor({ slider, play, moment, onFrame }) {
    Object.assign(this, { slider, play, moment, onFrame });
    slider.addEventListener("input", () => this.choose(Number(slider.value)));
    play.addEventListener("click", () => (this.timer ? this.pause() : this.start()));
    this.clear(1);
  }

  clear(end) {
    this.pause();
    this.end = end;
    this.frames = [];
    this.follows = true; // show the newest frame until somebody moves the slider
    this.slider.disabled = this.play.disabled = true;
    this.slider.max = this.slider.value = 0;
    this.moment.textContent = "No run yet";
  }

  add(frame) {
    this.frames.push(frame);
    this.slider.max = this.frames.length - 1;
    this.slider.disabled = this.play.disabled = this.frames.length < 2;
    if (this.follows) this.show(this.frames.length - 1);
  }

  /** Put the frame of the answer at its time, and show it unless somebody looks at another one. */
  answer(frame) {
    const chosen = this.frames[Number(this.slider.value)];
    this.frames = [...this.frames.filter((one) => one.step !== frame.step), frame].sort((a, b) => a.time - b.time);
    this.slider.max = this.frames.length - 1;
    this.slider.disabled = this.play.disabled = this.frames.length < 2;
    const shown = this.follows ? this.frames.indexOf(frame) : this.frames.indexOf(chosen);
    this.show(shown < 0 ? this.frames.indexOf(frame) : shown);
  }

  choose(index) {
    this.follows = false;
    this.pause();
    this.show(index);
  }

  show(index) {
    const frame = this.frames[index];
    this.slider.value = index;
    const text = `t = ${time(frame.time, this.end)}, step ${count(frame.step)}, alignment ${number(frame.alignment)}`;
    this.slider.setAttribute("aria-valuetext", text);
    this.moment.textContent = text;
    this.onFrame(frame);
  }

  start() {
    this.follows = false;
    let index = Number(this.slider.value);
    if (index >= this.frames.length - 1) index = -1;
    this.play.textContent = "Pause";
    this.timer = setInterval(() => {
      index += 1;
      this.show(index);
      if (index >= this.frames.length - 1) this.pause();
    }, PLAY);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }
}
