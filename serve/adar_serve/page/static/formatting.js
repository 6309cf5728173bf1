// Numbers and elements as the page shows them.

const whole = new Intl.NumberFormat("en");

export const count = (value) => whole.format(value);
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const number = (value) => (Math.abs(value) >= 1e-3 || value === 0 ? String(+value.toPrecision(4)) : value.toExponential(2));
export const seconds = (value) => (value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(1)} s`);

/** Times of a run from 0 to 1, or from 0 to the budget. */
export const time = (value, end) => (end > 1 ? String(+value.toFixed(1)) : value.toFixed(3));

export function className(names, index) {
  return names?.[index] ?? `class ${index}`;
}

/** An element with attributes and children. Texts stay texts: nothing is read as HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function swatch(colour) {
  const made = element("i", { class: "swatch" });
  made.style.background = colour;
  return made;
}
