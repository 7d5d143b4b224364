"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const nameTheme = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();

  const step = JSON.parse(document.getElementById("step").textContent);
  const plot = document.getElementById("plot");
  const canvas = document.getElementById("canvas");
  const said = document.getElementById("said");
  const shown = document.getElementById("window");
  const SVG = "http://www.w3.org/2000/svg";
  const GUTTER = 66, AXIS = 22;
  let chain = step.chains[0];
  let from = 0, to = step.end;
  let chosen = null;
  plot.hidden = false;

  // A number of microseconds as people read it.
  const time = (us) => {
    if (us === 0) return "0 s";
    const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : [us, "us"];
    return `${Number(value.toPrecision(4))} ${unit}`;
  };
  const rowHeight = () => (chain.stages.length > 24 ? 18 : chain.stages.length > 10 ? 26 : 36);
  const width = () => Math.max(200, canvas.clientWidth - 2);
  const scale = () => (width() - GUTTER) / (to - from);
  const x = (us) => GUTTER + (us - from) * scale();

  // The first work of a stage that ends after `us`.
  const firstAfter = (stage, us) => {
    let low = 0, high = stage.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (stage.ends[middle] > us) high = middle; else low = middle + 1;
    }
    return low;
  };

  const element = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const box = (left, right, top, height) => {
    const a = Math.max(left, GUTTER), b = Math.min(right, width());
    return b > a ? `M${a.toFixed(2)} ${top}H${b.toFixed(2)}V${top + height}H${a.toFixed(2)}Z` : "";
  };

  const draw = () => {
    const tall = rowHeight(), high = chain.stages.length * tall + AXIS;
    const svg = element("svg", { height: high, viewBox: `0 0 ${width()} ${high}`, "aria-hidden": "true" });
    svg.append(hatch());
    const paths = {};
    const add = (kind, path) => { paths[kind] = (paths[kind] || "") + path; };
    const labels = [];
    let drawn = 0;
    chain.stages.forEach((stage, row) => {
      const top = row * tall + 2, height = tall - 4;
      add("idle", box(x(0), x(step.pipeline_end), top, height));
      for (let i = firstAfter(stage, from); i < stage.starts.length && stage.starts[i] < to; i++) {
        const left = x(stage.starts[i]), right = x(stage.ends[i]);
        add(stage.kinds[i], box(left, right, top, height));
        drawn++;
        if (right - left > 20 && labels.length < 2000) {
          labels.push([(Math.max(left, GUTTER) + Math.min(right, width())) / 2, top + height / 2 + 4, stage.micro_batches[i]]);
        }
      }
      step.after.forEach((part, i) => add(`A${i}`, box(x(part.start), x(part.end), top, height)));
    });
    const sent = chain.transfers;
    for (let i = 0; i < sent.starts.length; i++) {
      if (sent.ends[i] < from || sent.starts[i] > to) continue;
      const row = sent.sources[i] - chain.stages[0].stage;
      // A message that blocks its sender fills the row; one beside the computation takes its foot.
      const [top, height] = chain.overlap ? [tall * 0.72, tall * 0.2] : [2, tall - 4];
      add("S", box(x(sent.starts[i]), x(sent.ends[i]), row * tall + top, height));
    }
    // Outlines would hide works of a few pixels.
    svg.classList.toggle("fine", drawn * 4 > (width() - GUTTER) * chain.stages.length);
    if (paths.idle) svg.append(element("path", { d: paths.idle, fill: "url(#hatch)" }));
    delete paths.idle;
    for (const kind in paths) svg.append(element("path", { d: paths[kind], class: `t${kind}` }));
    for (const [at, top, text] of labels) svg.append(element("text", { x: at, y: top, "text-anchor": "middle" }, text));
    chain.stages.forEach((stage, row) => {
      svg.append(element("text", { x: 6, y: row * tall + tall / 2 + 4, class: "label" }, `stage ${stage.stage}`));
      if (stage.omitted) svg.append(leftOut(stage, row * tall, tall));
    });
    axis(svg, high);
    if (chosen) {
      const stage = chain.stages[chosen.row];
      const path = box(x(stage.starts[chosen.i]), x(stage.ends[chosen.i]), chosen.row * tall + 1, tall - 2);
      svg.append(element("path", { d: path, class: "chosen" }));
    }
    canvas.replaceChildren(svg);
    shown.textContent = `${time(from)} to ${time(to)} of ${time(step.end)}`;
  };

  const hatch = () => {
    const defs = element("defs", {});
    const pattern = element("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(element("rect", { width: 6, height: 6, style: "fill:var(--idle)" }));
    pattern.append(element("rect", { width: 2, height: 6, style: "fill:var(--hatch)" }));
    defs.append(pattern);
    return defs;
  };

  // Works that the page does not hold lie between the first half of a stage's works and the second.
  const leftOut = (stage, top, tall) => {
    const half = stage.starts.length / 2;
    const middle = (x(stage.ends[half - 1]) + x(stage.starts[half])) / 2;
    return element("text", { x: Math.min(Math.max(middle, GUTTER), width()), y: top + tall / 2 + 4, "text-anchor": "middle", class: "label" }, `... ${stage.omitted} more works`);
  };

  const axis = (svg, high) => {
    const rough = (to - from) / Math.max(2, width() / 130);
    const power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    for (let at = Math.ceil(from / size) * size; at <= to; at += size) {
      svg.append(element("line", { x1: x(at), x2: x(at), y1: high - AXIS, y2: high - AXIS + 5, class: "line" }));
      svg.append(element("text", { x: Math.min(x(at), width() - 26), y: high - 5, "text-anchor": "middle", class: "axis" }, time(at)));
    }
  };

  const work = (row, i) => {
    const stage = chain.stages[row];
    const chunk = chain.stages.some((each) => each.chunks.some((c) => c > 0)) ? `, chunk ${stage.chunks[i]}` : "";
    return `${step.kinds[stage.kinds[i]]} of micro-batch ${stage.micro_batches[i]}${chunk}`;
  };
  const tellWork = (row, i) => {
    const stage = chain.stages[row];
    const [start, end] = [stage.starts[i], stage.ends[i]];
    return `Stage ${stage.stage}, ${work(row, i)}: ${time(start)} to ${time(end)} (${time(end - start)})`;
  };
  const tell = (row, us) => {
    const stage = chain.stages[row];
    const i = firstAfter(stage, us);
    if (i < stage.starts.length && stage.starts[i] <= us) return tellWork(row, i);
    for (const part of step.after) {
      if (part.start <= us && us < part.end) return `Stage ${stage.stage}, ${part.name}: ${time(part.start)} to ${time(part.end)} (${time(part.end - part.start)})`;
    }
    const sent = chain.transfers;
    if (!chain.overlap) {
      for (let j = 0; j < sent.starts.length; j++) {
        if (sent.sources[j] === stage.stage && sent.starts[j] <= us && us < sent.ends[j]) {
          return `Stage ${stage.stage} sends ${step.kinds[sent.kinds[j]]} ${sent.micro_batches[j]} to stage ${sent.destinations[j]}: ${time(sent.ends[j] - sent.starts[j])}`;
        }
      }
    }
    if (stage.omitted && i === stage.starts.length / 2) return `Stage ${stage.stage}: ${stage.omitted} works that this page leaves out`;
    return i < stage.starts.length
      ? `Stage ${stage.stage} is idle: it waits for the ${work(row, i)}`
      : `Stage ${stage.stage} is done and waits for the others`;
  };

  let pending = false;
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  };
  const look = (start, length) => {
    const span = Math.min(step.end, Math.max(length, Math.max(20, step.end / 1e5)));
    from = Math.min(Math.max(0, start), step.end - span);
    to = from + span;
    redraw();
  };
  const zoom = (factor, around = (from + to) / 2) => {
    const span = (to - from) * factor;
    look(around - ((around - from) / (to - from)) * span, span);
  };
  const choose = (row, i) => {
    const stage = chain.stages[row];
    chosen = { row, i };
    const middle = (stage.starts[i] + stage.ends[i]) / 2;
    if (middle < from || middle > to) look(middle - (to - from) / 2, to - from);
    said.textContent = tellWork(row, i);
    redraw();
  };
  const actions = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => look(from - (to - from) / 2, to - from),
    right: () => look(from + (to - from) / 2, to - from),
    all: () => look(0, step.end),
  };
  plot.addEventListener("click", (event) => {
    const action = event.target.dataset && event.target.dataset.do;
    if (action) actions[action]();
  });
  const select = document.getElementById("chain");
  if (select) select.addEventListener("change", () => { chain = step.chains[select.value]; chosen = null; redraw(); });

  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top) / rowHeight());
    const us = from + (event.clientX - bounds.left - GUTTER) / scale();
    return { row, us, inside: row >= 0 && row < chain.stages.length && us >= 0 && event.clientX - bounds.left > GUTTER };
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.clientX - drag.x) > 3) return look(drag.from - (event.clientX - drag.x) / scale(), to - from);
    const { row, us, inside } = place(event);
    if (inside) { said.textContent = tell(row, us); canvas.title = said.textContent; }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event).us);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const keys = { "+": "in", "=": "in", "-": "out", "0": "all", PageUp: "left", PageDown: "right" };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]) actions[keys[event.key]]();
    else if (event.key.startsWith("Arrow")) {
      const last = chain.stages.length - 1;
      if (!chosen) choose(0, Math.min(firstAfter(chain.stages[0], from), chain.stages[0].starts.length - 1));
      else if (event.key === "ArrowLeft") choose(chosen.row, Math.max(0, chosen.i - 1));
      else if (event.key === "ArrowRight") choose(chosen.row, Math.min(chain.stages[chosen.row].starts.length - 1, chosen.i + 1));
      else {
        const row = Math.min(last, Math.max(0, chosen.row + (event.key === "ArrowUp" ? -1 : 1)));
        const at = chain.stages[chosen.row].starts[chosen.i];
        choose(row, Math.min(firstAfter(chain.stages[row], at), chain.stages[row].starts.length - 1));
      }
    } else return;
    event.preventDefault();
  });
  new ResizeObserver(redraw).observe(canvas);
  draw();
})();
