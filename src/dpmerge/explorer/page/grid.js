// The grid of weights over two or three models: the only points whose guarantees are known without asking.

export class Grid {
  /** @param {SimplexAnswer} answer */
  constructor(answer) {
    this.answer = answer;
    this.cells = Math.round(1 / answer.step);
    this.places = new Map(answer.points.map((point, index) => [String(this.parts(point)), index]));
  }

  /** @param {number[]} point */
  parts(point) {
    return point.map((weight) => Math.round(weight * this.cells));
  }

  /** @param {number[]} parts */
  at(parts) {
    return this.answer.points[this.places.get(String(parts)) ?? 0];
  }

  /** The point of the grid that is next to these weights. @param {number[]} point */
  nearest(point) {
    const parts = point.map((weight) => Math.max(0, weight) * this.cells);
    const scale = this.cells / sum(parts);
    const whole = parts.map((part) => Math.floor(part * scale + 1e-9));
    const order = parts.map((part, index) => [part * scale - whole[index], index]).sort((a, b) => b[0] - a[0]);
    const left = this.cells - sum(whole);
    for (const [, index] of order.slice(0, left)) whole[index] += 1;
    return this.at(whole);
  }

  /** The next point where an arrow key leads, or null for another key. @param {number[]} point @param {string} key */
  step(point, key) {
    const parts = this.parts(this.nearest(point));
    const all = this.cells;
    /** @type {Record<string, [from: number, to: number, most: number][]>} */
    const moves = parts.length === 2
      ? { ArrowRight: [[0, 1, 1]], ArrowUp: [[0, 1, 1]], ArrowLeft: [[1, 0, 1]], ArrowDown: [[1, 0, 1]], Home: [[1, 0, all]], End: [[0, 1, all]] }
      : {
        ArrowRight: [[1, 2, 1]],
        ArrowLeft: [[2, 1, 1]],
        ArrowUp: [[parts[1] >= parts[2] ? 1 : 2, 0, 1]],
        ArrowDown: [[0, parts[1] <= parts[2] ? 1 : 2, 1]],
        Home: [[1, 0, all], [2, 0, all]],
      };
    if (!Object.hasOwn(moves, key)) return null;
    for (const [from, to, most] of moves[key]) {
      const moved = Math.min(most, parts[from]);
      parts[from] -= moved;
      parts[to] += moved;
    }
    return this.at(parts);
  }

  /** How far the server is: every point gets a quick bound first, and then a better one. */
  progress() {
    const { done, total, rules } = this.answer;
    if (done >= total) return "";
    const standings = Object.values(rules).flatMap((rule) => rule.standings);
    const missing = standings.filter((standing) => standing === "pending").length;
    if (missing > 0) return `${standings.length - missing} of ${standings.length} guarantees are known; the others follow`;
    return `Every guarantee holds; a smaller ε was looked for in ${done - standings.length} of ${total - standings.length}, the others follow`;
  }

  /** What is known of a point; null off the grid, or where it is not known yet.
   * @param {number[]} point @param {GridRule} rule @returns {Known | null} */
  known(point, rule) {
    const index = this.places.get(String(this.parts(point)));
    if (index === undefined || this.answer.points[index].some((weight, place) => weight !== point[place])) return null;
    const { epsilons, standings } = this.answer.rules[rule];
    return standings[index] === "pending" ? null : { epsilon: epsilons[index], standing: standings[index] };
  }
}

/** @param {number[]} values */
export const sum = (values) => values.reduce((a, b) => a + b, 0);
