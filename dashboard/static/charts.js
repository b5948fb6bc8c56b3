// Charts over time, by uPlot.

import { colour, number } from "./dom.js";

const LEAST = 60;

/** A chart that is made once and given new data; it fits its element. */
export class Chart {
  /**
   * @param series each `{label, colour, fill, value}`, the colours by their names in the style sheet.
   */
  constructor(element, title, series, options = {}) {
    this.element = element;
    this.element.classList.add("chart");
    this.title = title;
    this.series = series;
    this.options = options;
    new ResizeObserver(() => this.plot?.setSize(this.#size())).observe(element);
  }

  /**
   * Show columns: the times in seconds, then one for each series.
   * @param beyond the seconds to be shown before the first time and after the last: the width of a bar.
   */
  show(columns, beyond = 0) {
    this.beyond = beyond;
    const theme = colour("--text");
    if (this.plot && this.theme === theme) {
      this.plot.setData(columns);
      return;
    }
    this.plot?.destroy();
    this.theme = theme;
    this.plot = new window.uPlot(this.#options(), columns, this.element);
  }

  #size() {
    return { width: Math.max(200, this.element.clientWidth), height: this.options.height ?? 150 };
  }

  #options() {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const { range, values, paths } = this.options;
    const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
    const times = (_, ticks) => ticks.map(time);
    // Without a pointer on the chart its legend has the last values.
    const value = (words) => (plot, shown, i, at) => {
      const known = at === null || at === undefined ? plot.data[i].at(-1) : shown;
      return known === null || known === undefined ? "–" : words(known);
    };
    return {
      ...this.#size(),
      title: this.title,
      cursor: { y: false },
      legend: { live: true },
      // A line of two seconds would say nothing: a minute at least is shown.
      scales: {
        x: { time: true, range: (_, first, last) => [Math.min(first - this.beyond, last - LEAST), last + this.beyond] },
        y: { range },
      },
      axes: [
        { ...axis, values: times, space: 90, size: 28 },
        { ...axis, size: 52, values },
      ],
      series: [
        { label: "at", value: value(time) },
        ...this.series.map((one) => ({
          label: one.label,
          stroke: colour(one.colour),
          fill: one.fill && colour(one.fill),
          width: 2,
          paths,
          points: { show: false },
          value: value(one.value ?? number),
        })),
      ],
    };
  }
}

/** Return paths that draw bars. */
export function bars() {
  return window.uPlot.paths.bars({ size: [0.8, 24] });
}
