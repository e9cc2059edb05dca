// What viewers cost a coordinator of 64 servers with 64 workers, which are simulated: CPU time by frames alone, since nobody sends
// heartbeats meanwhile.
//
//     node viewers.mjs PROGRAM [ROUNDS]

import http from "node:http";
import { Cluster, cpuSeconds, simulate, sleep } from "./cluster.mjs";

const [program, rounds = "5"] = process.argv.slice(2);
const [SERVERS, WORKERS, SECONDS] = [64, 64, 10];
function watch(url) {
  const viewer = { bytes: 0, frames: 0 };
  viewer.request = http.get(`${url}/v1/live`, { agent: false }, (answer) => {
    answer.on("data", (bytes) => {
      viewer.bytes += bytes.length;
      if (bytes.length > 1 && bytes.subarray(-2).toString() === "\n\n") viewer.frames += 1;
    });
    answer.on("error", () => {});
  });
  viewer.request.on("error", () => {});
  return viewer;
}

async function measured(cluster, count) {
  const viewers = Array.from({ length: count }, () => watch(cluster.url));
  await sleep(1500);
  const [before, bytes] = [cpuSeconds(cluster.coordinator.pid), viewers.reduce((sum, one) => sum + one.bytes, 0)];
  await sleep(SECONDS * 1000);
  const spent = cpuSeconds(cluster.coordinator.pid) - before;
  const sent = viewers.reduce((sum, one) => sum + one.bytes, 0) - bytes;
  viewers.forEach((one) => one.request.destroy());
  await sleep(1500);
  return { percent: (100 * spent) / SECONDS, kilobytes: sent / Math.max(count, 1) / SECONDS / 1000 };
}

const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

const cluster = new Cluster(program);
try {
  await simulate(cluster, SERVERS, WORKERS, 32);
  const counts = [0, 1, 10];
  const found = new Map(counts.map((count) => [count, []]));
  for (let round = 0; round < Number(rounds); round++) {
    for (const count of counts) found.get(count).push(await measured(cluster, count));
  }
  console.log(`${SERVERS} servers of ${WORKERS} workers, ${rounds} interleaved rounds of ${SECONDS} s`);
  for (const [count, all] of found) {
    const percents = all.map((one) => one.percent);
    const spread = `${Math.min(...percents).toFixed(2)} to ${Math.max(...percents).toFixed(2)}`;
    console.log(`${String(count).padStart(2)} viewers: ${median(percents).toFixed(2)}% of a core (${spread}), ${median(all.map((one) => one.kilobytes)).toFixed(0)} kB/s to each`);
  }
} finally {
  cluster.end();
}
