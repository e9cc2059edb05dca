//! The testbed's files: `parts.csv`, and per part and mode `PART-MODE.csv` and `PART-MODE-cpu.csv`.

use std::fs;
use std::path::Path;

/// The balance may take so many seconds to come: 4 epochs of patience and 3 of work, a second each, and slack.
const SETTLE_SECONDS: f64 = 10.0;

pub struct Part {
    pub name: String,
    /// Requests per second.
    pub offered: f64,
    /// What one worker bears.
    pub one: f64,
    runs: Vec<Run>,
}

pub struct Run {
    mode: String,
    pub rows: Vec<Row>,
    cpu: Vec<Cpu>,
    settle_seconds: f64,
}

/// Seconds, and what was measured then.
pub type Points = Vec<(f64, f64)>;

/// A second of a run.
pub struct Row {
    pub second: f64,
    pub served: f64,
    pub p99_ms: f64,
    /// Operations by worker; none where clients do not know the workers.
    pub workers: Vec<f64>,
}

/// What each worker's thread had got by then, and for how long its group had been throttled.
struct Cpu {
    second: f64,
    cpu_ns: Vec<f64>,
    throttled_ns: Vec<f64>,
}

pub fn parts(folder: &Path) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for cells in table(&folder.join("parts.csv"))?.1 {
        let [name, offered, _, one] = &cells[..] else { return Err(format!("{cells:?}")) };
        let mut runs = Vec::new();
        for mode in ["off", "on", "memcached"] {
            let path = |end: &str| folder.join(format!("{name}-{mode}{end}.csv"));
            if path("").exists() {
                runs.push(run(mode, &path(""), &path("-cpu"), name == "shift")?);
            }
        }
        parts.push(Part { name: name.clone(), offered: number(offered)?, one: number(one)?, runs });
    }
    Ok(parts)
}

fn run(mode: &str, over_time: &Path, cpu: &Path, shifts: bool) -> Result<Run, String> {
    let (columns, lines) = table(over_time)?;
    let column = |name: &str| {
        let found = columns.iter().position(|column| column == name);
        found.ok_or_else(|| format!("{}: no column {name}", over_time.display()))
    };
    let (second, served, p99) =
        (column("second")?, column("requests_per_second")?, column("p99_us")?);
    let first_worker = columns.iter().position(|column| column == "worker_0");
    let mut rows = Vec::new();
    for cells in lines {
        let workers = first_worker.map_or(&[][..], |first| &cells[first..]);
        rows.push(Row {
            second: number(&cells[second])?,
            served: number(&cells[served])?,
            // Nothing was answered: no point in the plot.
            p99_ms: number(&cells[p99]).map_or(f64::NAN, |us| us / 1e3),
            workers: workers.iter().map(|cell| number(cell)).collect::<Result<_, _>>()?,
        });
    }
    let mut samples = Vec::new();
    for cells in table(cpu)?.1 {
        let all = cells.iter().map(|cell| number(cell)).collect::<Result<Vec<f64>, _>>()?;
        let workers = (all.len() - 1) / 2;
        let (cpu_ns, throttled_ns) = all[1..].split_at(workers);
        samples.push(Cpu {
            second: all[0],
            cpu_ns: cpu_ns.to_vec(),
            throttled_ns: throttled_ns.to_vec(),
        });
    }
    // What shifts all the time is judged over all the time.
    let settle_seconds = if shifts { 0.0 } else { SETTLE_SECONDS };
    Ok(Run { mode: mode.into(), rows, cpu: samples, settle_seconds })
}

impl Part {
    pub fn run(&self, mode: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.mode == mode)
    }

    /// What four equal workers serve of it.
    pub fn ideal(&self) -> f64 {
        self.offered.min(4.0 * self.one)
    }
}

impl Run {
    /// By worker, its operations in each second; none where clients do not know the workers.
    pub fn operations(&self) -> Vec<Points> {
        let workers = self.rows.first().map_or(0, |row| row.workers.len());
        let of =
            |worker: usize| self.rows.iter().map(|row| (row.second, row.workers[worker])).collect();
        (0..workers).map(of).collect()
    }

    /// By worker, how much of a core its thread got between two samples.
    pub fn cores(&self) -> Vec<Points> {
        let workers = self.cpu.first().map_or(0, |cpu| cpu.cpu_ns.len());
        let of = |worker: usize| {
            let share = |pair: &[Cpu]| {
                let [from, to] = [&pair[0], &pair[1]];
                let seconds = to.second - from.second;
                (to.second, (to.cpu_ns[worker] - from.cpu_ns[worker]) / 1e9 / seconds)
            };
            self.cpu.windows(2).map(share).collect()
        };
        (0..workers).map(of).collect()
    }

    fn settled(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.second > self.settle_seconds)
    }

    /// Requests per second.
    pub fn served(&self) -> Option<f64> {
        mean(self.settled().map(|row| row.served).collect())
    }

    /// The median second's.
    pub fn p99_ms(&self) -> Option<f64> {
        let mut all: Vec<f64> =
            self.settled().map(|row| row.p99_ms).filter(|ms| ms.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// Max / average of the workers' operations.
    pub fn imbalance(&self) -> Option<f64> {
        let workers = self.rows.first()?.workers.len();
        let sum = |worker: usize| self.settled().map(|row| row.workers[worker]).sum();
        max_over_average((0..workers).map(sum).collect())
    }

    /// The second from which on the workers were even for some seconds.
    pub fn even_after(&self, even: f64, in_a_row: usize) -> Option<f64> {
        let is_even =
            |row: &Row| max_over_average(row.workers.clone()).is_some_and(|ratio| ratio <= even);
        let run = self.rows.windows(in_a_row).find(|rows| rows.iter().all(is_even))?;
        Some(run[0].second)
    }

    pub fn cpu_imbalance(&self) -> Option<f64> {
        let (from, to) = self.cpu_window()?;
        max_over_average(to.cpu_ns.iter().zip(&from.cpu_ns).map(|(to, from)| to - from).collect())
    }

    /// The share of the time for which the most throttled worker was.
    pub fn throttled(&self) -> Option<f64> {
        let (from, to) = self.cpu_window()?;
        let shares = to.throttled_ns.iter().zip(&from.throttled_ns);
        let shares = shares.map(|(until, since)| (until - since) / 1e9 / (to.second - from.second));
        shares.max_by(f64::total_cmp)
    }

    fn cpu_window(&self) -> Option<(&Cpu, &Cpu)> {
        let from = self.cpu.iter().find(|cpu| cpu.second >= self.settle_seconds)?;
        Some((from, self.cpu.last()?)).filter(|(from, to)| to.second > from.second)
    }
}

fn mean(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn max_over_average(values: Vec<f64>) -> Option<f64> {
    let max = values.iter().copied().max_by(f64::total_cmp)?;
    let average = mean(values)?;
    (average > 0.0).then(|| max / average)
}

fn number(cell: &str) -> Result<f64, String> {
    cell.parse().map_err(|_| format!("{cell:?} is no number"))
}

/// Columns and rows of a file without quoted commas.
fn table(path: &Path) -> Result<(Vec<String>, Vec<Vec<String>>), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect());
    let columns: Vec<String> = lines.next().ok_or_else(|| format!("{}: empty", path.display()))?;
    let rows: Vec<Vec<String>> = lines.collect();
    match rows.iter().find(|row| row.len() != columns.len()) {
        Some(row) => Err(format!("{}: {row:?} under {columns:?}", path.display())),
        None => Ok((columns, rows)),
    }
}
