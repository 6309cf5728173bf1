// Colours of the style sheet for what is drawn on a canvas, in the light and in the dark scheme.

const TONES = 5; // tones of the style sheet; further classes get colours of the same lightness
const LEVELS = 20; // colours between the two ends of the ramp
const dark = matchMedia("(prefers-color-scheme: dark)");

export const calm = matchMedia("(prefers-reduced-motion: reduce)");

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function classColours(count) {
  const lightness = dark.matches ? 0.74 : 0.58;
  return Array.from({ length: count }, (_, i) =>
    i < TONES ? colour(`tone-${i}`) : `oklch(${lightness} 0.13 ${(i * 137.5) % 360})`,
  );
}

/** Colours from the lowest to the highest certainty. */
export function ramp() {
  const [low, high] = [numbers(colour("far")), numbers(colour("near"))];
  return Array.from({ length: LEVELS + 1 }, (_, i) =>
    `rgb(${low.map((value, k) => Math.round(value + ((high[k] - value) * i) / LEVELS)).join(" ")})`,
  );
}

/** Call a function when the scheme changes. */
export function onScheme(listener) {
  dark.addEventListener("change", listener);
}

function numbers(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
