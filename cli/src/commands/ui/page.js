"use strict";
// The token is in the fragment, which no browser sends to a server. It is kept for a reload, and taken out of sight.
const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
if (location.hash) { sessionStorage.setItem("token", token); history.replaceState(null, "", location.pathname); }

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const CAUSES = {
  origin: "the origin", origin_errors: "errors of the origin", throttled: "throttling by the origin",
  limit: "own limits", peer: "other nodes", disk: "the cache's disk", kernel: "a free thread", cpu: "CPU",
};
const TIERS = { store: "cache", window: "memory", peer: "other nodes", origin: "origin" };
const BAD = ["old_listing", "no_answer", "cache_degraded", "origin_fails"];
const QUIET = ["nothing_read", "bound_elsewhere", "first_pass"];

/** Makes an element. Attributes with a false value are left out. */
function h(tag, attributes, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== false && value !== "") element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const SVG_TAGS = new Set(["svg", "rect", "line", "text"]);

/** Has `parent` show one child for each item. A child is made again only if its item has changed, so focus stays. */
function keyed(parent, items, key, make) {
  const before = parent.shown || new Map();
  const shown = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const name = key(item), text = JSON.stringify(item), old = before.get(name);
    let child = old && old.text === text ? old.child : null;
    if (!child) {
      child = make(item);
      if (old) { if (at === old.child) at = child; old.child.replaceWith(child); }
    }
    if (child === at) at = at.nextSibling; else parent.insertBefore(child, at);
    shown.set(name, { text, child });
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
  parent.shown = shown;
}

const percent = (ratio) => ratio === null || ratio === undefined ? "–" : `${(100 * ratio).toFixed(1)} %`;
const seconds = (s) => s < 10 ? `${s.toFixed(1)} s` : s < 600 ? `${s.toFixed(0)} s` : `${(s / 60).toFixed(0)} min`;
const short = (s) => s < 1 ? `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(1)} s`;
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1024; at++; }
  return `${at === 0 ? n : n.toFixed(1)} ${units[at]}`;
}
/** Begins with a capital letter, and breaks no line before a percent sign. */
const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/ %/g, "\u00a0%");
const clock = (time) => time.toLocaleTimeString([], { hour12: false });

// --- This machine

function passes(mount) {
  const shown = mount.passes.slice(-12);
  if (!shown.length) return h("p", { class: "empty" }, "No pass has begun.");
  const width = 300, height = 78, step = width / Math.max(shown.length, 6);
  const svg = h("svg", { viewBox: `0 -2 ${width} 98`, role: "img", preserveAspectRatio: "xMinYMid meet" });
  const words = [];
  shown.forEach((pass, at) => {
    const x = at * step, hit = pass.hit_ratio || 0, wide = Math.min(step - 6, 34);
    svg.append(
      h("rect", { class: "room", x, y: 0, width: wide, height, rx: 3 }),
      h("rect", { class: pass.complete ? "bar" : "bar running", x, y: height * (1 - hit), width: wide, height: height * hit, rx: 3 }),
      h("text", { x: x + wide / 2, y: 92, "text-anchor": "middle" }, String(pass.number)),
    );
    const y = height * (1 - pass.promised_ratio);
    svg.append(h("line", { class: "promise", x1: x - 2, x2: x + wide + 2, y1: y, y2: y }));
    words.push(`pass ${pass.number}: ${percent(pass.hit_ratio)}, promised ${percent(pass.promised_ratio)}`);
  });
  svg.setAttribute("aria-label", `Hits by pass. ${words.join("; ")}`);
  return svg;
}

function stalls(pass) {
  const waits = Object.entries(pass ? pass.stalls : {}).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  if (!pass || !waits.length) return [h("p", { class: "empty" }, pass ? "Readers did not wait." : "Nothing was read yet.")];
  const bar = h("div", { class: "stall", "aria-hidden": "true" });
  const legend = h("ul", { class: "legend" });
  for (const [cause, s] of waits) {
    const part = h("i"), mark = h("i");
    part.style.width = `${100 * s / Math.max(pass.seconds, 0.001)}%`;
    part.style.background = mark.style.background = `var(--${cause})`;
    bar.append(part);
    legend.append(h("li", {}, mark, CAUSES[cause] || cause, h("b", {}, seconds(s))));
  }
  return [bar, legend];
}

function figures(mount) {
  const list = h("dl", { class: "now" });
  const put = (name, value) => list.append(h("dt", {}, name), h("dd", {}, value));
  const from = Object.keys(TIERS).filter((tier) => mount.bytes_per_second[tier] > 0);
  put("hits", percent(mount.hit_ratio));
  for (const tier of from) put(`from ${TIERS[tier]}`, `${(mount.bytes_per_second[tier] / 1e6).toFixed(1)} MB/s`);
  if (!from.length) put("read", "nothing");
  for (const tier of ["store", "origin"]) {
    if (tier in mount.p99_seconds) {
      const p99 = mount.p99_seconds[tier];
      put(`99 % from ${TIERS[tier]}`, p99 === null ? "over 60 s" : `within ${short(p99)}`);
    }
  }
  if (mount.reads_waiting) put("waiting", `${mount.reads_waiting}, ${seconds(mount.oldest_wait_seconds)}`);
  if (mount.origin_retries) put("retries", String(mount.origin_retries));
  if (mount.warming !== null) put("warm-up", percent(mount.warming));
  if (mount.cache) put("cached", `${bytes(mount.cache.used_bytes)} of ${bytes(mount.dataset_bytes)}`);
  return list;
}

/** A time of today as on a clock, and an earlier one with its day. */
function when(unix) {
  const time = new Date(1000 * unix), today = new Date().toDateString() === time.toDateString();
  return today ? clock(time) : `${time.toLocaleDateString([], { day: "numeric", month: "short" })}, ${clock(time)}`;
}

/** The pass whose waits are shown: the running one, unless it has hardly begun. */
function decisive(mount) {
  const all = mount.passes, last = all[all.length - 1];
  if (!last || last.complete || all.length < 2) return last;
  const asked = Object.values(last.bytes).reduce((sum, part) => sum + part, 0);
  return asked >= last.dataset_bytes / 8 || last.stall_seconds >= 5 ? last : all[all.length - 2];
}

function card(mount) {
  const reason = mount.verdict ? mount.verdict.reason : "";
  const mood = mount.error || BAD.includes(reason) ? "bad" : QUIET.includes(reason) ? "quiet" : "warn";
  const top = h("div", { class: "top" }, h("h2", {}, mount.dir), h("span", { class: "of" }, mount.origin));
  const element = h("article", { class: `card ${mood}` }, top);
  if (mount.error) { element.append(h("p", { class: "why" }, `${upper(mount.error)}.`)); return element; }
  const { why, since_unix_seconds: since, todo } = mount.verdict;
  element.append(
    h("p", { class: "why" }, `${upper(why)}${since === null ? "" : `, since ${when(since)}`}.`),
    h("p", { class: "todo" }, `${upper(todo)}.`));
  const pass = decisive(mount);
  const panel = (title, ...content) => h("div", { class: "panel" }, h("h3", {}, title), ...content);
  element.append(h("div", { class: "panels" },
    panel("Hits by pass, and the promise", passes(mount)),
    panel(pass ? `Waited in pass ${pass.number}: ${seconds(pass.stall_seconds)} of ${seconds(pass.seconds)}` : "Waited", ...stalls(pass)),
    panel("Last 10 seconds", figures(mount))));
  return element;
}

function drawMachine() {
  const all = state.machine || [];
  keyed($("machine"), all.filter((mount) => matches(mount.dir, mount.origin, mount.sentence)), (mount) => mount.dir, card);
  if (state.machine && !all.length) {
    $("machine").shown = null;
    $("machine").replaceChildren(h("p", { class: "none" }, "No dataset is mounted. Mount one with ", h("code", {}, "larder mount SRC DIR"), "."));
  }
}

// --- The cluster

let selected = null;

function row(kind, item) {
  const mood = kind === "job" ? (item.waits ? "waits" : "") : item.ready ? "ready" : "waits";
  const word = kind === "job" ? item.phase : item.ready ? "Ready" : item.percent !== null ? `${item.reason} ${item.percent} %` : item.reason;
  const sentence = item.sentence.startsWith(`${item.name} `) ? item.sentence.slice(item.name.length + 1) : item.sentence;
  return h("li", { class: mood }, h("div", {}, item.name), h("span", { class: "state" }, word), h("span", {}, upper(sentence)));
}

function queue(item) {
  const element = h("article", { class: "card" }, h("h3", {}, item.name),
    h("p", {}, `${item.waiting} waiting, ${item.running} running${item.stopped ? ", stopped" : ""}`));
  for (const { text, used, most } of item.quota) {
    element.append(h("label", {}, text, h("meter", { min: 0, max: Math.max(most, 1), value: used })));
  }
  return element;
}

function square(node) {
  const share = node.capacity ? node.promised / node.capacity : 0;
  const bad = !node.ready || node.fault;
  return h("button", {
    type: "button", "data-node": node.name, tabindex: node.name === selected ? 0 : -1, title: node.name,
    class: bad ? "bad" : `n${Math.min(4, Math.round(share * 4))}`,
    "aria-pressed": String(node.name === selected),
    "aria-label": `${node.name}, ${bad ? "in trouble" : `${percent(share)} promised`}`,
  });
}

function showNode() {
  const node = ((state.cluster && state.cluster.nodes) || []).find((node) => node.name === selected);
  if (!node) return;
  const mounted = `${node.datasets} datasets cached, ${node.mounts} mounts`;
  $("node").replaceChildren(h("b", {}, node.name), `: ${bytes(node.promised)} of ${bytes(node.capacity)} promised, ${bytes(node.free)} free, ${mounted}. ${node.fault ? `Devices: ${node.fault}. ` : ""}${node.ready ? "" : `${upper(node.why)}.`}`);
}

function select(button, focus) {
  if (!button) return;
  const before = $("nodes").querySelector("[aria-pressed=true]");
  if (before) { before.setAttribute("aria-pressed", "false"); before.tabIndex = -1; }
  selected = button.dataset.node;
  button.setAttribute("aria-pressed", "true");
  button.tabIndex = 0;
  if (focus) button.focus();
  showNode();
}

function drawCluster() {
  const all = state.cluster;
  if (!all) return;
  const waiting = all.jobs.filter((job) => job.waits), out = all.nodes.filter((node) => node.fault);
  const ready = all.datasets.filter((dataset) => dataset.ready), lame = all.nodes.filter((node) => !node.ready);
  const facts = [
    { name: "nodes", value: `${all.nodes.length - lame.length} of ${all.nodes.length}`, bad: lame.length > 0 },
    { name: "Datasets ready", value: `${ready.length} of ${all.datasets.length}` },
    { name: "jobs that have started", value: String(all.jobs.length - waiting.length) },
    { name: "jobs that wait", value: String(waiting.length) },
    { name: "nodes with faulty devices", value: String(out.length), bad: out.length > 0 },
  ];
  keyed($("summary"), facts, (fact) => fact.name, (fact) => h("div", { class: fact.bad && "bad" }, h("dt", {}, fact.name), h("dd", {}, fact.value)));
  $("devices").classList.toggle("has", out.length > 0);
  keyed($("devices").querySelector("ul"), out, (node) => node.name, (node) => h("li", {}, h("b", {}, node.name), ` ${node.fault}`));
  const by = (first) => (a, b) => first(b) - first(a) || a.name.localeCompare(b.name);
  const named = (item) => item.name;
  keyed($("queues"), all.queues.filter((item) => matches(item.name)), named, queue);
  const jobs = all.jobs.filter((job) => matches(job.name, job.queue, job.sentence)).sort(by((job) => job.waits ? 1 : 0));
  keyed($("jobs"), jobs, named, (job) => row("job", job));
  const datasets = all.datasets.filter((item) => matches(item.name, item.sentence)).sort(by((item) => item.ready ? 0 : 1));
  keyed($("datasets"), datasets, named, (item) => row("dataset", item));
  const nodes = all.nodes.filter((node) => matches(node.name, node.why, node.fault || ""));
  keyed($("nodes"), nodes, named, square);
  if (!$("nodes").querySelector("[tabindex='0']") && $("nodes").firstChild) $("nodes").firstChild.tabIndex = 0;
  showNode();
  keyed($("notes"), all.notes.map((note) => ({ note })), (item) => item.note, (item) => h("li", {}, item.note));
}

// --- The state

const state = { machine: null, cluster: null, versions: [0, 0] };
let answered = 0, view = "machine";

const matches = (...texts) => {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = texts.join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
};
function draw() { if (view === "machine") drawMachine(); else drawCluster(); }

function say(trouble) {
  $("trouble").hidden = !trouble;
  if ($("trouble").textContent !== trouble) $("trouble").textContent = trouble;
}

async function ask() {
  try {
    const answer = await fetch(`state?${state.versions.join(".")}`, { headers: { "x-larder-token": token }, signal: AbortSignal.timeout(2000) });
    if (!answer.ok) throw new Error(answer.status === 403 ? await answer.text() : `The answer is ${answer.status}.`);
    const news = await answer.json();
    state.versions = news.versions;
    if (news.machine) state.machine = news.machine;
    // While a cluster cannot be read, what was read last stays.
    const failed = news.cluster && news.cluster.error;
    if (news.cluster) { state.failed = failed; if (!failed) state.cluster = news.cluster; }
    $("to-cluster").hidden = !news.has_cluster;
    answered = Date.now();
    $("when").textContent = clock(new Date(answered));
    $("live").classList.remove("old");
    say(state.failed ? `The cluster cannot be read, and its figures are old: ${state.failed}` : "");
    if (news.machine || news.cluster) draw();
  } catch (error) {
    $("live").classList.add("old");
    const refused = String(error.message || "").includes("token");
    $("when").textContent = answered ? `old: ${clock(new Date(answered))}` : "not connected";
    say(refused ? error.message : `Not connected to \`larder ui\`: ${answered ? "the figures are old" : "is the command running"}${answered ? "." : "?"}`);
  }
  setTimeout(ask, 1000);
}

function show(which) {
  if (which === "cluster" && $("to-cluster").hidden) return;
  view = which;
  for (const name of ["machine", "cluster"]) {
    $(name).hidden = name !== which;
    $(`to-${name}`).setAttribute("aria-pressed", String(name === which));
  }
  draw();
}

function dark(is) { document.documentElement.classList.toggle("dark", is); }
const wish = matchMedia("(prefers-color-scheme: dark)");
dark(localStorage.getItem("dark") ? localStorage.getItem("dark") === "yes" : wish.matches);
wish.addEventListener("change", () => { if (!localStorage.getItem("dark")) dark(wish.matches); });
function turn() {
  const is = !document.documentElement.classList.contains("dark");
  localStorage.setItem("dark", is ? "yes" : "no");
  dark(is);
}

$("to-machine").addEventListener("click", () => show("machine"));
$("to-cluster").addEventListener("click", () => show("cluster"));
$("theme").addEventListener("click", turn);
$("filter").addEventListener("input", draw);
$("nodes").addEventListener("click", (event) => select(event.target.closest("button"), false));
$("nodes").addEventListener("keydown", (event) => {
  const all = [...$("nodes").children], at = all.indexOf(document.activeElement);
  if (at < 0) return;
  const across = Math.max(1, all.filter((button) => button.offsetTop === all[0].offsetTop).length);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  select(all[to], true);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.tagName === "INPUT";
  if (event.key === "Escape" && typing) { $("filter").value = ""; $("filter").blur(); draw(); }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "1") show("machine");
  if (event.key === "2") show("cluster");
  if (event.key === "t") turn();
  if (event.key === "/") { event.preventDefault(); $("filter").focus(); }
});
ask();
