// The page of a coordinator or a server. Frames come over one stream and are shown as they come; every text of a cluster becomes a
// text node, whatever is in it. docs/page.md says what is shown.

const $ = (id) => document.getElementById(id);
const LATE_FRAME_MS = 3000;
const STARTS_AGAIN_MS = 2000;
// A server is late when its heartbeat is half an epoch late, as the coordinator has it.
const LATE_EPOCHS = 1.5;
const DENSE_CELLS = 512;
const HOT_ROWS_MAX = 200;

// An element, its attributes and what is in it: elements, and texts as texts.
function el(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...inside.map((one) => (one instanceof Node ? one : String(one))));
  return made;
}

// Only what is another text is touched: nothing flickers, and who reads on is not interrupted.
function say(element, text, className) {
  if (element.textContent !== text) element.textContent = text;
  if (className !== undefined && element.className !== className) element.className = className;
}

// Rows by key: those that stay are filled anew, and keep their focus.
function rows(body, items, keyOf, make, fill) {
  body.rowsByKey ??= new Map();
  const seen = new Set();
  let at = null;
  for (const item of items) {
    const key = String(keyOf(item));
    if (seen.has(key)) continue;
    seen.add(key);
    let row = body.rowsByKey.get(key);
    if (!row) body.rowsByKey.set(key, (row = make(item)));
    row.item = item;
    fill(row, item);
    const next = at ? at.nextSibling : body.firstChild;
    if (next !== row) body.insertBefore(row, next);
    at = row;
  }
  for (const [key, row] of body.rowsByKey) {
    if (!seen.has(key)) {
      row.remove();
      body.rowsByKey.delete(key);
    }
  }
}

const cells = (...classes) => el("tr", {}, ...classes.map((one) => el("td", { class: one })));
const button = (text, label, onclick) => el("button", { type: "button", "aria-label": label, onclick }, text);

const whole = (number) => Math.round(number).toLocaleString("en");
const short = (number) => (number < 1e7 ? whole(number) : `${(number / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} M`);
const percent = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)}%` : "–");
function bytes(count) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < names.length - 1) [count, at] = [count / 1024, at + 1];
  return `${count.toFixed(count < 10 && at > 0 ? 1 : 0)} ${names[at]}`;
}
function time(ns) {
  if (!(ns > 0)) return "–";
  if (ns < 1e6) return `${(ns / 1e3).toFixed(ns < 1e4 ? 1 : 0)} µs`;
  return ns < 1e9 ? `${(ns / 1e6).toFixed(ns < 1e7 ? 1 : 0)} ms` : `${(ns / 1e9).toFixed(1)} s`;
}
const counted = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;
const since = (ms) => (ms < 120e3 ? `${Math.round(ms / 1e3)} s` : ms < 7200e3 ? `${Math.round(ms / 60e3)} min` : `${Math.round(ms / 3600e3)} h`);
const hour = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
const clock = (unix) => (unix ? new Date(unix * 1000).toLocaleTimeString("en-GB") : "");

// What was heard last, and when by this browser's clock.
let frame = null;
let heardAt = 0;
let stream = null;

function connect() {
  stream?.close();
  stream = new EventSource("/v1/live");
  stream.onmessage = (message) => {
    frame = JSON.parse(message.data);
    heardAt = performance.now();
    document.documentElement.dataset.frame = frame.number;
    show();
  };
  stream.onerror = () => {
    // A stream that was refused does not begin again by itself.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, STARTS_AGAIN_MS);
    pulse();
  };
}

// How old the numbers are, also while nothing comes.
function pulse() {
  const silent = performance.now() - heardAt;
  const isCut = !frame || silent > LATE_FRAME_MS;
  const isOld = isCut || Boolean(frame.trouble);
  const age = frame?.seen_ms ? frame.unix_ms - frame.seen_ms + silent : 0;
  say($("connection"), isCut ? (frame ? `no answer for ${since(silent)}` : "connecting") : isOld ? "no news" : "live", `pill ${isOld ? "bad" : "good"}`);
  const why = isCut && frame ? `Nothing comes from the ${frame.source}.` : frame?.trouble;
  $("trouble").hidden = !why;
  if (why) {
    const old = frame.shown ? ` The numbers are ${since(age)} old.` : "";
    const leader = frame.leader && /^https?:\/\//.test(frame.leader) ? frame.leader : null;
    const text = `${why}${old}${leader ? ` The coordinator that leads: ${leader}` : ""}`;
    if ($("trouble").textContent !== text) {
      $("trouble").replaceChildren(`${why}${old}`);
      if (leader) $("trouble").append(" The coordinator that leads: ", el("a", { href: leader, rel: "noreferrer" }, leader));
    }
  }
  $("main").classList.toggle("old", isOld);
}

function show() {
  pulse();
  document.body.classList.toggle("can-change", frame.can_change);
  document.body.classList.toggle("server", frame.source === "server");
  const shown = frame.shown;
  if (!shown) return;
  say($("cluster"), shown.status.cluster);
  const name = shown.status.cluster || shown.status.servers[0]?.client || "";
  document.title = name ? `MBal: ${name}` : "MBal";
  shown.byId = new Map(shown.servers.map((one) => [one.server, one]));
  showTiles(shown);
  showMap(shown);
  showServers(shown);
  showHot(shown);
  showMoves(shown);
  sizes.look(shown);
  showLedger(shown);
  // Nobody aims at what moves.
  if (!$("decided").matches(":hover, :focus-within")) showEvents();
  if (!frame.trouble) charts.add(frame.point);
}

// ---- at a glance

const tiles = new Map();
function tile(name, value, small = "") {
  let one = tiles.get(name);
  if (!one) {
    one = { value: el("span"), small: el("small") };
    tiles.set(name, one);
    $("tiles").append(el("div", {}, el("dt", {}, name), el("dd", {}, one.value, one.small)));
  }
  say(one.value, value);
  say(one.small, small);
}

// What somebody asked for, or what passes by itself, is neither good nor bad.
const QUIET_STATES = ["starting", "awaited", "draining", "drained", "retired"];
const classOf = (state) => (state === "serving" ? "good" : QUIET_STATES.includes(state) ? "" : "bad");

function stateOf(server, shown) {
  const late = !["lost", "retired"].includes(server.state) && server.silent_ms > LATE_EPOCHS * shown.epoch_ms;
  return late && server.state !== "silent" ? "late" : server.state;
}

function showTiles({ status, hot, epoch_ms, scale }) {
  const point = frame.point ?? {};
  const states = status.servers.map((one) => stateOf(one, { epoch_ms }));
  const serving = states.filter((state) => state === "serving").length;
  const others = [...new Set(states.filter((state) => state !== "serving"))];
  const members = states.filter((state) => state !== "retired").length;
  tile("Servers serving", `${serving} of ${members}`, status.waits_for ? `${status.waits_for} more are awaited` : others.join(", "));
  tile("Keys a second", short((point.reads ?? 0) + (point.writes ?? 0)), `${short(point.reads ?? 0)} read\n${short(point.writes ?? 0)} written`);
  tile("Hit ratio", percent(point.hits, point.reads));
  tile("Median request", time(point.p50), `p99 ${time(point.p99)}\np99.9 ${time(point.p999)}`);
  tile("Memory used", bytes(point.used ?? 0), `of ${bytes(point.memory ?? 0)}`);
  const [most, mean] = [point.load_max ?? 0, point.load_mean ?? 0];
  tile("Busiest worker", percent(most, 1), mean > 0.02 ? `mean ${percent(mean, 1)}\n${(most / mean).toFixed(2)} × the mean` : `mean ${percent(mean, 1)}`);
  if (frame.source === "coordinator") {
    tile("Moves", String(status.moves.length), `balance ${status.balance.mode}\nmap ${status.map_version}`);
    tile("Hot keys copied", String(hot.copied), `${counted(hot.copies, "copy", "copies")}\n${hot.mode}`);
    tile("Resize", scale.state, scale.state === "idle" ? "" : `to ${scale.servers}\n${percent(scale.part_done, 1)} moved`);
  }
}

// ---- the map of loads

const STEPS = [0.3, 0.45, 0.62, 0.87, 1.15, 1.6, 2.4, 3.4];
// Loads of next to nothing are even.
const LOAD_FELT = 20;
let cursor = [0, 0];

function showMap({ servers, status }) {
  const map = $("map");
  const loads = servers.flatMap((one) => one.load);
  const mean = loads.reduce((sum, load) => sum + load, 0) / Math.max(loads.length, 1);
  const step = (load) => (mean < LOAD_FELT ? 4 : STEPS.filter((end) => load / mean >= end).length);
  const isDense = loads.length > DENSE_CELLS;
  map.classList.toggle("dense", isDense);
  const missing = status.servers.filter((one) => !servers.some((other) => other.server === one.id));
  const all = [...servers, ...missing.map((one) => ({ server: one.id, load: [], state: one.state }))].sort((a, b) => a.server - b.server);
  rows(
    map,
    all,
    (one) => one.server,
    (one) => el("div", { role: "row" }, el("span", { role: "rowheader" }, `server ${one.server}`)),
    (row, one) => {
      const wanted = Math.max(one.load.length, 1);
      while (row.children.length - 1 > wanted) row.lastChild.remove();
      while (row.children.length - 1 < wanted) row.append(el("span", { role: "gridcell", tabindex: "-1" }));
      for (let at = 0; at < wanted; at++) {
        const cell = row.children[at + 1];
        const load = one.load[at];
        const mark = mean >= LOAD_FELT && load >= 1.5 * mean ? "▲" : "";
        if (load === undefined) say(cell, one.state ?? "no word", "none");
        else say(cell, `${(load / 10).toFixed(0)}${mark}`, `d${step(load)}`);
      }
    },
  );
  // One cell of the grid can be tabbed to.
  const cell = cellAt(...cursor) ?? cellAt(0, 0);
  if (cell && cell.tabIndex !== 0) {
    map.querySelectorAll('[tabindex="0"]').forEach((one) => (one.tabIndex = -1));
    cell.tabIndex = 0;
  }
  if (pointed) tellCell(pointed);
}

const cellAt = (row, column) => $("map").children[row]?.children[column + 1];
const placeOf = (cell) => [[...$("map").children].indexOf(cell.parentNode), [...cell.parentNode.children].indexOf(cell) - 1];
let pointed = null;

function tellCell(cell) {
  pointed = cell;
  const one = cell.parentNode?.item;
  if (!one) return say($("cell"), "\u00a0");
  const at = placeOf(cell)[1];
  const mean = frame.point?.load_mean * 1000;
  const beside = mean >= LOAD_FELT ? `, ${(one.load[at] / mean).toFixed(2)} × the mean` : "";
  const text = one.load[at] === undefined
    ? `server ${one.server}: no word of its workers`
    : `server ${one.server}, worker ${at}: busy ${(one.load[at] / 10).toFixed(1)}%${beside}; ${whole(one.rate[at])} keys/s; ${(one.waiting[at] / 10).toFixed(1)} requests waiting`;
  say($("cell"), text);
}

$("map").addEventListener("pointerover", (event) => event.target.role === "gridcell" && tellCell(event.target));
$("map").addEventListener("focusin", (event) => event.target.role === "gridcell" && tellCell(event.target));
$("map").addEventListener("keydown", (event) => {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const step = steps[event.key];
  if (!step || event.target.role !== "gridcell") return;
  event.preventDefault();
  const [row, column] = placeOf(event.target);
  const next = cellAt(row + step[0], column + step[1]);
  if (!next) return;
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  cursor = placeOf(next);
  next.focus();
});

// ---- servers

function showServers(shown) {
  rows(
    $("servers-rows"),
    shown.status.servers,
    (one) => one.id,
    (one) => {
      const row = cells("", "", "n", "n", "n", "n", "n", "n", "key", "act");
      row.cells[9].append(button("Empty", `Empty server ${one.id}`, () => drain(row.item)));
      return row;
    },
    (row, one) => {
      const more = shown.byId.get(one.id);
      const state = stateOf(one, shown);
      const [id, stateCell, load, rate, hits, p99, memory, share, client, act] = row.cells;
      say(id, String(one.id));
      const silent = one.silent_ms > LATE_EPOCHS * shown.epoch_ms ? `, silent for ${(one.silent_ms / 1000).toFixed(1)} s` : "";
      say(stateCell, state + silent, classOf(state));
      say(load, percent(one.load, 1));
      say(rate, more ? whole(more.reads + more.writes) : "–");
      say(hits, more ? percent(more.hits, more.reads) : "–");
      say(p99, more ? time(more.p99) : "–");
      say(memory, more ? `${bytes(more.used)} of ${bytes(more.memory)}` : bytes(one.memory_bytes));
      say(share, percent(one.share, 1));
      say(client, one.client);
      const change = isEmptied(one) ? "Keep" : "Empty";
      say(act.firstChild, change);
      act.firstChild.setAttribute("aria-label", `${change} server ${one.id}`);
    },
  );
  rows(
    $("links"),
    shown.status.broken_links ?? [],
    (one) => `${one.from}-${one.to}`,
    () => el("li", { class: "bad" }),
    (row, one) => say(row, `Server ${one.from} has had no link to ${one.to} for ${one.seconds} s: ${one.why}. ${one.mend}`),
  );
}

const isEmptied = (server) => ["draining", "stuck", "drained"].includes(server.state);
function drain(server) {
  const path = `/v1/servers/${server.id}/drain`;
  if (isEmptied(server)) ask(`Server ${server.id} keeps what it has, and gets cachelets again.`, "DELETE", path);
  else ask(`Everything that server ${server.id} has moves to the other servers.`, "POST", path);
}

// ---- hot keys

const HOT_STATES = { hot: "hot: copied", "hot-pending": "copies are made", "cold-pending": "copies go" };

function showHot({ hot, hot_all }) {
  const keys = hot.keys.slice(0, HOT_ROWS_MAX);
  const threshold = hot.threshold > 0 ? `a copy is to have ${whole(hot.threshold)} requests/s at most` : "each server decides by its own load";
  const more = hot_all > keys.length ? `; the hottest ${keys.length} of ${whole(hot_all)}` : "";
  say($("hot-note"), hot.mode === "off" ? `Hot keys are not copied${more}.` : `Copied: ${hot.mode}; ${threshold}; ${hot.copied === 1 ? "1 key has" : `${whole(hot.copied)} keys have`} ${counted(hot.copies, "copy", "copies")}${more}.`);
  rows(
    $("hot-rows"),
    keys,
    (one) => `${one.server} ${one.key}`,
    (one) => {
      const row = cells("", "n", "n", "", "", "", "n");
      row.cells[0].append(el("button", { type: "button", class: "key", onclick: () => find(row.item.key) }, one.key));
      return row;
    },
    (row, one) => {
      const [, reads, writes, state, home, copies, age] = row.cells;
      say(reads, whole(one.reads));
      say(writes, whole(one.writes));
      const isWriteHot = one.reads < (hot.mode === "atomic" ? 12 : 3) * one.writes;
      say(state, HOT_STATES[one.state] ?? (isWriteHot ? "hot by writes: no copies" : "no copies"));
      say(home, `server ${one.server}`);
      say(copies, `${one.copies?.join(", ") || "–"}${one.copy_reads ? `: ${whole(one.copy_reads)} of the reads` : ""}`);
      say(age, one.state ? since(one.copied_ms) : "–");
    },
  );
}

// ---- moves and resizes

const PROGRESS = { asking: "asks", moving: "moves", sealed: "done", back: "came back", refused: "is refused", "too-late": "is too late to cancel" };

function showMoves({ status, scale }) {
  rows(
    $("moves-rows"),
    status.moves,
    (one) => one.number,
    (one) => {
      const row = cells("", "key", "", "", "", "n", "", "act");
      row.cells[4].append(el("progress", { max: "1", "aria-label": `Move ${one.number}` }), el("div"));
      row.cells[6].append(button("Why", `Why move ${one.number}`, () => why(`Move ${row.item.number}`, row.item.number, row.item.prefix)));
      row.cells[7].append(button("Cancel", `Cancel move ${one.number}`, () => ask(`Move ${row.item.number} is taken back, if nothing of it is gone.`, "DELETE", `/v1/moves/${row.item.number}`)));
      return row;
    },
    (row, one) => {
      const [number, prefix, from, to, progress, carried] = row.cells;
      say(number, String(one.number));
      say(prefix, one.prefix);
      say(from, `server ${one.from}`);
      say(to, `server ${one.to}`);
      progress.firstChild.value = one.part_gone ?? 0;
      const word = one.word === "go" ? (PROGRESS[one.progress] ?? "begins") : one.word;
      say(progress.lastChild, `${percent(one.part_gone ?? 0, 1)}, ${word}${one.why ? `: ${one.why}` : ""}`);
      say(carried, bytes(one.bytes ?? 0));
    },
  );
  const retired = scale.retired?.length ? ` Empty, and may be stopped: ${scale.retired.join(", ")}.` : "";
  const left = scale.seconds_left === undefined ? "" : ` ${since(scale.seconds_left * 1000)} left.`;
  const none = status.moves.length ? "" : " Nothing moves.";
  say(
    $("resize"),
    scale.state === "idle"
      ? `No resize was asked for.${none}`
      : `To ${counted(scale.servers, "server", "servers")}${scale.dry_run ? " (dry run)" : ""}: ${scale.state}, ${percent(scale.part_done, 1)} moved, ${bytes(scale.bytes)} carried.${left}${retired}${none}`,
  );
}

// ---- hit ratio by size

const SIZES_AROUND = 5;
const SIZES_EVERY_MS = 15_000;

// It costs the coordinator a forecast of each size, and changes slowly: it is asked for, and is in no frame.
const sizes = {
  askedAt: -Infinity,

  async look({ status }) {
    if (frame.source === "server" || performance.now() - this.askedAt < SIZES_EVERY_MS || document.hidden) return;
    this.askedAt = performance.now();
    try {
      const now = status.servers.filter((one) => one.state === "serving").length;
      const [forecast, autoscale] = await Promise.all([told(`/v1/forecast?servers=${now + SIZES_AROUND}`), told("/v1/autoscale")]);
      this.show(forecast, autoscale);
    } catch {
      // The page says by itself that nothing comes.
    }
  },

  show(forecast, { config, last, outcomes }) {
    const now = forecast.servers;
    const near = forecast.sizes.filter((one) => Math.abs(one.servers - now) <= SIZES_AROUND);
    const known = forecast.servers_told > 0;
    const steady = forecast.hit_ratio_measured;
    const over = steady === undefined ? "the last minute" : "ten steady minutes";
    const policy = config && config.policy !== "off" ? ` The autoscaler is ${config.policy}${last ? `: ${last.why}` : ""}.` : " No autoscaler decides on the size.";
    say($("sizes-note"), known ? `Promised from sampled reads of ${forecast.servers_told} of ${counted(now, "server", "servers")}, ${bytes(forecast.server_bytes)} each; measured over ${over}.${policy}` : `No server has told yet what more or less memory would bring.${policy}`);
    rows(
      $("sizes-rows"),
      known ? near : [],
      (one) => one.servers,
      () => {
        const row = cells("", "n", "", "n", "n");
        row.cells[2].append(el("meter", { min: "0", max: "1" }));
        return row;
      },
      (row, one) => {
        const [servers, promised, bar, misses, came] = row.cells;
        const isNow = one.servers === now;
        row.classList.toggle("now", isNow);
        say(servers, isNow ? `${one.servers}, now` : String(one.servers));
        say(promised, percent(one.hit_ratio, 1));
        bar.firstChild.value = one.hit_ratio;
        bar.firstChild.setAttribute("aria-label", `Hit ratio of ${counted(one.servers, "server", "servers")}`);
        say(misses, whole(one.database_rate));
        say(came, isNow ? percent(steady ?? forecast.hit_ratio, 1) : "–");
      },
    );
    rows(
      $("outcomes"),
      outcomes,
      (one) => one.unix,
      (one) => el("li", {}, el("time", {}, clock(one.unix)), el("span")),
      (row, one) => say(row.lastChild, `${one.from} to ${counted(one.to, "server", "servers")}: promised ${percent(one.expected, 1)}, measured ${percent(one.measured, 1)}`),
    );
  },
};

// ---- the ledger

// In the coordinator's own words: what it is judged by is its business.
function judgement({ came, judged }) {
  if (!came) return ["pending", ""];
  return [judged.words, came[1] === "worse" ? "bad" : judged.came_true ? "good" : ""];
}

function remedyText(one) {
  if (one.split) return `split of ${one.split}`;
  const what = one.is_inside ? "step inside the server" : "move to another server";
  return `${one.steps} ${one.steps === 1 ? what : what.replace("step", "steps").replace("move", "moves").replace("another server", "other servers")}`;
}

function showLedger({ status, judged }) {
  const { balance } = status;
  const wanted = balance.servers_wanted ? `; ${balance.servers_wanted} more servers would bring every worker under its limit` : "";
  const heavy = balance.too_heavy?.length ? `; too heavy for any worker: ${balance.too_heavy.join(", ")}` : "";
  const none = balance.remedies?.length ? "" : " No worker needed a remedy lately.";
  const numbers = none ? "" : " Seen, expected and came are parts of the work: 1 is even.";
  say($("balance"), `Balance is ${balance.mode}${wanted}${heavy}.${none}${numbers}`);
  rows(
    $("ledger-rows"),
    (balance.remedies ?? []).map((one, at) => ({ ...one, judged: judged[at] })),
    (one) => `${one.server} ${one.worker} ${one.number} ${one.is_inside} ${one.seen} ${one.split ?? ""}`,
    () => {
      const row = cells("", "n", "", "n", "n", "", "");
      row.cells[6].append(button("Why", "Why this remedy", () => whyRemedy(row.item)));
      return row;
    },
    (row, one) => {
      const [worker, seen, remedy, expected, came, verdict, reason] = row.cells;
      const name = `${one.server}/${one.worker}`;
      say(worker, name);
      say(seen, one.seen.toFixed(2));
      say(remedy, remedyText(one));
      say(expected, one.expected.toFixed(2));
      say(came, one.came ? one.came[0].toFixed(2) : "–");
      say(verdict, ...judgement(one));
      reason.firstChild.setAttribute("aria-label", `Why the remedy for worker ${name}`);
    },
  );
}

function showEvents() {
  const needle = $("filter").value.toLowerCase();
  const events = frame?.shown?.events ?? [];
  rows(
    $("events"),
    events.filter((one) => one.text.toLowerCase().includes(needle)),
    (one) => one.number,
    (one) => {
      const row = el("li", {}, el("time", {}, clock(one.unix)), el("span"));
      const move = /^move (\d+): (\S+)/.exec(one.text);
      if (move) row.append(" ", button("Why", `Why move ${move[1]}`, () => why(`Move ${move[1]}`, Number(move[1]), move[2])));
      return row;
    },
    (row, one) => say(row.children[1], one.text),
  );
}
$("filter").addEventListener("input", showEvents);

async function told(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const text = await answer.text();
  let said;
  try {
    said = JSON.parse(text);
  } catch {
    throw new Error(answer.ok ? "the answer is not understood" : `${answer.status}: ${text.slice(0, 200)}`);
  }
  if (!answer.ok) throw new Error(said.error ?? String(answer.status));
  return said;
}

const line = (one) => el("li", {}, el("time", {}, clock(one.unix)), one.text);
const concerns = (text, name) => text.split(" ").some((word) => word.replace(/[:,;]+$/, "") === name);

// A dialog with a heading, sentences, and the decisions that concern it, the oldest first.
async function tellWhy(title, sentences, isOfIt) {
  say($("why-title"), title);
  $("why-text").replaceChildren(...sentences.map((text) => el("p", {}, text)), el("p", { class: "note" }, "asking"));
  if (!$("why").open) $("why").showModal();
  try {
    const { events } = frame.source === "server" ? frame.shown : await told("/v1/events");
    const lines = events.filter((one) => isOfIt(one.text)).reverse();
    const none = "No decision about it is remembered: it is older than the last thousand, or than this coordinator.";
    $("why-text").lastChild.replaceWith(lines.length ? el("ol", {}, ...lines.map(line)) : el("p", {}, none));
  } catch (error) {
    $("why-text").lastChild.replaceWith(el("p", { class: "bad" }, error.message));
  }
}

const why = (title, number, prefix) =>
  tellWhy(`${title}, cachelet ${prefix}`, [], (text) => text.startsWith(`move ${number}:`) || text.startsWith(`move ${number} `) || concerns(text, prefix));

function whyRemedy(one) {
  const name = `${one.server}/${one.worker}`;
  const sentences = [
    `Seen: worker ${name} had ${one.seen.toFixed(2)} of its part of the work${one.split ? `, by ${one.split} alone` : ""}; 1 is even.`,
    `Remedy: ${remedyText(one)}.`,
    `Expected: ${one.expected.toFixed(2)} of its part.`,
    one.came ? `Came: ${one.came[0].toFixed(2)}, ${judgement(one)[0]}.` : "Came: nothing yet, it is pending.",
  ];
  tellWhy(`Remedy for worker ${name}`, sentences, (text) => concerns(text, name) || text.startsWith("decision ") || (one.split && concerns(text, one.split)));
}

// ---- search

async function find(what) {
  $("what").value = what;
  const box = $("found-text");
  $("found").hidden = false;
  box.replaceChildren(el("p", { class: "note" }, "asking"));
  $("found-title").focus();
  try {
    const found = await told(`/v1/where?what=${encodeURIComponent(what)}`);
    box.replaceChildren(...describe(found));
  } catch (error) {
    box.replaceChildren(el("p", { class: "bad" }, error.message));
  }
}

function describe(found) {
  // A server says it in lines.
  if (found.text !== undefined) return [el("pre", {}, found.text)];
  const of = found.key === null ? `Cachelet ${found.cachelet}` : `Key ${found.key}`;
  const out = [
    el("p", {}, el("span", { class: "key" }, of), `: server ${found.server} (${found.client}), worker ${found.worker}`, found.state ? `; that server is ${found.state}` : ""),
    el("p", { class: "note" }, `hash ${found.hash}, cachelet ${found.cachelet}`),
  ];
  if (found.hot) {
    const { reads, writes, state, copies } = found.hot;
    const copied = copies?.length ? `copies on servers ${copies.join(", ")}` : "no copies";
    out.push(el("p", {}, `Read ${whole(reads)}/s, written ${whole(writes)}/s: ${HOT_STATES[state] ?? "not copied"}, ${copied}.`));
  } else if (found.key !== null) out.push(el("p", {}, "Not among the hottest keys of its server: no copies."));
  for (const move of found.moves) out.push(el("p", {}, `Move ${move.number} takes it to server ${move.to}: ${percent(move.part_gone ?? 0, 1)} gone.`));
  out.push(found.events.length ? el("ol", {}, ...found.events.map(line)) : el("p", { class: "note" }, "No decision about it is remembered."));
  return out;
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("what").value) find($("what").value);
});

// ---- changes

let token = "";
let asked = null;

function ask(sentence, method, path, body) {
  asked = { method, path, body };
  say($("ask-text"), sentence);
  say($("ask-failed"), "");
  $("token").value = token;
  $("ask").showModal();
}
$("ask-no").addEventListener("click", () => $("ask").close());
$("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("ask-yes").disabled = true;
  try {
    const { method, path, body } = asked;
    const headers = { Authorization: `Bearer ${$("token").value}`, "Content-Type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `refused: ${answer.status}`);
    // Until the page is closed: it is kept nowhere else.
    token = $("token").value;
    $("ask").close();
  } catch (error) {
    say($("ask-failed"), error.message);
  } finally {
    $("ask-yes").disabled = false;
  }
});

// ---- over time

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const CHARTS = [
  { title: "Keys a second", value: whole, series: [["read", (p) => p.reads], ["written", (p) => p.writes]] },
  { title: "Hit ratio", value: (part) => percent(part, 1), range: [0, 1], series: [["hits", (p) => (p.reads > 0 ? p.hits / p.reads : null)]] },
  { title: "Time of a request", value: time, log: true, series: [["p50", (p) => p.p50 || null], ["p99", (p) => p.p99 || null], ["p99.9", (p) => p.p999 || null]] },
  { title: "Memory", value: bytes, incrs: Array.from({ length: 50 }, (_, power) => 2 ** power), series: [["used", (p) => p.used], ["limit", (p) => p.memory]] },
  { title: "Load of a worker", value: (part) => percent(part, 1), series: [["busiest", (p) => p.load_max], ["mean", (p) => p.load_mean]] },
];
const DASHES = [[], [6, 3], [2, 3]];

const charts = {
  seconds: 600,
  step: 1,
  points: [],
  plots: [],
  loadedAt: -Infinity,

  async load() {
    const { seconds } = this;
    this.loadedAt = performance.now();
    try {
      const { step, unix, ...columns } = await told(`/v1/history?seconds=${seconds}`);
      if (seconds !== this.seconds) return;
      const names = Object.keys(columns).filter((name) => Array.isArray(columns[name]));
      this.step = step;
      this.points = unix.map((at, index) => ({ unix: at, ...Object.fromEntries(names.map((name) => [name, columns[name][index]])) }));
      this.draw();
    } catch {
      // The page says by itself that nothing comes.
    }
  },

  // The newest; of a long span the ring is asked again when it has another point.
  add(point) {
    if (!point) return;
    if (this.seconds !== 600) {
      if (performance.now() - this.loadedAt > this.step * 1000) this.load();
      return;
    }
    const last = this.points.at(-1);
    if (last && point.unix < last.unix) return;
    if (last?.unix === point.unix) this.points.pop();
    this.points.push(point);
    while (this.points[0].unix < point.unix - 600) this.points.shift();
    this.draw();
  },

  data({ series }) {
    const columns = [[], ...series.map(() => [])];
    let before = null;
    for (const point of this.points) {
      // Where nothing was seen, there is no line.
      if (before !== null && point.unix - before > 2.5 * this.step) {
        columns.forEach((column, at) => column.push(at === 0 ? before + this.step : null));
      }
      columns[0].push(point.unix);
      series.forEach(([, of], at) => columns[at + 1].push(of(point)));
      before = point.unix;
    }
    return columns;
  },

  draw() {
    if (!this.plots.length) this.build();
    this.plots.forEach((plot, at) => {
      const data = this.data(CHARTS[at]);
      plot.setData(data);
      // Without a cursor the legend has the newest values.
      if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: data[0].length - 1 }, false);
      const last = this.points.at(-1);
      const told = last ? CHARTS[at].series.map(([name, of]) => `${name} ${CHARTS[at].value(of(last) ?? 0)}`).join(", ") : "nothing yet";
      plot.over.parentNode.setAttribute("aria-label", `${CHARTS[at].title}, now: ${told}`);
    });
  },

  build() {
    this.plots.forEach((plot) => plot.destroy());
    const colors = ["--s1", "--s2", "--s3"].map(style);
    const axis = { stroke: style("--dim"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    $("charts").replaceChildren();
    this.plots = CHARTS.map((chart) => {
      const figure = el("figure", {}, el("figcaption", {}, chart.title));
      $("charts").append(figure);
      const plot = new uPlot(
        {
          width: Math.max(figure.clientWidth - 18, 200),
          height: 170,
          cursor: { sync: { key: "time" }, drag: { x: true, y: false } },
          scales: { y: { distr: chart.log ? 3 : 1, range: chart.range ?? (chart.log ? undefined : (_, low, high) => [0, high > 0 ? high * 1.05 : 1]) } },
          axes: [{ ...axis, size: 30, values: (_, splits) => splits.map(splits[1] - splits[0] < 60 ? clock : hour) }, { ...axis, size: 68, ...(chart.incrs && { incrs: chart.incrs }), values: (_, splits) => splits.map((one) => (one === null ? "" : chart.value(one))) }],
          series: [
            { label: "at", value: (_, unix) => (unix ? clock(unix) : "–") },
            ...chart.series.map(([label], at) => ({ label, stroke: colors[at], dash: DASHES[at], width: 1.5, points: { show: false }, value: (_, value) => (value === null || value === undefined ? "–" : chart.value(value)) })),
          ],
        },
        [[], ...chart.series.map(() => [])],
        figure,
      );
      plot.over.parentNode.setAttribute("role", "img");
      new ResizeObserver(() => plot.setSize({ width: Math.max(figure.clientWidth - 18, 200), height: 170 })).observe(figure);
      return plot;
    });
  },

  // In other colors.
  again() {
    if (!this.plots.length) return;
    this.build();
    this.draw();
  },
};

$("spans").addEventListener("change", (event) => {
  charts.seconds = Number(event.target.value);
  charts.load();
});

// ---- theme, keys, beginning

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  say($("theme"), `Theme: ${name}`);
  charts.again();
}
let themeName = "system";
try {
  const stored = localStorage.getItem("theme");
  if (THEMES.includes(stored)) themeName = stored;
} catch {
  // A browser that keeps nothing shows the system's.
}
$("theme").addEventListener("click", () => {
  themeName = THEMES[(THEMES.indexOf(themeName) + 1) % THEMES.length];
  theme(themeName);
  try {
    localStorage.setItem("theme", themeName);
  } catch {
    // See above.
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.again());

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, dialog");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    // What stands there is replaced by what is typed.
    $("what").select();
  }
});

theme(themeName);
connect();
charts.load();
setInterval(pulse, 250);
