// The page in Chromium, with a coordinator and three servers behind it. Prints a line for each check, and `N passed, N failed` at the end.
//
//     node check.mjs PROGRAM [FOLDER FOR SCREENSHOTS]

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { Asker, Cluster, TOKEN, eventually, exchange, freePort, simulate, sleep } from "./cluster.mjs";

const [program, screenshots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browserPath = process.env.CHROMIUM ?? "/usr/bin/chromium";

let [passed, failed] = [0, 0];
async function check(name, work) {
  const begun = Date.now();
  try {
    const told = await work();
    passed += 1;
    console.log(`ok      ${name}${told ? `: ${told}` : ""} (${Date.now() - begun} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}: ${error.message}`);
  }
}

function same(found, expected, what) {
  const [one, other] = [found, expected].map((it) => JSON.stringify(it));
  if (one !== other) throw new Error(`${what}: ${one} is not ${other}`);
}

function near(found, expected, what, part = 0.35) {
  if (Math.abs(found - expected) > part * Math.max(Math.abs(expected), 1)) throw new Error(`${what}: ${found} is far from ${expected}`);
}

const number = (text) => Number(text.replace(/[^0-9.]/g, ""));

// A page that keeps what would be wrong: words on the console, requests elsewhere, dialogs.
async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.wrong = [];
  page.on("console", (said) => page.wrong.push(`console: ${said.text()}`));
  page.on("pageerror", (error) => page.wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    page.wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("data:")) page.wrong.push(`elsewhere: ${request.url()}`);
  });
  await page.goto(url);
  await page.waitForFunction(() => document.querySelector("#connection")?.textContent === "live");
  return page;
}

const text = (page, selector) => page.locator(selector).first().textContent();
const cellsOf = (page, rows) => page.$$eval(`${rows} > tr`, (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));

async function accessible(page, name) {
  // By the browser's own protocol: the page's policy lets nobody else in.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: axe });
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const grave = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const told = grave.map((one) => `${one.id} (${one.nodes.length}): ${one.nodes[0].html.slice(0, 120)} ${one.nodes[0].failureSummary}`);
  if (told.length) throw new Error(`${name}: ${told.join("; ")}`);
  const slight = found.violations.map((one) => one.id);
  return slight.length ? `slight: ${slight.join(", ")}` : "nothing at all";
}

// Names that would do harm in a page that took them for markup, or in a terminal.
const HOSTILE = ["<img/src=x/onerror=window.hacked=1>", "\"'><svg/onload=window.hacked=1>", "</script><script>window.hacked=1</script>", "{{7*7}}${7*7}", "k\x1b[31m\x07", "\xff\xfe\x80", "a".repeat(250)];
const readable = (key) => [...Buffer.from(key, "latin1")].map((byte) => (byte > 32 && byte < 127 && byte !== 37 ? String.fromCharCode(byte) : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`)).join("");
// As meta commands take them: what is not printed is coded, and a coded key has to be short.
const isPrinted = (key) => /^[!-~]+$/.test(key);
const coded = (key) => (isPrinted(key) ? key : Buffer.from(key, "latin1").toString("base64"));
const flag = (key) => (isPrinted(key) ? "" : " b");
const get = (key) => Buffer.from(`mg ${coded(key)}${flag(key)} v\r\n`);

async function numbersAreTheApis(cluster, page) {
  // At one moment: what stands still.
  const status = await cluster.get("/v1/status");
  const rows = await cellsOf(page, "#servers-rows");
  same(rows.map((row) => Number(row[0])), status.servers.map((one) => one.id), "servers");
  same(rows.map((row) => row[8]), status.servers.map((one) => one.client), "addresses");
  same(rows.map((row) => row[7]), status.servers.map((one) => `${(100 * one.share).toFixed(1)}%`), "shares");
  // In the very frame that is shown: all of it.
  const shown = await page.evaluate(async () => {
    const frames = new Map();
    const other = new EventSource("/v1/live");
    other.onmessage = (one) => frames.set(JSON.parse(one.data).number, JSON.parse(one.data));
    const until = performance.now() + 15_000;
    let frame;
    while (!frame && performance.now() < until) {
      await new Promise(requestAnimationFrame);
      frame = frames.get(Number(document.documentElement.dataset.frame));
    }
    other.close();
    const cells = [...document.querySelectorAll("#servers-rows > tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    const loads = [...document.querySelectorAll("#map [role=gridcell]")].map((cell) => cell.textContent.replace("▲", ""));
    return { frame, cells, loads };
  });
  if (!shown.frame) throw new Error("no frame came to both");
  const { status: told, servers } = shown.frame.shown;
  same(shown.cells.map((row) => row[2]), told.servers.map((one) => `${(100 * one.load).toFixed(1)}%`), "loads");
  same(shown.cells.map((row) => number(row[3])), servers.map((one) => one.reads + one.writes), "keys/s");
  same(shown.loads, servers.flatMap((one) => one.load).map((load) => (load / 10).toFixed(0)), "cells");
}

async function numbersAreThoseOfStats(cluster, page) {
  const counted = async () => {
    let [gets, hits] = [0, 0];
    for (const { port } of cluster.servers.values()) {
      const stats = await exchange(port, "stats\r\n");
      gets += Number(/STAT cmd_get (\d+)/.exec(stats)[1]);
      hits += Number(/STAT get_hits (\d+)/.exec(stats)[1]);
    }
    return { gets, hits, at: Date.now() };
  };
  const before = await counted();
  const shown = [];
  for (let round = 0; round < 8; round++) {
    await sleep(500);
    shown.push(await page.$$eval("#tiles dd", (all) => all.map((one) => [...one.children].map((part) => part.textContent))));
  }
  const after = await counted();
  const rate = (after.gets - before.gets) / ((after.at - before.at) / 1000);
  const ratio = (100 * (after.hits - before.hits)) / (after.gets - before.gets);
  const mean = (of) => shown.map(of).reduce((sum, one) => sum + one, 0) / shown.length;
  const read = mean((tiles) => number(/^([\d,]+) read/.exec(tiles[1][1])[1]));
  const hit = mean((tiles) => number(tiles[2][0]));
  near(read, rate, "gets a second", 0.4);
  near(hit, ratio, "hit ratio", 0.1);
  const stats = await exchange([...cluster.servers.values()][0].port, "stats\r\n");
  const limit = Number(/STAT limit_maxbytes (\d+)/.exec(stats)[1]);
  same((await cellsOf(page, "#servers-rows"))[0][6].split(" of ")[1], `${limit / (1 << 20)} MiB`, "memory");
  return `${Math.round(read)} gets/s shown, ${Math.round(rate)} counted; hit ratio ${hit.toFixed(1)}% and ${ratio.toFixed(1)}%`;
}

async function main() {
  const cluster = new Cluster(program);
  const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"] });
  const askers = [];
  try {
    await cluster.coordinate(3);
    for (const id of [1, 2, 3]) await cluster.serve(id);
    await eventually("all serve", async () => (await cluster.get("/v1/status")).servers.filter((one) => one.state === "serving").length === 3);
    const ports = [...cluster.servers.values()].map((one) => one.port);
    const keys = Array.from({ length: 600 }, (_, at) => `key:${at}`);
    await exchange(ports[0], keys.map((key) => `set ${key} 0 0 100\r\n${"v".repeat(100)}\r\n`).join(""));
    for (const key of HOSTILE) await exchange(ports[0], `ms ${coded(key)} 1${flag(key)}\r\nv\r\n`);
    // A third of what is asked for is not there.
    const usual = [...keys, ...keys.slice(0, 300).map((key) => `none:${key}`)].map((key) => Buffer.from(`mg ${key} v\r\n`));
    ports.forEach((port) => askers.push(new Asker(port, usual)));
    const page = await open(browser, cluster.url);

    await check("first paint and bytes", async () => {
      const fresh = await open(browser, cluster.url);
      const paints = [];
      let bytes = 0;
      for (let round = 0; round < 5; round++) {
        await fresh.reload();
        await fresh.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
        paints.push(await fresh.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
        bytes = await fresh.evaluate(() => [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].filter((one) => !one.name.includes("/v1/")).reduce((sum, one) => sum + one.encodedBodySize, 0));
      }
      await fresh.context().close();
      if (bytes > 250 << 10 || bytes < 10_000) throw new Error(`${bytes} bytes`);
      paints.sort((a, b) => a - b);
      return `median ${paints[2].toFixed(0)} ms of ${paints.map((one) => one.toFixed(0)).join(" ")}; ${bytes} bytes`;
    });
    await check("the numbers are the API's", () => numbersAreTheApis(cluster, page));
    await check("the numbers are those of stats", () => numbersAreThoseOfStats(cluster, page));

    await check("a hot key appears within 2 s", async () => {
      const hot = "hot:one";
      await exchange(ports[0], `set ${hot} 0 0 10\r\n0123456789\r\n`);
      const begun = Date.now();
      ports.forEach((port) => askers.push(new Asker(port, Array(200).fill(get(hot)))));
      await page.waitForFunction((key) => document.querySelector("#hot-rows .key")?.textContent === key, hot, { timeout: 20_000, polling: 50 });
      const took = Date.now() - begun;
      if (took > 2000) throw new Error(`${took} ms`);
      return `${took} ms`;
    });

    await check("hostile names are texts", async () => {
      const requests = HOSTILE.flatMap((key) => Array(100).fill(get(key)));
      ports.forEach((port) => askers.push(new Asker(port, requests)));
      for (const key of HOSTILE) {
        await page.waitForFunction((name) => [...document.querySelectorAll("#hot-rows .key")].some((one) => one.textContent === name), readable(key), { timeout: 20_000 });
      }
      const button = page.locator("#hot-rows .key", { hasText: "onerror" }).first();
      await button.click();
      await page.waitForFunction(() => document.querySelector("#found-text p")?.textContent.includes("server"));
      const found = await text(page, "#found-text .key");
      same(found, `Key ${readable(HOSTILE[0])}`, "the key that was found");
      same(await page.evaluate(() => [window.hacked ?? null, document.querySelectorAll("main img, main svg, main script").length]), [null, 0], "markup");
    });

    await check("a key that was typed is found where clients find it", async () => {
      await page.keyboard.press("Escape");
      await page.locator("body").click({ position: { x: 5, y: 5 } });
      await page.keyboard.press("/");
      await page.keyboard.type("key:7");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => document.querySelector("#found-text .key")?.textContent === "Key key:7");
      const found = await cluster.get("/v1/where?what=key:7");
      const told = await text(page, "#found-text p");
      if (!told.includes(`server ${found.server} (${found.client}), worker ${found.worker}`)) throw new Error(told);
      const map = await cluster.get("/v1/map");
      if (!map.includes(`${found.server}/${found.worker}`)) throw new Error("no such owner in the map");
    });

    await check("moves are shown, and one's reason is three clicks away", async () => {
      const server = 3;
      try {
        await page.locator("#servers-rows tr").nth(2).getByRole("button").click();
        await page.locator("#token").fill("wrong-wrong-wrong-wrong");
        await page.locator("#ask-yes").click();
        await page.waitForFunction(() => document.querySelector("#ask-failed").textContent.includes("Bearer"));
        // What was refused is said by the browser too.
        page.wrong = page.wrong.filter((one) => !one.includes("401"));
        await page.locator("#token").fill(TOKEN);
        await page.locator("#ask-yes").click();
        await page.waitForFunction(() => !document.querySelector("#ask").open);
        await page.waitForFunction(() => /^move \d+/.test(document.querySelector("#events")?.textContent.replace(/^[\d:]+/, "")) || document.querySelectorAll("#moves-rows tr").length > 0, null, { timeout: 30_000 });
        if (screenshots) await page.waitForTimeout(200);
        let clicks = 0;
        const click = async (locator) => {
          clicks += 1;
          await locator.click();
        };
        // The list stands still under the pointer: the move has to be there before.
        await page.waitForFunction(() => /move \d+: .* is to be emptied/.test(document.querySelector("#events")?.textContent), null, { timeout: 30_000 });
        await page.locator("#decided").hover();
        await click(page.locator("#events li", { hasText: /move \d+: .* is to be emptied/ }).first().getByRole("button", { name: /^Why move/ }));
        await page.waitForFunction(() => document.querySelector("#why-text ol")?.textContent.includes("is to be emptied"), null, { timeout: 10_000 });
        const reason = await text(page, "#why-text ol li");
        await page.keyboard.press("Escape");
        await eventually("the server is empty", async () => (await cluster.get("/v1/status")).servers[server - 1].state === "drained", 60_000);
        await page.waitForFunction(() => document.querySelectorAll("#servers-rows tr")[2].cells[1].textContent.startsWith("drained"));
        return `${clicks} click: ${reason.slice(0, 90)}`;
      } finally {
        await page.keyboard.press("Escape");
        await cluster.call("DELETE", `/v1/servers/${server}/drain`);
      }
    });

    await check("keyboard: every control, and the map by arrows", async () => {
      const reached = new Set();
      await page.locator("body").click({ position: { x: 5, y: 5 } });
      await page.evaluate(() => document.activeElement?.blur());
      for (let presses = 0; presses < 80; presses++) {
        // The click was behind the first of them.
        await page.keyboard.press(presses === 0 ? "Shift+Tab" : "Tab");
        reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.getAttribute("role") || document.activeElement.tagName));
      }
      for (const name of ["skip", "what", "theme", "filter", "decided"]) if (!reached.has(name)) throw new Error(`${name} is not reached: ${[...reached]}`);
      await page.locator('#map [tabindex="0"]').focus();
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowRight");
      const told = await text(page, "#cell");
      if (!/^server 2, worker 1: busy /.test(told)) throw new Error(told);
    });

    await check("hit ratio by size: promised as the API has it", async () => {
      await eventually("servers tell their curves", async () => (await cluster.get("/v1/forecast")).servers_told === 3, 60_000);
      // What the page itself is answered: a minute later all is different.
      const asked = await page.waitForResponse((answer) => answer.url().includes("/v1/forecast"), { timeout: 40_000 });
      const forecast = await asked.json();
      const percent = (part) => `${(100 * part).toFixed(1)}%`;
      const expected = forecast.sizes.map(({ servers, hit_ratio }) => [servers === 3 ? "3, now" : String(servers), percent(hit_ratio), servers === 3 ? percent(forecast.hit_ratio_measured ?? forecast.hit_ratio) : "–"]);
      await page.waitForFunction((promised) => document.querySelectorAll("#sizes-rows tr")[2]?.cells[1].textContent === promised, expected[2][1], { timeout: 5000 });
      const shown = await cellsOf(page, "#sizes-rows");
      same(shown.map((row) => [row[0], row[1], row[4]]), expected, "sizes");
      return `now ${shown[2][1]} promised, ${shown[2][4]} measured`;
    });

    await check("over time: two hours, a day, and the theme's button", async () => {
      const points = () => page.evaluate(() => document.querySelector("#charts figure [role=img]").getAttribute("aria-label"));
      for (const span of ["2 hours", "a day", "10 minutes"]) {
        const answered = page.waitForResponse((answer) => answer.url().includes("/v1/history") && answer.ok());
        await page.getByLabel(span).check();
        const { step, unix, reads } = await (await answered).json();
        if (!(unix.length > 0 && reads.length === unix.length)) throw new Error(`${span}: no points`);
        same(step, { "10 minutes": 1, "2 hours": 10, "a day": 60 }[span], span);
      }
      if (!/^Keys a second, now: read [\d,]+, written/.test(await points())) throw new Error(await points());
      const themes = [];
      for (let clicks = 0; clicks < 3; clicks++) {
        await page.locator("#theme").click();
        themes.push(await text(page, "#theme"));
      }
      same(themes, ["Theme: light", "Theme: dark", "Theme: system"], "themes");
    });

    for (const theme of ["light", "dark"]) {
      for (const width of [1280, 390]) {
        await check(`${theme}, ${width} px wide: accessible, and nothing sticks out`, async () => {
          const one = await open(browser, cluster.url, { viewport: { width, height: 900 }, colorScheme: theme });
          await one.waitForFunction(() => document.querySelectorAll("#charts figure").length === 5 && document.querySelectorAll("#hot-rows tr").length > 3);
          await one.waitForTimeout(1500);
          const sticks = await one.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          if (sticks > 0) throw new Error(`${sticks} px stick out`);
          const told = await accessible(one, theme);
          if (screenshots) await one.screenshot({ path: join(screenshots, `${width === 1280 ? "wide" : "narrow"}-${theme}.png`) });
          same(one.wrong, [], "what was said");
          await one.context().close();
          return told;
        });
      }
    }

    await check("a server's death is seen within 2 s", async () => {
      await eventually("all serve", async () => (await cluster.get("/v1/status")).servers.every((one) => one.state === "serving"), 60_000);
      await page.waitForFunction(() => [...document.querySelectorAll("#servers-rows tr")].every((row) => row.cells[1].textContent === "serving"));
      const begun = Date.now();
      cluster.servers.get(2).child.kill("SIGKILL");
      await page.waitForFunction(() => document.querySelectorAll("#servers-rows tr")[1].cells[1].textContent !== "serving", null, { timeout: 20_000, polling: 50 });
      const took = Date.now() - begun;
      const state = await page.evaluate(() => document.querySelectorAll("#servers-rows tr")[1].cells[1].textContent);
      if (took > 2000) throw new Error(`${took} ms: ${state}`);
      return `${took} ms: ${state}`;
    });

    await check("a coordinator that says nothing, and one that has gone", async () => {
      cluster.coordinator.kill("SIGSTOP");
      await page.waitForFunction(() => document.querySelector("#connection").textContent.startsWith("no answer for") && !document.querySelector("#trouble").hidden, null, { timeout: 20_000 });
      cluster.coordinator.kill("SIGCONT");
      await page.waitForFunction(() => document.querySelector("#connection").textContent === "live" && document.querySelector("#trouble").hidden, null, { timeout: 20_000 });
      same(page.wrong, [], "what was said before");
      cluster.coordinator.kill("SIGKILL");
      await page.waitForFunction(() => document.querySelector("#trouble").textContent.includes("Nothing comes from the coordinator"), null, { timeout: 20_000 });
      const told = await text(page, "#trouble");
      if (!/The numbers are \d+ s old/.test(told)) throw new Error(told);
    });
    await page.context().close();

    await check("64 servers of 64 workers, and 10,240 hot keys", async () => {
      const large = new Cluster(program);
      try {
        await simulate(large, 64, 64, 160);
        const one = await open(browser, large.url);
        await one.waitForFunction(() => document.querySelectorAll("#map [role=gridcell]").length === 4096);
        same(await one.locator("#hot-rows tr").count(), 64, "rows of hot keys");
        const note = await text(one, "#hot-note");
        if (!/the hottest 64 of \d,\d+/.test(note)) throw new Error(note);
        // Frames are shown as they come: it does not fall behind.
        const begun = await one.evaluate(() => Number(document.documentElement.dataset.frame));
        await one.waitForFunction((frame) => Number(document.documentElement.dataset.frame) >= frame + 4, begun, { timeout: 8000 });
        const told = await accessible(one, "large");
        if (screenshots) await one.screenshot({ path: join(screenshots, "large.png") });
        same(one.wrong, [], "what was said");
        await one.context().close();
        return `${note.slice(-26)} ${told}`;
      } finally {
        large.end();
      }
    });

    await check("a server alone shows itself", async () => {
      const [port, http] = [await freePort(), await freePort()];
      cluster.start(["serve", "-p", String(port), "-U", "0", "-t", "2", "-m", "64", "--http", String(http), "--control", "off"]);
      const url = `http://127.0.0.1:${http}`;
      await eventually("it serves its page", () => fetch(url).then((answer) => answer.ok).catch(() => false));
      await exchange(port, "set k 0 0 1\r\nv\r\n");
      askers.push(new Asker(port, Array(100).fill(Buffer.from("mg k v\r\n"))));
      const one = await open(browser, url);
      await one.waitForFunction(() => document.querySelector("#servers-rows tr")?.cells[1].textContent === "serving");
      await one.waitForFunction(() => document.querySelector("#hot-rows .key")?.textContent === "k", null, { timeout: 20_000 });
      await one.waitForFunction(() => Number(document.querySelector("#servers-rows tr").cells[3].textContent.replace(/,/g, "")) > 0);
      await one.locator("#hot-rows .key").first().click();
      await one.waitForFunction(() => document.querySelector("#found-text pre")?.textContent.includes("key k: hash "));
      const told = await accessible(one, "alone");
      same(one.wrong, [], "what was said");
      if (screenshots) await one.screenshot({ path: join(screenshots, "alone.png"), fullPage: true });
      return told;
    });
  } finally {
    askers.forEach((one) => one.stop());
    await browser.close();
    cluster.end();
  }
}

await main();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
