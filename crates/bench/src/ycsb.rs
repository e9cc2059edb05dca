//! YCSB's workloads, by letter or from a property file as YCSB's own tools read it.
//!
//! A record is one value of all fields; a scan is a get of as many keys in a row.

use std::path::Path;

use crate::mix::{Mix, Op, Ttls};
use crate::sizes::Sizes;
use crate::workload::{Law, Workload};

const ZIPFIAN: f64 = 0.99;
/// YCSB names a record `user` and up to 19 digits.
const KEY_BYTES: u32 = 23;

/// A to F, with YCSB's defaults for everything else.
const LETTERS: [(&str, &str); 6] = [
    ("A", "readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian"),
    ("B", "readproportion=0.95\nupdateproportion=0.05\nrequestdistribution=zipfian"),
    ("C", "readproportion=1\nupdateproportion=0\nrequestdistribution=zipfian"),
    (
        "D",
        "readproportion=0.95\nupdateproportion=0\ninsertproportion=0.05\nrequestdistribution=latest",
    ),
    (
        "E",
        "readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\nrequestdistribution=zipfian",
    ),
    (
        "F",
        "readproportion=0.5\nupdateproportion=0\nreadmodifywriteproportion=0.5\nrequestdistribution=zipfian",
    ),
];

/// Properties of YCSB that mean nothing here, or are said by flags.
const PASSED_OVER: [&str; 12] = [
    "workload",
    "readallfields",
    "writeallfields",
    "table",
    "insertorder",
    "operationcount",
    "threadcount",
    "target",
    "maxexecutiontime",
    "zeropadding",
    "measurementtype",
    "dataintegrity",
];

/// `name` is a letter, or the path of a property file.
pub fn workload(name: &str, keys: u64) -> Result<Workload, String> {
    let letter = LETTERS.iter().find(|(letter, _)| letter.eq_ignore_ascii_case(name));
    match letter {
        Some((_, properties)) => parse(properties, keys),
        None => {
            let text = std::fs::read_to_string(Path::new(name))
                .map_err(|error| format!("{name:?} is none of A to F, nor a file: {error}"))?;
            parse(&text, keys).map_err(|error| format!("{name}: {error}"))
        }
    }
}

struct Properties {
    keys: u64,
    field_count: u32,
    field_bytes: u32,
    field_range: bool,
    read: f64,
    update: f64,
    insert: f64,
    scan: f64,
    read_modify_write: f64,
    distribution: String,
    hot_keys: f64,
    hot_ops: f64,
    scan_max: u32,
}

fn parse(text: &str, keys: u64) -> Result<Workload, String> {
    let mut p = Properties {
        keys,
        field_count: 10,
        field_bytes: 100,
        field_range: false,
        read: 0.95,
        update: 0.05,
        insert: 0.0,
        scan: 0.0,
        read_modify_write: 0.0,
        distribution: "uniform".into(),
        hot_keys: 0.2,
        hot_ops: 0.8,
        scan_max: 100,
    };
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!']))
    {
        let bad = || format!("cannot read {line:?}");
        let (name, value) = line.split_once(['=', ':']).ok_or_else(bad)?;
        let (name, value) = (name.trim(), value.trim());
        let share = || {
            value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(bad)
        };
        let count = || value.parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(bad);
        match name {
            "recordcount" => {
                p.keys = value.parse().ok().filter(|keys| *keys > 0).ok_or_else(bad)?
            }
            "fieldcount" => p.field_count = count()?,
            "fieldlength" => p.field_bytes = count()?,
            "fieldlengthdistribution" => {
                p.field_range = match value {
                    "constant" => false,
                    "uniform" => true,
                    _ => return Err(format!("{line:?}: constant and uniform are known")),
                }
            }
            "readproportion" => p.read = share()?,
            "updateproportion" => p.update = share()?,
            "insertproportion" => p.insert = share()?,
            "scanproportion" => p.scan = share()?,
            "readmodifywriteproportion" => p.read_modify_write = share()?,
            "requestdistribution" => p.distribution = value.into(),
            "hotspotdatafraction" => p.hot_keys = share()?,
            "hotspotopnfraction" => p.hot_ops = share()?,
            "maxscanlength" => p.scan_max = count()?,
            "scanlengthdistribution" if value == "uniform" => {}
            _ if PASSED_OVER.contains(&name) => {}
            _ => return Err(format!("{line:?} has no meaning here")),
        }
    }
    p.workload()
}

impl Properties {
    fn workload(self) -> Result<Workload, String> {
        let law = match self.distribution.as_str() {
            "uniform" => Law::Uniform,
            "zipfian" => Law::Zipf(ZIPFIAN),
            "latest" => Law::Latest(ZIPFIAN),
            "hotspot" => Law::Hotspot { keys_share: self.hot_keys, share: self.hot_ops },
            other => {
                return Err(format!(
                    "requestdistribution {other}: uniform, zipfian, latest and hotspot are known"
                ));
            }
        };
        let weights = [
            (Op::Get, self.read),
            (Op::Set, self.update),
            (Op::Insert, self.insert),
            (Op::Scan, self.scan),
            (Op::ReadModifyWrite, self.read_modify_write),
        ];
        if weights.iter().map(|(_, weight)| weight).sum::<f64>() <= 0.0 {
            return Err("no operation has a share".into());
        }
        let whole = self.field_count * self.field_bytes;
        let value_bytes = match self.field_range {
            true => Sizes::Range(self.field_count, whole),
            false => Sizes::Constant(whole),
        };
        Ok(Workload {
            keys: self.keys,
            key_bytes: Sizes::Constant(KEY_BYTES),
            value_bytes,
            law,
            mix: Mix::new(&weights),
            ttls: Ttls::all(0),
            scan_max: self.scan_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_are_ycsbs_six() {
        let mixes = ["a", "B", "C", "D", "E", "F"].map(|name| {
            let workload = workload(name, 1_000).unwrap();
            (workload.mix.to_string(), workload.law)
        });
        let zipf = Law::Zipf(0.99);
        let wanted = [
            ("get 0.5000, set 0.5000", zipf),
            ("get 0.9500, set 0.0500", zipf),
            ("get 1.0000", zipf),
            ("get 0.9500, insert 0.0500", Law::Latest(0.99)),
            ("insert 0.0500, scan 0.9500", zipf),
            ("get 0.5000, rmw 0.5000", zipf),
        ];
        assert_eq!(mixes, wanted.map(|(mix, law)| (mix.to_owned(), law)));
        assert_eq!(workload("A", 1_000).unwrap().value_bytes, Sizes::Constant(1_000));
    }

    #[test]
    fn a_property_file_is_read_and_what_it_does_not_know_is_refused() {
        let text = "# mine\nworkload=site.ycsb.workloads.CoreWorkload\nrecordcount=5000\nfieldcount=1\nfieldlength=64\n\
                    readproportion=0.8\nupdateproportion=0.2\nrequestdistribution=hotspot\nhotspotdatafraction=0.1\n\
                    hotspotopnfraction=0.9\n";
        let read = parse(text, 7).unwrap();
        assert_eq!((read.keys, read.value_bytes), (5_000, Sizes::Constant(64)));
        assert_eq!(read.law, Law::Hotspot { keys_share: 0.1, share: 0.9 });
        assert_eq!(read.mix.to_string(), "get 0.8000, set 0.2000");
        for wrong in
            ["nonsense=1", "requestdistribution=exponential", "readproportion=2", "recordcount"]
        {
            assert!(parse(wrong, 7).is_err(), "{wrong}");
        }
        assert!(workload("/no/such/file", 1).unwrap_err().contains("none of A to F"));
    }
}
