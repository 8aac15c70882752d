// The blind A/B page: shuffles, counts answers, and reveals the labels at the end.
"use strict";
const { labels, pairs } = JSON.parse(document.getElementById("pairs").textContent);
const page = document.getElementById("page");
const answers = [];

function random(below) {
  return crypto.getRandomValues(new Uint32Array(1))[0] % below;
}

function shuffled(list) {
  const left = [...list], out = [];
  while (left.length) out.push(...left.splice(random(left.length), 1));
  return out;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Each pair in random order; `order` says which label is the left player.
const queue = shuffled(pairs.map((pair, number) => ({ ...pair, number, order: random(2) ? [0, 1] : [1, 0] })));

function show(place) {
  if (place === queue.length) return finish();
  const pair = queue[place], heard = new Set();
  const buttons = [["A is better", 0], ["No difference", null], ["B is better", 1]].map(([text, side]) =>
    element("button", { textContent: text, disabled: true, onclick: () => {
      answers.push({ pair: pair.number, text: pair.text, preferred: side === null ? null : pair.order[side] });
      show(place + 1);
    } }));
  const players = ["A", "B"].map((name, side) => {
    const audio = element("audio", { controls: true, src: pair.sounds[pair.order[side]], onplay: () => {
      for (const other of page.querySelectorAll("audio")) if (other !== audio) other.pause();
      heard.add(side);
      if (heard.size === 2) for (const button of buttons) button.disabled = false;
    } });
    return element("figure", {}, element("figcaption", { textContent: name }), audio);
  });
  page.replaceChildren(
    element("p", { className: "count", textContent: `${place + 1} of ${queue.length}` }),
    element("h2", { textContent: pair.text }),
    element("div", { className: "takes" }, ...players),
    element("p", { className: "answers" }, ...buttons),
    element("p", { className: "hint", textContent: "Play both, then answer. Use headphones." }));
}

// Two-sided exact binomial test of `wins` in `count` against a fair coin.
function binomialP(wins, count) {
  let chance = 0.5 ** count, total = 0, own = 0;
  const all = [];
  for (let k = 0; k <= count; k++) {
    all.push(chance);
    chance *= (count - k) / (k + 1);
  }
  own = all[wins];
  for (const one of all) if (one <= own * (1 + 1e-9)) total += one;
  return Math.min(1, total);
}

// 95 % confidence interval of a share (Wilson).
function interval(wins, count) {
  if (!count) return [0, 1];
  const z = 1.959964, share = wins / count, scale = 1 + z * z / count;
  const middle = (share + z * z / (2 * count)) / scale;
  const half = z * Math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale;
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

function summary() {
  const wins = [0, 1].map(label => answers.filter(answer => answer.preferred === label).length);
  const decided = wins[0] + wins[1];
  return { labels, wins, same: answers.length - decided, p: binomialP(wins[0], decided), interval: interval(wins[0], decided), answers };
}

function finish() {
  const found = summary(), percent = share => `${Math.round(100 * share)} %`;
  const [low, high] = found.interval.map(percent);
  const verdict = found.p < 0.05 ? "more than chance explains" : "chance can explain this";
  const row = (...cells) => element("tr", {}, ...cells.map(cell => element("td", { textContent: cell })));
  page.replaceChildren(
    element("h2", { textContent: "Result" }),
    element("table", { id: "result" }, element("tbody", {},
      row(`${labels[0]} preferred`, found.wins[0]), row(`${labels[1]} preferred`, found.wins[1]), row("no difference", found.same))),
    element("p", { textContent: `Of the answers with a preference, the share for ${labels[0]} is between ${low} and ${high} (95 % confidence). `
      + `Two-sided binomial test against chance: p = ${found.p.toPrecision(2)}: ${verdict}.` }),
    element("table", {}, element("thead", {}, row("text", "A was", "B was", "preferred")), element("tbody", {},
      ...queue.map((pair, place) => row(pair.text, labels[pair.order[0]], labels[pair.order[1]],
        answers[place].preferred === null ? "no difference" : labels[answers[place].preferred])))),
    element("p", { textContent: "The result as JSON, to send to others:" }),
    element("textarea", { id: "json", readOnly: true, rows: 4, value: JSON.stringify(found) }));
}

show(0);
