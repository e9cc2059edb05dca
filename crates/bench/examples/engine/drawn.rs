//! Pictures of the figures, from nothing but their CSV: so they can be drawn again without being measured again.

use std::path::Path;

use mbal_plot::{Line, Panel, Plot, stacked};

use crate::output::{Sheet, write};

/// A figure's name, which its files have, and how it is drawn.
type Drawing = (&'static str, fn(&Sheet) -> Result<String, String>);

const DRAWINGS: [Drawing; 5] =
    [("hits", hits), ("memory", memory), ("churn", churn), ("stalls", stalls), ("tables", tables)];

/// Draws what is there, and says what is not.
pub fn run(folder: &Path) -> Result<(), String> {
    let mut drawn = 0;
    for (name, draw) in DRAWINGS {
        let path = folder.join(name).with_extension("csv");
        if !path.exists() {
            eprintln!("SKIPPED {name}: there is no {}", path.display());
            continue;
        }
        write(folder, name, "svg", &draw(&Sheet::read(&path)?)?)?;
        println!("{name}.svg");
        drawn += 1;
    }
    if drawn == 0 {
        return Err(format!("{}: none of the figures' CSV is there", folder.display()));
    }
    Ok(())
}

pub fn hits(sheet: &Sheet) -> Result<String, String> {
    let [trace, percent, policy, hit_percent] =
        sheet.places(["trace", "percent", "policy", "hit_percent"])?;
    let mut panels: Vec<Panel> = Vec::new();
    for row in &sheet.rows {
        if panels.last().is_none_or(|panel| panel.title != row[trace]) {
            panels.push(Panel { title: row[trace].clone(), lines: Vec::new() });
        }
        let lines = &mut panels.last_mut().expect("there is one").lines;
        put(lines, &row[policy], &row[percent], number(&row[hit_percent]));
    }
    let axes = ("items, % of distinct keys", "hit ratio, %", (false, false));
    Ok(plot("Hit ratio by cache size", axes, panels).svg())
}

pub fn memory(sheet: &Sheet) -> Result<String, String> {
    let [what, value_bytes, memory_mib, server, items, bytes] =
        sheet.places(["what", "value_bytes", "memory_mib", "server", "items", "bytes"])?;
    let (mut per_mib, mut beside, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    let mib = |row: &[String]| number(&row[bytes]) / f64::from(1 << 20);
    for row in &sheet.rows {
        match row[what].as_str() {
            // The others are in the table: a curve has one memory.
            "first eviction" if number(&row[memory_mib]) == 128.0 => {
                let items = number(&row[items]);
                put(&mut per_mib, &row[server], &row[value_bytes], items / mib(row));
            }
            "beside" => put(&mut beside, &row[server], &row[memory_mib], number(&row[bytes])),
            "churn" => {
                let looks = resident.iter().find(|line: &&Line| line.name == row[server]);
                let look = looks.map_or(0, |line| line.points.len());
                put(&mut resident, &row[server], &look.to_string(), mib(row));
            }
            _ => {}
        }
    }
    let alone = |title: &str, x, y, logs, lines| Plot::alone(title.into(), x, y, logs, lines);
    Ok(stacked(&[
        alone(
            "Items per resident MiB at the first eviction, -m 128",
            "bytes of a value",
            "items per MiB",
            (true, true),
            per_mib,
        ),
        alone(
            "Bytes beside key and value, items of 10 + 20 B",
            "memory, MiB",
            "bytes",
            (true, false),
            beside,
        ),
        alone(
            "Resident memory at -m 128 while the sizes that are written change",
            "look at the server, one after every 4 MiB written",
            "MiB",
            (false, false),
            resident,
        ),
    ]))
}

pub fn churn(sheet: &Sheet) -> Result<String, String> {
    let [what, at, figure, beside] = sheet.places(["what", "at", "figure", "beside"])?;
    let mut sizes: Vec<Panel> = Vec::new();
    let mut lifetimes = Vec::new();
    for row in &sheet.rows {
        match row[what].strip_prefix("sizes ") {
            Some(size) => {
                if sizes.last().is_none_or(|panel| panel.title != size) {
                    sizes.push(Panel { title: size.into(), lines: Vec::new() });
                }
                let lines = &mut sizes.last_mut().expect("there is one").lines;
                put(lines, "memory that held other sizes", &row[at], number(&row[figure]));
                put(lines, "fresh memory", &row[at], number(&row[beside]));
            }
            None if row[what] == "lifetimes" => {
                put(&mut lifetimes, "expired", &row[at], number(&row[figure]));
            }
            None => put(&mut lifetimes, &row[what], &row[at], number(&row[figure])),
        }
    }
    let axes = ("sets since the change, in working sets", "hit ratio, %", (false, false));
    Ok(stacked(&[
        plot("Hit ratio after the sizes of values changed", axes, sizes),
        Plot::alone(
            "Memory while 90% of the writes die young".into(),
            "seconds",
            "% of the memory",
            (false, false),
            lifetimes,
        ),
    ]))
}

pub fn stalls(sheet: &Sheet) -> Result<String, String> {
    let [job, up_to_us, times] = sheet.places(["job", "up_to_us", "times"])?;
    let panel = |rows: &[Vec<String>]| {
        let all: f64 = rows.iter().map(|row| number(&row[times])).sum();
        let mut above = all;
        let mut lines = Vec::new();
        for row in rows {
            put(&mut lines, "jobs", &row[up_to_us], above / all);
            above -= number(&row[times]);
        }
        Panel { title: rows[0][job].clone(), lines }
    };
    let panels = sheet.rows.chunk_by(|one, next| one[job] == next[job]).map(panel).collect();
    let title = "Share of jobs that take longer than so many µs of CPU";
    Ok(plot(title, ("µs", "share of jobs", (true, true)), panels).svg())
}

pub fn tables(sheet: &Sheet) -> Result<String, String> {
    let [figure, work, value_bytes, table, threads, mops] =
        sheet.places(["figure", "work", "value_bytes", "table", "threads", "median_mops"])?;
    let (mut by_threads, mut by_value): (Vec<Panel>, Vec<Panel>) = Default::default();
    for row in &sheet.rows {
        let (panels, title, x) = if row[figure] == "8" {
            let plural = if row[threads] == "1" { "" } else { "s" };
            (&mut by_value, format!("Figure 8: {} thread{plural}", row[threads]), value_bytes)
        } else {
            (&mut by_threads, format!("Figure {}: {}", row[figure], row[work]), threads)
        };
        let found = panels.iter().position(|panel| panel.title == title);
        let panel = found.unwrap_or_else(|| {
            panels.push(Panel { title, lines: Vec::new() });
            panels.len() - 1
        });
        put(&mut panels[panel].lines, &row[table], &row[x], number(&row[mops]));
    }
    let axes = |x| (x, "M/s", (false, false));
    Ok(stacked(&[
        plot("In process: operations per second, by threads", axes("threads"), by_threads),
        plot("In process: 75% sets, by the size of values", axes("bytes of a value"), by_value),
    ]))
}

fn plot(
    title: &str,
    (x, y, (log_x, log_y)): (&'static str, &'static str, (bool, bool)),
    panels: Vec<Panel>,
) -> Plot {
    Plot { title: title.into(), x, y, log_x, log_y, panels }
}

/// Appends a point to the line of this name.
fn put(lines: &mut Vec<Line>, name: &str, x: &str, y: f64) {
    let point = (number(x), y);
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { name: name.into(), points: vec![point] }),
    }
}

/// An empty cell is no point.
fn number(cell: &str) -> f64 {
    cell.parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// After a change of how plots are drawn, `engine plots` makes them again.
    #[test]
    fn the_committed_pictures_are_those_of_the_committed_csv() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/engine");
        for (name, draw) in DRAWINGS {
            let file = |ending: &str| folder.join(name).with_extension(ending);
            let svg = draw(&Sheet::read(&file("csv")).unwrap()).unwrap();
            assert!(svg == fs::read_to_string(file("svg")).unwrap(), "{name}.svg is another");
        }
    }

    #[test]
    fn an_empty_folder_is_an_error() {
        let error = run(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error, "/dev/null: none of the figures' CSV is there");
    }
}
