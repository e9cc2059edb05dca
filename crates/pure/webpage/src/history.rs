//! A day of a cluster, in three rings: seconds of the last ten minutes, tens of seconds of two hours, minutes of a day.

use std::collections::VecDeque;
use std::fmt::Write;

/// What was true of one span of time, over the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Seconds since 1970, where the span begins.
    pub unix: u32,
    /// Keys a second.
    pub reads: f32,
    pub hits: f32,
    pub writes: f32,
    /// Nanoseconds; 0 if nothing was asked.
    pub p50: f32,
    pub p99: f32,
    pub p999: f32,
    /// Bytes that are used, and that may be.
    pub used: f32,
    pub memory: f32,
    /// Over all workers.
    pub load_mean: f32,
    pub load_max: f32,
}

/// How long a ring lasts and how long each of its points is, in seconds.
pub const SPANS: [(u32, u32); 3] = [(600, 1), (7200, 10), (86_400, 60)];

/// Points of a day take so many bytes, and no more.
#[cfg(test)]
const BYTES_MAX: usize = 128 << 10;

#[derive(Debug)]
pub struct History {
    rings: [Ring; SPANS.len()],
}

impl Default for History {
    fn default() -> History {
        History { rings: SPANS.map(|(lasts, step)| Ring::new(lasts, step)) }
    }
}

impl History {
    /// Of what was seen at this point's time. Of two in the same second the later one counts; one that is older than the last is left out.
    pub fn add(&mut self, point: Point) {
        self.rings.iter_mut().for_each(|ring| ring.add(point));
    }

    /// The ring that lasts so long, as JSON by column; of none of them the shortest.
    pub fn json(&self, lasts: u32) -> String {
        let ring = self.rings.iter().find(|ring| ring.lasts == lasts);
        ring.unwrap_or(&self.rings[0]).json()
    }
}

#[derive(Debug)]
struct Ring {
    lasts: u32,
    step: u32,
    points: VecDeque<Point>,
    /// The span that is not over yet.
    open: Option<OpenSpan>,
}

/// Points of a span, and how many they were.
#[derive(Debug)]
struct OpenSpan {
    last: u32,
    count: u32,
    point: Point,
}

impl Ring {
    fn new(lasts: u32, step: u32) -> Ring {
        // Never more, so that it is never copied.
        let points = VecDeque::with_capacity((lasts / step) as usize);
        Ring { lasts, step, points, open: None }
    }

    fn add(&mut self, point: Point) {
        let begins = point.unix - point.unix % self.step;
        if let Some(open) = &mut self.open {
            if open.last > point.unix {
                return;
            }
            if open.point.unix == begins {
                open.join(point);
                return;
            }
        }
        let last = point.unix;
        let next = OpenSpan { last, count: 1, point: Point { unix: begins, ..point } };
        if let Some(open) = self.open.replace(next) {
            if self.points.len() == (self.lasts / self.step) as usize {
                self.points.pop_front();
            }
            self.points.push_back(open.point);
        }
    }

    fn json(&self) -> String {
        let oldest = self.open.as_ref().map_or(0, |open| open.last.saturating_sub(self.lasts));
        // One that is older than the ring lasts is of before a pause.
        let kept = self.points.iter().filter(|point| point.unix >= oldest);
        let points: Vec<&Point> = kept.chain(self.open.as_ref().map(|open| &open.point)).collect();
        let mut out = format!(r#"{{"seconds":{},"step":{}"#, self.lasts, self.step);
        for (name, of) in COLUMNS {
            write!(out, r#","{name}":["#).expect("a string takes all");
            for (at, point) in points.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(out, "{comma}{}", of(point)).expect("a string takes all");
            }
            out.push(']');
        }
        out.push('}');
        out
    }
}

impl Point {
    /// As an object, of the same names as the columns.
    pub(crate) fn json(&self) -> String {
        let fields = COLUMNS.map(|(name, of)| format!("\"{name}\":{}", of(self)));
        format!("{{{}}}", fields.join(","))
    }
}

type Column = fn(&Point) -> f64;

const COLUMNS: [(&str, Column); 11] = [
    ("unix", |point| point.unix.into()),
    ("reads", |point| point.reads.round().into()),
    ("hits", |point| point.hits.round().into()),
    ("writes", |point| point.writes.round().into()),
    ("p50", |point| point.p50.round().into()),
    ("p99", |point| point.p99.round().into()),
    ("p999", |point| point.p999.round().into()),
    ("used", |point| point.used.into()),
    ("memory", |point| point.memory.into()),
    ("load_mean", |point| thousandths(point.load_mean)),
    ("load_max", |point| thousandths(point.load_max)),
];

fn thousandths(number: f32) -> f64 {
    (f64::from(number) * 1e3).round() / 1e3
}

impl OpenSpan {
    /// Rates and loads are averages, the slowest requests and the busiest worker are those of the worst second.
    fn join(&mut self, next: Point) {
        if self.last == next.unix {
            // The same second, seen once more: what it adds to the average is too little to be felt.
            self.point = Point { unix: self.point.unix, ..self.weighed(next) };
            return;
        }
        (self.last, self.count) = (next.unix, self.count + 1);
        self.point = Point { unix: self.point.unix, ..self.weighed(next) };
    }

    fn weighed(&self, next: Point) -> Point {
        let (was, weight) = (&self.point, 1.0 / self.count as f32);
        let average = |was: f32, is: f32| was + (is - was) * weight;
        let worst = f32::max;
        Point {
            unix: next.unix,
            reads: average(was.reads, next.reads),
            hits: average(was.hits, next.hits),
            writes: average(was.writes, next.writes),
            p50: average(was.p50, next.p50),
            p99: worst(was.p99, next.p99),
            p999: worst(was.p999, next.p999),
            used: next.used,
            memory: next.memory,
            load_mean: average(was.load_mean, next.load_mean),
            load_max: worst(was.load_max, next.load_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(unix: u32, reads: f32) -> Point {
        Point { unix, reads, p99: reads * 10.0, ..Point::default() }
    }

    fn column(json: &str, name: &str) -> Vec<f64> {
        let told: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
        told[name].as_array().expect("a column").iter().filter_map(|one| one.as_f64()).collect()
    }

    #[test]
    fn a_day_has_so_many_points_and_no_more() {
        let mut history = History::default();
        for second in 0..200_000 {
            history.add(point(1_000_000 + second, 1.0));
        }
        for (lasts, step) in SPANS {
            let unix = column(&history.json(lasts), "unix");
            let most = (lasts / step) as usize;
            assert!((most..=most + 1).contains(&unix.len()), "{lasts}: {}", unix.len());
            assert!(unix.windows(2).all(|pair| pair[1] - pair[0] == f64::from(step)), "{lasts}");
        }
        let rings = history.rings.iter().map(|ring| ring.points.capacity() * size_of::<Point>());
        assert!(rings.sum::<usize>() <= BYTES_MAX);
    }

    #[test]
    fn a_minute_has_the_average_rate_and_the_slowest_second() {
        let mut history = History::default();
        for second in 0..60 {
            history.add(point(6000 + second, if second == 30 { 600.0 } else { 0.0 }));
        }
        let day = history.json(86_400);
        assert_eq!((column(&day, "reads"), column(&day, "p99")), (vec![10.0], vec![6000.0]));
        assert_eq!(column(&history.json(600), "reads").len(), 60);
    }

    #[test]
    fn a_clock_that_goes_back_adds_nothing_and_a_pause_leaves_what_is_older_behind() {
        let mut history = History::default();
        for unix in [5000, 5001, 4000, 5002] {
            history.add(point(unix, 1.0));
        }
        assert_eq!(column(&history.json(600), "unix"), [5000.0, 5001.0, 5002.0]);
        history.add(point(50_000, 1.0));
        assert_eq!(column(&history.json(600), "unix"), [50_000.0]);
        // A span that there is not is the shortest.
        assert_eq!(history.json(7), history.json(600));
    }
}
