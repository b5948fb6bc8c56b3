// Charts over time, by uPlot.

import { colour } from "./dom.js";

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

  /** Show columns: the times in seconds, then one for each series. */
  show(columns) {
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
    const times = (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB"));
    return {
      ...this.#size(),
      title: this.title,
      cursor: { y: false },
      legend: { live: true },
      // A line of two seconds would say nothing: a minute at least is shown.
      scales: { x: { time: true, range: (_, first, last) => [Math.min(first, last - LEAST), last] }, y: { range } },
      axes: [
        { ...axis, values: times, space: 90 },
        { ...axis, size: 52, values },
      ],
      series: [
        { value: (_, at) => (at === null ? "" : new Date(at * 1000).toLocaleTimeString("en-GB")) },
        ...this.series.map((one) => ({
          label: one.label,
          stroke: colour(one.colour),
          fill: one.fill && colour(one.fill),
          width: 2,
          paths,
          points: { show: false },
          value: one.value,
        })),
      ],
    };
  }
}

/** Return paths that draw bars. */
export function bars() {
  return window.uPlot.paths.bars({ size: [0.8, 24] });
}
