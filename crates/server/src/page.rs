//! A page of metrics in Prometheus' text format 0.0.4.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use crate::machine;

#[derive(Default)]
pub(crate) struct Page {
    pub(crate) text: String,
}

/// Name and value of each label.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let pairs: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        if pairs.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", pairs.join(",")));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all");
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, u64)]) {
        self.family(name, "counter", help);
        samples.iter().for_each(|(labels, value)| self.sample(name, labels, value));
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, u64)]) {
        self.family(name, "gauge", help);
        samples.iter().for_each(|(labels, value)| self.sample(name, labels, value));
    }

    /// One series of a histogram: how many took less than each end in ns, how many there were, and their sum in ns.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        label: (&str, &str),
        by_powers: impl Iterator<Item = (u64, u64)>,
        (count, sum_ns): (u64, u64),
    ) {
        let bucket = format!("{name}_bucket");
        for (end_ns, below) in by_powers {
            let end = (end_ns as f64 / 1e9).to_string();
            self.sample(&bucket, &[label, ("le", &end)], below);
        }
        self.sample(&bucket, &[label, ("le", "+Inf")], count);
        self.sample(&format!("{name}_sum"), &[label], sum_ns as f64 / 1e9);
        self.sample(&format!("{name}_count"), &[label], count);
    }

    /// What is told of any process.
    pub(crate) fn of_process(&mut self, started_unix: u64) {
        let help = "Unix time of the process's start in seconds.";
        self.gauge("process_start_time_seconds", help, &[(&[], started_unix)]);
        // Where the system does not tell, there is none.
        if let Some(resident) = machine::resident_bytes() {
            let help = "Resident memory of the process in bytes.";
            self.gauge("process_resident_memory_bytes", help, &[(&[], resident)]);
        }
    }
}

/// A label's value as it stands between quotes.
fn escaped(value: &str) -> Cow<'_, str> {
    match value.contains(['\\', '"', '\n']) {
        true => value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into(),
        false => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_ends_where_its_quotes_do() {
        let mut page = Page::default();
        page.sample("a", &[("b", "c\"\\\n")], 1);
        assert_eq!(page.text, "a{b=\"c\\\"\\\\\\n\"} 1\n");
    }
}
