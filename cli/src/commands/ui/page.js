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
const BAD = ["old_listing", "no_answer", "reads_fail", "cache_degraded", "origin_fails"];
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

/**
 * Has `parent` show one child for each item. A child whose item has changed is updated if it can be, and made again
 * otherwise. So focus stays, and so does the selection of text that has not changed.
 */
function keyed(parent, items, key, make) {
  const before = parent.shown || new Map();
  const shown = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const name = key(item), text = JSON.stringify(item), old = before.get(name);
    let child = old && old.child;
    if (old && old.text !== text && child.update) {
      child.update(item);
    } else if (!old || old.text !== text) {
      child = make(item);
      if (old) {
        const hadFocus = document.activeElement === old.child;
        if (at === old.child) at = child;
        old.child.replaceWith(child);
        if (hadFocus) child.focus();
      }
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

function passes(shown) {
  if (!shown.length) return h("p", { class: "empty" }, "No pass has begun.");
  const width = 300, top = 16, height = 76, step = width / Math.max(shown.length, 6);
  const svg = h("svg", { viewBox: `0 0 ${width} 112`, role: "img", preserveAspectRatio: "xMinYMid meet" });
  const words = [];
  shown.forEach((pass, at) => {
    const x = at * step, hit = pass.hit_ratio || 0, wide = Math.min(step - 6, 34), middle = x + wide / 2;
    const y = top + height * (1 - hit), promise = top + height * (1 - pass.promised_ratio);
    svg.append(
      h("rect", { class: "room", x, y: top, width: wide, height, rx: 3 }),
      h("rect", { class: pass.complete ? "bar" : "bar running", x, y, width: wide, height: height * hit, rx: Math.min(3, height * hit / 2) }),
      h("line", { class: "promise", x1: x - 2, x2: x + wide + 2, y1: promise, y2: promise }),
      // Above its bar, and beside the line of the promise rather than across it.
      h("text", { class: "hit", x: middle, y: (y < promise + 16 ? Math.min(y, promise) : y) - 4, "text-anchor": "middle" }, pass.hit_ratio === null ? "–" : (100 * hit).toFixed(0)),
      h("text", { x: middle, y: 107, "text-anchor": "middle" }, String(pass.number)),
    );
    words.push(`pass ${pass.number}: ${percent(pass.hit_ratio)}, promised ${percent(pass.promised_ratio)}`);
  });
  svg.setAttribute("aria-label", `Hits by pass. ${words.join("; ")}`);
  return svg;
}

function stalls(pass) {
  const waits = Object.entries(pass ? pass.stalls : {}).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  if (!waits.length) return h("p", { class: "empty" }, pass ? "Readers did not wait." : "Nothing was read yet.");
  const bar = h("div", { class: "stall", "aria-hidden": "true" });
  const legend = h("ul", { class: "legend" });
  for (const [cause, s] of waits) {
    const part = h("i"), mark = h("i");
    part.style.width = `${100 * s / Math.max(pass.seconds, 0.001)}%`;
    part.style.background = mark.style.background = `var(--${cause})`;
    bar.append(part);
    legend.append(h("li", {}, mark, CAUSES[cause] || cause, h("b", {}, seconds(s))));
  }
  return h("div", {}, bar, legend);
}

/** The names and values that are not null. */
function figures(all) {
  const shown = all.filter(([, value]) => value !== null);
  return h("dl", { class: "now" }, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function now(mount) {
  const from = Object.keys(TIERS).filter((tier) => mount.bytes_per_second[tier] > 0);
  return figures([
    ["hits", percent(mount.hit_ratio)],
    ...from.map((tier) => [`from ${TIERS[tier]}`, `${(mount.bytes_per_second[tier] / 1e6).toFixed(1)} MB/s`]),
    ["read", from.length ? null : "nothing"],
    ["waiting now", mount.reads_waiting ? String(mount.reads_waiting) : null],
    ["the oldest", mount.reads_waiting ? seconds(mount.oldest_wait_seconds) : null],
    ["warm-up", mount.warming === null ? null : percent(mount.warming)],
  ]);
}

function sinceMount(mount) {
  const p99 = (tier) => !(tier in mount.p99_seconds) ? null : mount.p99_seconds[tier] === null ? "over 60 s" : `within ${short(mount.p99_seconds[tier])}`;
  return figures([
    ["dataset", bytes(mount.dataset_bytes)],
    ["cached", mount.cache ? bytes(mount.cache.used_bytes) : null],
    ["99 % from cache", p99("store")],
    ["99 % from origin", p99("origin")],
    ["origin retries", mount.origin_retries ? String(mount.origin_retries) : null],
  ]);
}

/** A time of today as on a clock, and an earlier one with its day. */
function when(unix) {
  const time = new Date(1000 * unix), today = new Date().toDateString() === time.toDateString();
  return today ? clock(time) : `${time.toLocaleDateString([], { day: "numeric", month: "short" })}, ${clock(time)}`;
}

/** The texts of a card, each with its kind. */
function texts(mount) {
  const head = { kind: "top", dir: mount.dir, origin: mount.origin };
  if (mount.error) return [head, { kind: "why", text: `${upper(mount.error)}.` }];
  const { why, since_unix_seconds: since, todo } = mount.verdict;
  const said = `${upper(why)}${since === null ? "" : `, since ${when(since)}`}.`;
  return [head, { kind: "why", text: said }, { kind: "todo", text: `${upper(todo)}.` }];
}

function panels(mount) {
  if (mount.error) return [];
  const pass = mount.passes[mount.decisive], last = mount.passes[mount.passes.length - 1];
  const title = pass ? `Waited in pass ${pass.number}: ${seconds(pass.stall_seconds)} of ${seconds(pass.seconds)}` : "Waited";
  const promise = last && h("span", {}, h("i"), `promised ${percent(last.promised_ratio)}`);
  return [
    { name: "passes", of: mount.passes, title: ["Hits by pass", promise], draw: () => passes(mount.passes) },
    { name: "stalls", of: [title, pass], title: [title], draw: () => stalls(pass) },
    { name: "now", of: { ...mount, passes: null, sentence: null }, title: ["Last 10 seconds"], draw: () => now(mount) },
    { name: "since", of: [mount.cache, mount.p99_seconds, mount.origin_retries], title: ["Since the mount"], draw: () => sinceMount(mount) },
  ];
}

function card(mount) {
  const head = h("div"), body = h("div", { class: "panels" });
  const element = h("article", {}, head, body);
  element.update = (mount) => {
    const reason = mount.verdict ? mount.verdict.reason : "";
    element.className = `card ${mount.error || BAD.includes(reason) ? "bad" : QUIET.includes(reason) ? "quiet" : "warn"}`;
    keyed(head, texts(mount), (text) => text.kind, ({ kind, text, dir, origin }) => kind === "top"
      ? h("div", { class: kind }, h("h2", {}, dir), h("span", { class: "of" }, origin))
      : h("p", { class: kind }, text));
    keyed(body, panels(mount), (panel) => panel.name, ({ title, draw }) => h("div", { class: "panel" }, h("h3", {}, ...title), draw()));
  };
  element.update(mount);
  return element;
}

function drawMachine() {
  const all = state.machine || [];
  const shown = all.filter((mount) => matches(mount.dir, mount.origin, mount.sentence));
  keyed($("machine"), shown, (mount) => mount.dir, card);
  document.body.classList.toggle("wide", all.length > 1);
  if (state.machine && !shown.length) {
    const none = ["No dataset is mounted. Mount one with ", h("code", {}, "larder mount SRC DIR"), "."];
    $("machine").shown = null;
    $("machine").replaceChildren(h("p", { class: "none" }, ...(all.length ? ["No mount matches the filter."] : none)));
  }
}

// --- The cluster

let selected = null;
/** Of jobs, in the order in which they are shown. */
const STANDINGS = ["waits", "failed", "runs", "suspended", "succeeded"];

function row(name, mood, word, text) {
  return h("li", { class: mood }, h("div", {}, name), h("span", { class: "state" }, word), h("span", {}, upper(text)));
}

/** A sentence without its subject, which is shown beside it. */
const predicate = (item) => item.sentence.startsWith(`${item.name} `) ? item.sentence.slice(item.name.length + 1) : item.sentence;

function jobRow(item) { return row(item.name, item.standing, item.phase, predicate(item)); }
function datasetRow(item) {
  const word = item.ready ? "Ready" : item.percent !== null ? `${item.reason} ${item.percent} %` : item.reason;
  return row(item.name, item.ready ? "ready" : "waits", word, predicate(item));
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
  const text = `: ${bytes(node.promised)} of ${bytes(node.capacity)} promised, ${bytes(node.free)} free, ${mounted}. ${node.fault ? `Devices: ${node.fault}. ` : ""}${node.ready ? "" : `${upper(node.why)}.`}`;
  // Screen readers read it out each time that it is set.
  if ($("node").textContent !== node.name + text) $("node").replaceChildren(h("b", {}, node.name), text);
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

/** Shows a list, and how many of how many items its title stands for. */
function list(id, items, all, make) {
  keyed($(id), items, (item) => item.key || item.name, make);
  const count = $(`${id}-title`).lastElementChild;
  count.textContent = items.length === all.length ? String(all.length) : `${items.length} of ${all.length}`;
}

function drawCluster() {
  const all = state.cluster;
  document.body.classList.toggle("wide", true);
  const isRead = all !== null && state.ages[1] !== null;
  $("reading").hidden = isRead || state.failed;
  for (const part of document.querySelectorAll("#summary, .columns")) part.hidden = !isRead;
  if (!isRead) return;
  const standing = (what) => all.jobs.filter((job) => job.standing === what).length;
  const faulty = all.nodes.filter((node) => node.fault), lame = all.nodes.filter((node) => !node.ready);
  const facts = [
    { name: "nodes ready", value: `${all.nodes.length - lame.length} of ${all.nodes.length}`, bad: lame.length > 0 },
    { name: "nodes with faulty devices", value: String(faulty.length), bad: faulty.length > 0 },
    { name: "Datasets ready", value: `${all.datasets.filter((dataset) => dataset.ready).length} of ${all.datasets.length}` },
    { name: "jobs running", value: String(standing("runs")) },
    { name: "jobs waiting", value: String(standing("waits")) },
  ];
  keyed($("summary"), facts, (fact) => fact.name, (fact) => h("div", { class: fact.bad && "bad" }, h("dt", {}, fact.name), h("dd", {}, fact.value)));
  const trouble = [
    ...faulty.map((node) => ({ key: `${node.name} devices`, name: node.name, word: "Devices", text: node.fault })),
    ...lame.map((node) => ({ key: `${node.name} cache`, name: node.name, word: "Cache", text: node.why })),
  ].sort((a, b) => a.key.localeCompare(b.key));
  $("trouble-nodes").parentElement.hidden = !trouble.length;
  list("trouble-nodes", trouble.filter((item) => matches(item.name, item.text)), trouble, (item) => row(item.name, "failed", item.word, item.text));
  keyed($("queues"), all.queues.filter((item) => matches(item.name)), (item) => item.name, queue);
  const by = (first) => (a, b) => first(a) - first(b) || a.name.localeCompare(b.name);
  const jobs = all.jobs.filter((job) => matches(job.name, job.queue, job.phase, job.sentence));
  list("jobs", jobs.sort(by((job) => STANDINGS.indexOf(job.standing))), all.jobs, jobRow);
  const datasets = all.datasets.filter((item) => matches(item.name, item.sentence));
  list("datasets", datasets.sort(by((item) => item.ready ? 1 : 0)), all.datasets, datasetRow);
  const nodes = all.nodes.filter((node) => matches(node.name, node.why, node.fault || ""));
  keyed($("nodes"), nodes, (node) => node.name, square);
  if (!$("nodes").querySelector("[tabindex='0']") && $("nodes").firstChild) $("nodes").firstChild.tabIndex = 0;
  showNode();
  keyed($("notes"), all.notes.map((note) => ({ note })), (item) => item.note, (item) => h("li", {}, `${upper(item.note)}.`));
}

// --- The state

const state = { machine: null, cluster: null, versions: [0, 0], ages: [null, null], failed: null };
/** Figures of this many seconds ago are old: those of the machine are read each second, those of a cluster each 5 s. */
const OLD = [10, 30];
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

/** What is wrong with the figures that are shown, if anything is. */
function trouble() {
  const at = view === "machine" ? 0 : 1, age = state.ages[at];
  const old = age === null ? "" : ` The figures are ${seconds(age)} old.`;
  if (at === 1 && state.failed) return `The cluster cannot be read: ${state.failed.replace(/[^.?!]$/, "$&.")}${old}`;
  if (age !== null && age > OLD[at]) return `${at ? "The cluster is slow to answer." : "The mounts are slow to answer."}${old}`;
  return "";
}

function live(isLive, text) {
  $("live").classList.toggle("old", !isLive);
  $("when").textContent = text;
}

async function ask() {
  try {
    const answer = await fetch(`state?${state.versions.join(".")}`, { headers: { "x-larder-token": token }, signal: AbortSignal.timeout(2000) });
    if (!answer.ok) throw new Error(answer.status === 403 ? await answer.text() : `The answer is ${answer.status}.`);
    const news = await answer.json();
    state.versions = news.versions;
    state.ages = news.ages;
    if (news.machine) state.machine = news.machine;
    if (news.cluster) { state.cluster = news.cluster; state.failed = news.cluster.error; }
    for (const id of ["views", "view-keys"]) $(id).hidden = !news.has_cluster;
    answered = Date.now();
    const text = trouble();
    live(!text, clock(new Date(answered)));
    say(text);
    if (news.machine || news.cluster) draw();
  } catch (error) {
    const refused = String(error.message || "").includes("token");
    live(false, answered ? `old: ${clock(new Date(answered))}` : "not connected");
    say(refused ? error.message : `Not connected to \`larder ui\`: ${answered ? "the figures are old." : "is the command running?"}`);
  }
  setTimeout(ask, 1000);
}

function show(which) {
  if ($("views").hidden) return;
  view = which;
  for (const name of ["machine", "cluster"]) {
    $(name).hidden = name !== which;
    $(`to-${name}`).setAttribute("aria-pressed", String(name === which));
  }
  draw();
  if (answered) { const text = trouble(); live(!text, $("when").textContent); say(text); }
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
