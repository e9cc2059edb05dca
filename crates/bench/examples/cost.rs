//! What a cache costs: requests a second, and for each dollar, of instance types by their published prices. Table 1 and Figure 1 of the MBal
//! paper (EuroSys 2015), and today's types and systems in the same sheet. Nothing is measured here.
//!
//!   cargo run --release -p mbal-bench --example cost -- docs/results/paper
//!
//! reads `instances.csv` (types, each price with its source and day) and `requests.csv` (what a request costs a server: CPU time, bytes each way), and
//! leaves `cost.md` and `figure-1.csv`, from which the example `lines` draws. A server answers what its cores or its network bear, whichever
//! is less; a core of an instance is taken for one of the machine on which requests were measured. A cluster of n servers answers n times
//! as much: what else servers share, and skew, are not in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// As in the paper's Figure 1.
const CLUSTERS: [u32; 4] = [1, 5, 10, 20];

type Row<'a> = BTreeMap<&'a str, &'a str>;

struct Instance<'a> {
    name: &'a str,
    cores: f64,
    memory_gb: f64,
    network_gbps: f64,
    dollars_per_hour: f64,
    /// Thousand queries a second of twenty of them, as the paper has it.
    paper_kqps_of_20: Option<f64>,
    source: &'a str,
    as_of: &'a str,
}

/// What one request costs a server.
struct RequestCost<'a> {
    system: &'a str,
    cpu_us: f64,
    /// Bits of the busier way, with what the network adds.
    wire_bits: f64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bound {
    Cpu,
    Network,
}

fn main() -> Result<(), String> {
    let folder = env::args().nth(1).ok_or("which folder?")?;
    let folder = Path::new(&folder);
    let failed = |name: &str, error: &dyn std::fmt::Display| format!("{name}: {error}");
    let read =
        |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| failed(name, &error));
    let (instances, requests) = (read("instances.csv")?, read("requests.csv")?);
    let instances = rows(&instances).iter().map(instance).collect::<Option<Vec<_>>>();
    let instances = instances.ok_or("instances.csv: a number is missing")?;
    let requests = rows(&requests).iter().map(request).collect::<Option<Vec<_>>>();
    let requests = requests.ok_or("requests.csv: a number is missing")?;
    let sheet = sheet(&instances, &requests);
    print!("{sheet}");
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).map_err(|error| failed(name, &error))
    };
    write("cost.md", sheet)?;
    write("figure-1.csv", figure(&instances, &requests))
}

fn rows(csv: &str) -> Vec<Row<'_>> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines.map(|line| names.iter().copied().zip(line.split(',')).collect()).collect()
}

fn number(row: &Row<'_>, name: &str) -> Option<f64> {
    row.get(name)?.parse().ok()
}

fn instance<'a>(row: &Row<'a>) -> Option<Instance<'a>> {
    Some(Instance {
        name: row.get("type")?,
        cores: number(row, "vcpus")?,
        memory_gb: number(row, "memory_gb")?,
        network_gbps: number(row, "network_gbps")?,
        dollars_per_hour: number(row, "dollars_per_hour")?,
        paper_kqps_of_20: number(row, "paper_kqps_of_20"),
        source: row.get("source")?,
        as_of: row.get("as_of")?,
    })
}

fn request<'a>(row: &Row<'a>) -> Option<RequestCost<'a>> {
    let bytes = number(row, "bytes_in")?.max(number(row, "bytes_out")?);
    Some(RequestCost {
        system: row.get("system")?,
        cpu_us: number(row, "cpu_us")?,
        wire_bits: 8.0 * bytes,
    })
}

/// Thousand requests a second of one server, and what bounds them.
fn kqps(instance: &Instance<'_>, request: &RequestCost<'_>) -> (f64, Bound) {
    let by_cpu = instance.cores * 1e3 / request.cpu_us;
    let by_network = instance.network_gbps * 1e6 / request.wire_bits;
    if by_cpu <= by_network { (by_cpu, Bound::Cpu) } else { (by_network, Bound::Network) }
}

fn sheet(instances: &[Instance<'_>], requests: &[RequestCost<'_>]) -> String {
    let mut out = String::from(
        "| type | vCPU | GB | Gbit/s | $/h | $/h for each GB | paper, 20 servers: kQPS, kQPS/$ |",
    );
    for request in requests {
        let _ = write!(out, " {}: kQPS of one, bound, kQPS/$ |", request.system);
    }
    let _ = write!(
        out,
        " price by | of |\n|---|---|---|---|---|---|---|{}---|---|\n",
        "---|".repeat(requests.len())
    );
    for instance in instances {
        let Instance { name, cores, memory_gb, network_gbps, dollars_per_hour, .. } = instance;
        let by_memory = dollars_per_hour / memory_gb;
        let _ = write!(
            out,
            "| {name} | {cores} | {memory_gb} | {network_gbps} | {dollars_per_hour} | {by_memory:.4} |"
        );
        match instance.paper_kqps_of_20 {
            Some(kqps) => {
                let _ = write!(out, " {kqps:.0}, {:.0} |", kqps / (20.0 * dollars_per_hour));
            }
            None => out.push_str(" |"),
        }
        for request in requests {
            let (kqps, bound) = kqps(instance, request);
            let bound = if bound == Bound::Cpu { "CPU" } else { "network" };
            let _ = write!(out, " {kqps:.0}, {bound}, {:.0} |", kqps / dollars_per_hour);
        }
        let _ = writeln!(out, " {} | {} |", instance.source, instance.as_of);
    }
    out
}

/// Figure 1: by the number of servers.
fn figure(instances: &[Instance<'_>], requests: &[RequestCost<'_>]) -> String {
    let mut out = String::from("plot,panel,line,servers,y\n");
    for request in requests {
        for instance in instances {
            let (kqps, _) = kqps(instance, request);
            for servers in CLUSTERS {
                let all = kqps * f64::from(servers);
                let _ =
                    writeln!(out, "kQPS,{},{},{servers},{all:.0}", request.system, instance.name);
            }
        }
    }
    for request in requests {
        for instance in instances {
            let (kqps, _) = kqps(instance, request);
            for servers in CLUSTERS {
                let by_dollar = kqps / instance.dollars_per_hour;
                let _ = writeln!(
                    out,
                    "kQPS/$,{},{},{servers},{by_dollar:.0}",
                    request.system, instance.name
                );
            }
        }
    }
    for instance in instances {
        if let Some(kqps) = instance.paper_kqps_of_20 {
            let by_dollar = kqps / (20.0 * instance.dollars_per_hour);
            let _ = writeln!(out, "kQPS/$,paper,{},20,{by_dollar:.0}", instance.name);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCES: &str = "type,vcpus,memory_gb,network_gbps,dollars_per_hour,paper_kqps_of_20,source,as_of\n\
        small,1,2,0.1,0.05,,paper,2014\nlarge,8,4,1,0.5,1100,memory,unknown\n";
    const REQUESTS: &str = "system,cpu_us,bytes_in,bytes_out\na,10,100,250\n";

    #[test]
    fn a_server_answers_what_the_scarcer_of_its_cores_and_its_network_bears() {
        let (instances, requests) = (rows(INSTANCES), rows(REQUESTS));
        let request = request(&requests[0]).unwrap();
        let [small, large] = [0, 1].map(|at| instance(&instances[at]).unwrap());
        assert_eq!(kqps(&small, &request), (50.0, Bound::Network));
        assert_eq!(kqps(&large, &request), (500.0, Bound::Network));
        let faster = RequestCost { cpu_us: 20.0, ..request };
        assert_eq!(kqps(&small, &faster), (50.0, Bound::Cpu));
        assert_eq!(kqps(&large, &faster), (400.0, Bound::Cpu));
    }

    #[test]
    fn the_sheet_has_the_papers_figure_beside_ours_and_each_price_its_source() {
        let (instances, requests) = (rows(INSTANCES), rows(REQUESTS));
        let instances: Vec<_> = instances.iter().map(|row| instance(row).unwrap()).collect();
        let requests: Vec<_> = requests.iter().map(|row| request(row).unwrap()).collect();
        let sheet = sheet(&instances, &requests);
        let last = sheet.lines().last().unwrap();
        assert_eq!(
            last,
            "| large | 8 | 4 | 1 | 0.5 | 0.1250 | 1100, 110 | 500, network, 1000 | memory | unknown |"
        );
        let figure = figure(&instances, &requests);
        assert!(
            figure.contains("kQPS,a,small,20,1000\n")
                && figure.ends_with("kQPS/$,paper,large,20,110\n"),
            "{figure}"
        );
    }

    #[test]
    fn a_price_that_is_no_number_is_refused() {
        let rows = rows(
            "type,vcpus,memory_gb,network_gbps,dollars_per_hour,source,as_of\na,1,1,1,?,x,y\n",
        );
        assert!(instance(&rows[0]).is_none());
    }
}
