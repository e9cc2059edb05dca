//! Commands for operators.

use super::*;

impl Generator {
    pub(super) fn administration(&mut self) -> Command {
        let choices: &[(&'static str, &[&str])] = &[
            ("version", &["version", "version x"]),
            (
                "verbosity",
                &[
                    "verbosity 0",
                    " verbosity 1",
                    "verbosity",
                    "verbosity x",
                    "verbosity +1",
                    "verbosity 1 2 3",
                ],
            ),
            (
                "flush_all",
                &["flush_all", "flush_all 0", "flush_all -1", "flush_all x", "flush_all 0 1 2"],
            ),
            (
                "stats",
                &[
                    "stats",
                    "stats settings",
                    "stats reset",
                    "stats nonsense",
                    "stats detail on",
                    "stats detail off",
                    "stats detail",
                    "stats detail x",
                    "stats cachedump",
                    "stats cachedump 1",
                    "stats cachedump x 1",
                    "stats cachedump 1 x",
                    "stats cachedump 64 1",
                    "stats cachedump 99 1",
                    "stats r",
                    "stats det of",
                    "stats detail ox",
                    "stats se",
                    "stats settingss",
                    "stats sizes_enable",
                    "stats extstore",
                    " stats",
                ],
            ),
            (
                "slabs",
                &[
                    "slabs",
                    "slabs automove 0",
                    "slabs automove 1",
                    "slabs automove 9",
                    "slabs automove x",
                    "slabs reassign x y",
                    "slabs automove ratio 0.8",
                    "slabs automove ratio x",
                    "slabs automove freeratio 0.01",
                    "slabs automove f x",
                    "slabs automove window 10",
                    "slabs automove window 2",
                    "slabs automove window 1",
                    "slabs automove w",
                    "slabs a r 0.8",
                    "slabs r 1 2",
                    "slabs x",
                ],
            ),
            (
                "lru",
                &[
                    "lru",
                    "lru tune 10 25 0.1 2.0",
                    "lru tune 50 40 0.1 2.0",
                    "lru tune 10 25 0 2.0",
                    "lru tune x 1 1 1",
                    "lru t 10 25 0.1 2.0 more",
                    "lru tune 10 25 0.1 2.000000000000000000000000000000000",
                    "lru x",
                ],
            ),
            (
                "lru_crawler",
                &[
                    "lru_crawler",
                    "lru_crawler x",
                    "lru_crawler tocrawl 0",
                    "lru_crawler tocrawl x",
                    "lru_crawler sleep 100",
                    "lru_crawler sleep 1000001",
                    "lru_crawler sleep 4294967295",
                    "lru_crawler sleep x",
                    "lru_crawler crawl",
                    "lru_crawler s 100",
                    "lru_crawler sleep\0x 100",
                    "lru_crawler sl\0x 100",
                    "lru_crawler sleep 100 200",
                    "lru_crawler crawl nonsense",
                    "lru_crawler crawl x,1",
                ],
            ),
            (
                "cache_memlimit",
                &[
                    "cache_memlimit",
                    "cache_memlimit 256",
                    "cache_memlimit 300",
                    "cache_memlimit x",
                    "cache_memlimit 7",
                    "cache_memlimit 1000000001",
                    "cache_memlimit 1 2 3",
                ],
            ),
            (
                "shutdown",
                &["shutdown", "shutdown graceful", "shutdown x", "shutdown 1 2 3", " shutdown"],
            ),
        ];
        let (row, lines) = *self.random.pick(choices);
        let line = *self.random.pick(lines);
        if row == "flush_all" && !line.contains(['x', '2']) && self.random.percent(50) {
            // Rare enough that items live between.
            return self.fetch();
        }
        let takes_noreply = !matches!(row, "version" | "stats");
        if takes_noreply {
            return self.simple(row, None, line.to_string());
        }
        line_of(row, &format!("{line}\r\n"), false)
    }
}
