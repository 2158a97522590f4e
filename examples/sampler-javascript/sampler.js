// Top-k with a temperature that follows the entropy of each row: certain rows are cooled, uncertain ones are warmed.
// The same sampler as sampler-rust and sampler-python, token for token.

import { log } from "guesthouse:common/log@0.1.0";

/** Temperature at entropy h (nats): `min` where it is 0, halfway to `max` where it is 1, towards `max` above. */
const temperature = ({ min, max }, h) => min + (max - min) * (h / (1 + h));

/** e^x for x <= 0, as (1 + x / 2^20)^(2^20). Sums and products round alike in every language; `Math.exp` does not. */
function exp(x) {
  let y = Math.max(1 + x / (1 << 20), 0);
  for (let i = 0; i < 20; i++) y *= y;
  return y;
}

/** Index of the candidate that the uniform number u picks among the weights. */
function draw(weights, u) {
  const total = weights.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (const [i, w] of weights.entries()) {
    sum += w;
    if (sum > u * total) return i;
  }
  return 0;
}

/** What is thrown becomes an HTTP 400 whose `param` is the text before the colon. */
function wrong(name, expected, x) {
  throw { tag: "invalid-request", val: `${name}: must be ${expected}, got ${JSON.stringify(x)}` };
}

class Sampler {
  static create(request, facts) {
    const { sampler_args, ...fields } = JSON.parse(request);
    const args = { ...fields, ...sampler_args };
    const number = (name, otherwise, low, high) => {
      const x = args[name] ?? otherwise;
      return low <= x && x <= high && typeof x === "number" ? x : wrong(name, `between ${low} and ${high}`, x);
    };
    const sampler = new Sampler();
    // A plain number, which QuickJS's bindings take for a u64: seeds above 2^53 are rounded.
    sampler.seed = fields.seed ?? undefined;
    sampler.k = args.k ?? 20;
    if (!Number.isInteger(sampler.k) || sampler.k < 1 || sampler.k > 1024)
      wrong("k", "a whole number from 1 to 1024", sampler.k);
    sampler.min = number("min", 0.3, 0.01, 100);
    sampler.max = number("max", Math.max(sampler.min, 1.5), sampler.min, 100);
    return sampler;
  }

  /** Once per request: no stages on the device, then the best k candidates of each row come to `step`. */
  plan() {
    const asked = { candidates: this.k, search: false, hidden: false };
    return { stages: [], draw: { tag: "step", val: asked }, seed: this.seed, ext: [] };
  }
}

export const plan = { Sampler };

export const stepping = {
  /** Once per step, with all rows of the request: one token for each. */
  step(sampler, rows, { n, tokens, logits, entropy }) {
    const choices = { parent: [], token: [], flags: [], score: [] };
    for (let row = 0; row < rows.branches.length; row++) {
      const t = temperature(sampler, entropy[row]);
      const best = logits[row * n];
      const weights = [];
      for (let i = row * n; i < (row + 1) * n; i++) weights.push(exp((logits[i] - best) / t));
      const i = draw(weights, rows.uniform[row]);
      log("debug", `entropy ${entropy[row].toFixed(3)}, temperature ${t.toFixed(3)}: candidate ${i} of ${n}`);
      choices.parent.push(row);
      choices.token.push(tokens[row * n + i]);
      choices.flags.push(0);
      choices.score.push(0);
    }
    return choices;
  },

  stepLogits() {
    throw new Error("this sampler asks for candidates");
  },

  select() {
    throw new Error("this sampler does not search");
  },
};
