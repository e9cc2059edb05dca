//! The screen: 80 columns by 24 lines show everything; more lines show more workers and keys. What is printed as text
//! has all workers, the lists one below the other, and keys in full.
//!
//! ```text
//!   server, version, uptime
//!   rate, hits, latency
//!   memory, items, connections
//!   a bar per worker
//!   hottest cachelets │ hottest keys
//! ```

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::reading::{Copied, Key, Kind};
use crate::view::{View, WorkerView};

/// All is seen on so many columns, whatever the digits.
const COLUMNS: usize = 80;

const HEAD_LINES: u16 = 4;
/// A title and ten rows under a heading.
const LISTS_LINES_MIN: u16 = 12;
const CACHELETS_COLUMNS: u16 = 30;
const BAR_COLUMNS: usize = 30;
/// From this load on the balancer looks for somewhere else (its default).
const BUSY_HIGH: f64 = 0.75;
const BUSY_MIDDLE: f64 = 0.5;

/// Whether there may be colours; what they say, the text says too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    Colours,
    Plain,
}

impl Palette {
    fn of(self, colour: Color) -> Style {
        match self {
            Palette::Colours => Style::new().fg(colour),
            Palette::Plain => Style::new(),
        }
    }
}

pub fn draw(frame: &mut Frame<'_>, view: Option<&View>, palette: Palette) {
    let Some(view) = view else {
        return frame.render_widget("looking...", frame.area());
    };
    let room = frame.area().height.saturating_sub(HEAD_LINES + LISTS_LINES_MIN);
    let workers = (view.workers.len().max(1) as u16 + 1).min(room.max(2));
    let [head, workers, lists] = Layout::vertical([
        Constraint::Length(HEAD_LINES),
        Constraint::Length(workers),
        Constraint::Min(0),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(view)), head);
    frame.render_widget(Paragraph::new(worker_lines(view, workers.height, palette)), workers);
    if view.kind == Kind::Server {
        let [cachelets, keys] =
            Layout::horizontal([Constraint::Length(CACHELETS_COLUMNS), Constraint::Min(0)])
                .areas(lists);
        frame.render_widget(Paragraph::new(cachelet_lines(view)), cachelets);
        frame.render_widget(Paragraph::new(key_lines(view, keys)), keys);
    } else {
        frame.render_widget(Paragraph::new(key_lines(view, lists)), lists);
    }
}

/// The same as text: nothing is left out or cut.
pub fn text(view: &View) -> String {
    let mut lines = vec![title(whose(view, usize::MAX))];
    lines.extend(rates(view));
    lines.push("".into());
    lines.extend(worker_lines(view, u16::MAX, Palette::Plain));
    if view.kind == Kind::Server {
        lines.push("".into());
        lines.extend(cachelet_lines(view));
    }
    lines.push("".into());
    let of_keys = Columns::of(view);
    lines.push(title(format!("{}  KEY", of_keys.head())));
    let row = |key: &Key| Line::raw(format!("{}  {}", of_keys.row(key), key.key));
    lines.extend(view.keys.iter().map(row));
    let line = |line: Line<'_>| line.to_string().trim_end().to_owned() + "\n";
    lines.into_iter().map(line).collect()
}

fn title(text: String) -> Line<'static> {
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

/// Server, version and uptime; a long name is shortened to so many columns.
fn whose(view: &View, columns: usize) -> String {
    let kind = match view.kind {
        Kind::Memcached => "memcached",
        Kind::Server => "MBal as memcached",
        Kind::Proxy => "MBal's proxy as memcached",
    };
    let version = shortened(&view.version, 16);
    let rest = format!("  {kind} {version}  up {}", age(view.uptime));
    shortened(&view.server, columns.saturating_sub(rest.len())) + &rest
}

fn rates(view: &View) -> [Line<'static>; 2] {
    let hits = view.hit_ratio.map_or("-".into(), |ratio| format!("{:.2}%", ratio * 100.0));
    let us = |us: Option<f64>| us.map_or("-".into(), time);
    let requests = format!(
        "{} requests/s ({} gets, {} sets)  hits {hits}  p50 {}  p99 {}",
        count(view.requests),
        count(view.gets),
        count(view.sets),
        us(view.p50_p99_us.map(|[p50, _]| p50)),
        us(view.p50_p99_us.map(|[_, p99]| p99))
    );
    if view.kind == Kind::Proxy {
        let [up, down, ejected] = view.upstreams;
        let of = if ejected > 0 { format!(", {ejected} ejected") } else { String::new() };
        let pool = format!(
            "upstreams: {up} up, {down} down{of}  {} connections",
            count(view.connections as f64)
        );
        return [requests.into(), pool.into()];
    }
    // Stock memcached may tell of a limit of 0, which is none.
    let full = 100.0 * view.bytes as f64 / view.limit_bytes as f64;
    let full = if full < 1000.0 { format!(" ({full:.0}%)") } else { String::new() };
    let memory = format!(
        "{} items, {} of {}{full}  {} evicted/s  {} connections",
        count(view.items as f64),
        bytes(view.bytes),
        bytes(view.limit_bytes),
        count(view.evictions),
        count(view.connections as f64)
    );
    [requests.into(), memory.into()]
}

fn head_lines(view: &View) -> Vec<Line<'static>> {
    const HINT: &str = "  q ends";
    const WIDTH: usize = COLUMNS - HINT.len();
    let first = title(format!("{:<WIDTH$}{HINT}", whose(view, WIDTH)));
    std::iter::once(first).chain(rates(view)).collect()
}

fn worker_lines(view: &View, lines: u16, palette: Palette) -> Vec<Line<'static>> {
    if view.kind == Kind::Proxy {
        return Vec::new();
    }
    if view.workers.is_empty() {
        return vec![title("WORKERS".into()), "  this server does not tell of its workers".into()];
    }
    let shown = lines.saturating_sub(1) as usize;
    let hidden = view.workers.len().saturating_sub(shown);
    let more = if hidden > 0 { format!(" (the busiest; {hidden} more)") } else { String::new() };
    let mut order: Vec<(usize, &WorkerView)> = view.workers.iter().enumerate().collect();
    if hidden > 0 {
        order.sort_by(|(_, a), (_, b)| b.busy.total_cmp(&a.busy));
    }
    let bar = |(id, worker): (usize, &WorkerView)| {
        let full = (worker.busy * BAR_COLUMNS as f64).round() as usize;
        let colour = match worker.busy {
            high if high >= BUSY_HIGH => Color::Red,
            middle if middle >= BUSY_MIDDLE => Color::Yellow,
            _ => Color::Green,
        };
        Line::from(vec![
            Span::raw(format!("{id:>4} [")),
            Span::styled("|".repeat(full), palette.of(colour)),
            Span::raw(format!(
                "{}] {:>3.0}% busy {:>9}/s {:>3.0}% neighbours'",
                " ".repeat(BAR_COLUMNS - full),
                worker.busy * 100.0,
                count(worker.requests),
                worker.neighbour * 100.0
            )),
        ])
    };
    let bars = order.into_iter().take(shown).map(bar);
    std::iter::once(title(format!("WORKERS{more}"))).chain(bars).collect()
}

fn cachelet_lines(view: &View) -> Vec<Line<'static>> {
    let row = |one: &crate::reading::Cachelet| {
        let (id, owner, rate) = (&one.cachelet, one.owner, count(one.rate as f64));
        Line::raw(format!("{id:>8} {owner:>6} {rate:>7} {:>5.1}%", one.share))
    };
    let head = title("CACHELET WORKER  KEYS/S  SHARE".into());
    std::iter::once(head).chain(view.cachelets.iter().take(10).map(row)).collect()
}

fn key_lines(view: &View, area: Rect) -> Vec<Line<'static>> {
    let columns = Columns::of(view);
    let head = columns.head();
    let width = (area.width as usize).saturating_sub(head.len() + 2).max(8);
    let row = |one: &Key| {
        Line::raw(format!(" {:<width$} {}", shortened(&one.key, width), columns.row(one)))
    };
    let head = title(format!(" {:<width$} {head}", "KEY"));
    std::iter::once(head).chain(view.keys.iter().map(row)).collect()
}

/// What is told of a key: requests, reads to writes in percent, bytes of the value; where hot keys are copied, how many copies and its state.
#[derive(Clone, Copy)]
enum Columns {
    Plain,
    Copied,
}

impl Columns {
    fn of(view: &View) -> Columns {
        match view.keys.iter().any(|key| key.copied.is_some()) {
            true => Columns::Copied,
            false => Columns::Plain,
        }
    }

    fn head(self) -> String {
        match self {
            Columns::Plain => format!("{:>9} {:>10} {:>9}", "REQUESTS", "READ:WRITE", "VALUE"),
            Columns::Copied => {
                format!("{:>9} {:>5} {:>9} {:<11}", "REQUESTS", "R:W", "VALUE", "COPIES")
            }
        }
    }

    fn row(self, key: &Key) -> String {
        let all = key.reads.saturating_add(key.writes);
        let reads = (100.0 * key.reads as f64 / all.max(1) as f64).round();
        let mix = format!("{reads:.0}:{:.0}", 100.0 - reads);
        let requests = count(all as f64);
        let value = key.value_bytes.map_or("-".into(), bytes);
        match (self, &key.copied) {
            (Columns::Plain, _) => format!("{requests:>9} {mix:>10} {value:>9}"),
            (Columns::Copied, None) => format!("{requests:>9} {mix:>5} {value:>9} {:11}", ""),
            (Columns::Copied, Some(Copied { state, copies })) => {
                format!("{requests:>9} {mix:>5} {value:>9} {copies:>3} {state:<7}")
            }
        }
    }
}

/// The beginning and the end of what is too long.
fn shortened(key: &str, width: usize) -> String {
    let characters: Vec<char> = key.chars().collect();
    if characters.len() <= width {
        return key.to_owned();
    }
    let end = (width - 2) / 2;
    let start = width - 2 - end;
    let part = |range: std::ops::Range<usize>| characters[range].iter().collect::<String>();
    part(0..start) + ".." + &part(characters.len() - end..characters.len())
}

/// Up to five digits, or four characters and a unit.
fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P", "E"], 99_999.0)
}

/// Seven characters at most.
fn bytes(number: u64) -> String {
    scaled(number as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], 1023.0)
}

fn scaled(number: f64, step: f64, units: &[&str], plain_max: f64) -> String {
    if number.round() <= plain_max {
        return format!("{number:.0}{}", units[0]);
    }
    let mut scaled = number;
    let mut unit = 0;
    while scaled.round() >= step && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    let digits = if scaled < 9.95 { 2 } else { usize::from(scaled < 99.5) };
    format!("{scaled:.digits$}{}", units[unit])
}

/// Seven characters at most.
fn time(us: f64) -> String {
    match us {
        us if us >= 999.5e6 => ">999 s".into(),
        us => scaled(us, 1000.0, &[" us", " ms", " s"], 999.0),
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Cachelet;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn key(key: &str, reads: u64, writes: u64, value_bytes: u64) -> Key {
        Key { key: key.into(), reads, writes, value_bytes: Some(value_bytes), copied: None }
    }

    fn busy() -> View {
        let cachelet = |cachelet: &str, owner, rate, share| Cachelet {
            cachelet: cachelet.into(),
            owner,
            rate,
            share,
            ..Cachelet::default()
        };
        View {
            server: "127.0.0.1:11211".into(),
            version: "1.6.45".into(),
            kind: Kind::Server,
            uptime: 3725,
            requests: 123_456.0,
            gets: 112_000.0,
            sets: 11_456.0,
            evictions: 12.0,
            hit_ratio: Some(0.98765),
            p50_p99_us: Some([12.5, 1234.0]),
            connections: 50,
            items: 1_234_567,
            bytes: 700 << 20,
            limit_bytes: 1 << 30,
            workers: vec![
                WorkerView { busy: 0.8, requests: 100_000.0, neighbour: 0.25 },
                WorkerView { busy: 0.1, requests: 23_456.0, neighbour: 0.0 },
            ],
            cachelets: vec![cachelet("8800/5", 0, 60_000, 48.6), cachelet("1800/5", 1, 999, 0.8)],
            keys: vec![key("user:1", 50_000, 500, 300), key(&"k".repeat(80), 3, 1, 70_000)],
            ..View::default()
        }
    }

    fn screen(view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a buffer");
        terminal.draw(|frame| draw(frame, Some(view), Palette::Plain)).expect("a buffer");
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..80).map(|column| buffer[(column, row)].symbol()).collect();
        let lines: Vec<String> = (0..24).map(line).collect();
        lines
            .iter()
            .map(|line| line.trim_end())
            .collect::<Vec<_>>()
            .join("\n")
            .trim_end()
            .to_owned()
    }

    #[test]
    fn all_is_on_eighty_columns_and_twenty_four_lines() {
        let expected = "\
127.0.0.1:11211  MBal as memcached 1.6.45  up 1h02m                       q ends
123k requests/s (112k gets, 11456 sets)  hits 98.77%  p50 12 us  p99 1.23 ms
1.23M items, 700MiB of 1.00GiB (68%)  12 evicted/s  50 connections

WORKERS
   0 [||||||||||||||||||||||||      ]  80% busy      100k/s  25% neighbours'
   1 [|||                           ]  10% busy     23456/s   0% neighbours'
CACHELET WORKER  KEYS/S  SHARE KEY                 REQUESTS READ:WRITE     VALUE
  8800/5      0   60000  48.6% user:1                 50500       99:1      300B
  1800/5      1     999   0.8% kkkkkkkk..kkkkkkkk         4      75:25   68.4KiB";
        assert_eq!(screen(&busy()), expected);
    }

    #[test]
    fn text_leaves_nothing_out() {
        let long = "kkkkkkkkkk".repeat(8);
        let expected = format!(
            "\
127.0.0.1:11211  MBal as memcached 1.6.45  up 1h02m
123k requests/s (112k gets, 11456 sets)  hits 98.77%  p50 12 us  p99 1.23 ms
1.23M items, 700MiB of 1.00GiB (68%)  12 evicted/s  50 connections

WORKERS
   0 [||||||||||||||||||||||||      ]  80% busy      100k/s  25% neighbours'
   1 [|||                           ]  10% busy     23456/s   0% neighbours'

CACHELET WORKER  KEYS/S  SHARE
  8800/5      0   60000  48.6%
  1800/5      1     999   0.8%

 REQUESTS READ:WRITE     VALUE  KEY
    50500       99:1      300B  user:1
        4      75:25   68.4KiB  {long}
"
        );
        assert_eq!(text(&busy()), expected);
        let workers = vec![WorkerView::default(); 64];
        let server = "a-host-with-a-long-name.".repeat(4);
        let many = text(&View { workers, server: server.clone(), ..busy() });
        assert!(many.starts_with(&server) && many.contains("\n  63 ["), "{many}");
    }

    /// As [`busy`], where hot keys are copied.
    fn hot() -> View {
        let copied = |state: &str, copies| Some(Copied { state: state.into(), copies });
        let mut view = busy();
        view.keys[0].copied = copied("hot", 2);
        view.keys[1].copied = copied("cold", 0);
        view.keys.push(Key { copied: copied("pending", 255), ..key("k", 9, 0, 1023) });
        view
    }

    #[test]
    fn keys_tell_of_their_copies_where_hot_keys_are_copied() {
        let expected = "\
CACHELET WORKER  KEYS/S  SHARE KEY          REQUESTS   R:W     VALUE COPIES
  8800/5      0   60000  48.6% user:1          50500  99:1      300B   2 hot
  1800/5      1     999   0.8% kkkkk..kkkk         4 75:25   68.4KiB   0 cold
                               k                   9 100:0     1023B 255 pending";
        let shown = screen(&hot());
        assert!(shown.ends_with(expected), "{shown}");
        let long = "kkkkkkkkkk".repeat(8);
        let expected = format!(
            "\
 REQUESTS   R:W     VALUE COPIES       KEY
    50500  99:1      300B   2 hot      user:1
        4 75:25   68.4KiB   0 cold     {long}
        9 100:0     1023B 255 pending  k
"
        );
        assert!(text(&hot()).ends_with(&expected), "{}", text(&hot()));
    }

    #[test]
    fn eighty_columns_hold_whatever_the_digits() {
        let largest = [99_999.0, 1e3 * 99_999.0, 999_499.0, u64::MAX as f64];
        let times = [999.4, 999_499.0, 999.49e6, 1e12];
        for (number, us) in largest.into_iter().zip(times) {
            let view = View {
                server: "a-host-with-a-long-name.".repeat(4),
                version: "1.6.45-and-more-than-is-usual".into(),
                uptime: 9999 * 86_400,
                requests: number,
                gets: number,
                sets: number,
                evictions: number,
                hit_ratio: Some(1.0),
                p50_p99_us: Some([us; 2]),
                connections: number as u64,
                items: number as u64,
                bytes: number as u64,
                limit_bytes: number as u64,
                workers: vec![WorkerView { busy: 1.0, requests: number, neighbour: 1.0 }; 1024],
                cachelets: vec![Cachelet {
                    cachelet: "fffe/15".into(),
                    owner: 1023,
                    rate: number as u64,
                    share: 100.0,
                    ..Cachelet::default()
                }],
                keys: vec![key(&"k".repeat(250), number as u64, 0, number as u64)],
                ..busy()
            };
            let lists = Rect::new(0, 0, 80 - CACHELETS_COLUMNS, 12);
            let columns = |lines: Vec<Line<'_>>| lines.iter().map(Line::width).max();
            for line in head_lines(&view) {
                assert!(line.width() <= 80, "{line}");
            }
            assert!(head_lines(&view)[0].to_string().contains("  up 9999d00h"));
            assert!(columns(worker_lines(&view, 8, Palette::Plain)) <= Some(80));
            assert!(columns(cachelet_lines(&view)) <= Some(CACHELETS_COLUMNS.into()));
            assert!(columns(key_lines(&view, lists)) <= Some(lists.width.into()));
            let copied = Some(Copied { state: "pending".into(), copies: 255 });
            let keys = vec![Key { copied, ..view.keys[0].clone() }];
            let view = View { keys, ..view };
            assert!(columns(key_lines(&view, lists)) <= Some(lists.width.into()));
        }
    }

    #[test]
    fn memcached_tells_less() {
        let view = View {
            kind: Kind::Memcached,
            workers: Vec::new(),
            cachelets: Vec::new(),
            p50_p99_us: None,
            hit_ratio: None,
            ..busy()
        };
        let text = text(&view);
        assert!(text.contains("hits -  p50 -  p99 -"), "{text}");
        assert!(text.contains("memcached 1.6.45") && !text.contains("CACHELET"), "{text}");
        assert!(text.contains(&"k".repeat(20)), "{text}");
    }

    #[test]
    fn a_proxy_has_upstreams_rather_than_memory_and_workers() {
        let copied = Some(Copied { state: "hot".into(), copies: 2 });
        let view = View {
            kind: Kind::Proxy,
            upstreams: [2, 1, 0],
            workers: Vec::new(),
            cachelets: Vec::new(),
            keys: vec![Key { value_bytes: None, copied, ..key("user:1", 90, 10, 0) }],
            ..busy()
        };
        let text = text(&view);
        assert!(text.contains("MBal's proxy as memcached 1.6.45"), "{text}");
        assert!(text.contains("\nupstreams: 2 up, 1 down  50 connections\n"), "{text}");
        assert!(text.contains("      100 90:10         -   2 hot      user:1\n"), "{text}");
        assert!(!text.contains("WORKERS") && !text.contains("CACHELET"), "{text}");
        assert!(screen(&view).contains("user:1"));
    }

    #[test]
    fn with_more_workers_than_lines_the_busiest_are_shown() {
        let mut view = busy();
        view.workers = (0..64)
            .map(|id| WorkerView { busy: f64::from(id) / 64.0, requests: 1.0, neighbour: 0.0 })
            .collect();
        let text = screen(&view);
        assert!(text.contains("WORKERS (the busiest; 57 more)\n  63 ["), "{text}");
        assert!(text.contains("user:1"), "{text}");
        assert_eq!(text.lines().count(), 4 + 8 + 3, "{text}");
    }

    fn colours(palette: Palette) -> bool {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a buffer");
        terminal.draw(|frame| draw(frame, Some(&busy()), palette)).expect("a buffer");
        let cells = terminal.backend().buffer().content();
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        assert!(colours(Palette::Colours));
        assert!(!colours(Palette::Plain));
    }

    #[test]
    fn small_terminals_show_what_fits() {
        for (columns, lines) in [(1, 1), (20, 5), (80, 6), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a buffer");
            terminal.draw(|frame| draw(frame, Some(&busy()), Palette::Colours)).expect("a buffer");
            terminal.draw(|frame| draw(frame, None, Palette::Colours)).expect("a buffer");
        }
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 99_999.0, 100_000.0, 1_234_567.0, 9.96e6, 99.6e6, 999.6e6, 1e15];
        let short = ["0", "99999", "100k", "1.23M", "10.0M", "100M", "1.00G", "1.00P"];
        assert_eq!(counts.map(count), short);
        assert_eq!([0, 1023, 1024, 1 << 30].map(bytes), ["0B", "1023B", "1.00KiB", "1.00GiB"]);
        assert_eq!(
            [12.4, 999.6, 1234.0, 2.5e6, 1e9].map(time),
            ["12 us", "1.00 ms", "1.23 ms", "2.50 s", ">999 s"]
        );
        assert_eq!([59, 61, 3661, 90_000].map(age), ["59s", "1m01s", "1h01m", "1d01h"]);
    }
}
