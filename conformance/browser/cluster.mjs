// A coordinator and servers as processes, memcached requests, and who ends all of it.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const TOKEN = "0123456789abcdef-browser";
const PAUSE_MS = 10;
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export async function eventually(what, holds, within = 30_000) {
  const until = Date.now() + within;
  for (;;) {
    const found = await holds();
    if (found) return found;
    if (Date.now() > until) throw new Error(`never: ${what}`);
    await sleep(20);
  }
}

// A port that is free now, below those that the kernel gives away.
export async function freePort() {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000);
    const server = net.createServer();
    const isFree = await new Promise((done) => {
      server.once("error", () => done(false));
      server.listen(port, "127.0.0.1", () => server.close(() => done(true)));
    });
    if (isFree) return port;
  }
}

export class Cluster {
  constructor(program) {
    this.program = program;
    this.folder = mkdtempSync(join(tmpdir(), "mbal-browser-"));
    this.children = [];
    this.servers = new Map();
  }

  start(args) {
    const child = spawn(this.program, args, { stdio: ["ignore", "ignore", "pipe"] });
    child.said = "";
    child.stderr.on("data", (text) => (child.said += text));
    this.children.push(child);
    return child;
  }

  async coordinate(servers, more = []) {
    const port = await freePort();
    this.url = `http://127.0.0.1:${port}`;
    writeFileSync(join(this.folder, "token"), TOKEN, { mode: 0o600 });
    writeFileSync(join(this.folder, "secret"), "a secret of sixteen bytes and more", { mode: 0o600 });
    const args = ["coordinator", "--listen", `127.0.0.1:${port}`, "--servers", String(servers), "--state", join(this.folder, "state.json")];
    this.coordinator = this.start([...args, "--token-file", join(this.folder, "token"), ...more]);
    await eventually("the coordinator answers", () => this.get("/healthz").catch(() => null));
  }

  async serve(id, more = []) {
    const port = await freePort();
    const args = ["serve", "-p", String(port), "-U", "0", "-m", "64", "-t", "2", "--server-id", String(id), "--coordinator", this.url];
    const files = ["--coordinator-token", join(this.folder, "token"), "--cluster-secret", join(this.folder, "secret")];
    const child = this.start([...args, ...files, "--control", "off", ...more]);
    this.servers.set(id, { port, child });
  }

  async get(path) {
    const answer = await fetch(this.url + path);
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
    return text.startsWith("{") ? JSON.parse(text) : text;
  }

  async call(method, path, body) {
    const headers = { Authorization: `Bearer ${TOKEN}`, ...(body ? { "Content-Type": "application/json" } : {}) };
    const answer = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
    return JSON.parse(text);
  }

  end() {
    for (const child of this.children) {
      child.kill("SIGCONT");
      child.kill("SIGKILL");
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

// A coordinator of servers that are none: each has said once how it is. Nobody plans, and nobody is missed, for a minute.
export async function simulate(cluster, servers, workers, hotKeys) {
  const hex = (number) => number.toString(16).padStart(16, "0");
  await cluster.coordinate(servers, ["--heartbeat-ms", "60000", "--hot-keys", "async"]);
  const ids = Array.from({ length: servers }, (_, at) => at + 1);
  for (const id of ids) {
    const host = `10.0.0.${id}`;
    const addresses = Array.from({ length: workers }, (_, at) => `${host}:${12_000 + at}`);
    await cluster.call("POST", "/v1/servers", { incarnation: hex(id), cluster: "mbal", client: `${host}:11211`, link: `${host}:11311`, workers: addresses, memory_bytes: 2 ** 36, moves: true });
  }
  for (const id of ids) {
    const worker = (at) => ({ fixed: 0.2 + 0.6 * Math.abs(Math.sin(id * 64 + at)), reads: 90_000 + at, hits: 80_000, writes: 10_000, waiting: 1.5, capacity: 1, keys: 100_000, turns: 9000 });
    const hot = Array.from({ length: hotKeys }, (_, at) => ({ key: `hot:${id}:${at}`, reads: 50_000 / (at + 1), writes: 10, value_bytes: 100, copied_ms: 0 }));
    const latency_ns = Array.from({ length: 80 }, (_, at) => [Math.round(2000 * 1.1 ** at), 1000]);
    const all = Array.from({ length: workers }, (_, at) => worker(at));
    await cluster.call("POST", `/v1/servers/${id}/heartbeat`, { incarnation: hex(id), map_version: 1, workers: all, requests: 6_400_000, hot, vitals: { used_bytes: 2 ** 35, latency_ns } });
  }
  await eventually("all were heard", async () => (await cluster.get("/v1/status")).servers.every((one) => one.load > 0));
}

// CPU time of a process in seconds.
export function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "latin1").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

// A connection to a server that asks the same over and over, until it is told to stop. `requests` are sent together, and once more when
// all replies have come, which end with `mn`, and a pause is over.
export class Asker {
  constructor(port, requests) {
    this.batch = Buffer.concat([...requests, Buffer.from("mn\r\n")]);
    this.turns = 0;
    this.socket = net.connect(port, "127.0.0.1", () => this.socket.write(this.batch));
    this.socket.on("error", () => {});
    let end = "";
    this.socket.on("data", (bytes) => {
      end = (end + bytes.subarray(-4).toString("latin1")).slice(-4);
      if (end === "MN\r\n") {
        this.turns += 1;
        // A closed loop without a pause takes the browser's cores, too.
        setTimeout(() => this.stopped || this.socket.write(this.batch), PAUSE_MS);
      }
    });
  }

  stop() {
    this.stopped = true;
    this.socket.destroy();
  }
}

// One exchange: what is sent, and all that comes until `mn` is answered.
export function exchange(port, request) {
  return new Promise((done, failed) => {
    let all = Buffer.alloc(0);
    const socket = net.connect(port, "127.0.0.1", () => socket.write(Buffer.concat([Buffer.from(request), Buffer.from("mn\r\n")])));
    socket.on("error", failed);
    socket.on("data", (bytes) => {
      all = Buffer.concat([all, bytes]);
      if (all.subarray(-4).toString("latin1") === "MN\r\n") {
        socket.destroy();
        done(all.toString("latin1"));
      }
    });
  });
}
