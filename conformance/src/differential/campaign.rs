//! Many epochs: plays them, counts, and hunts down what fails.

use super::cells::Cells;
use super::epoch::{Fault, Pair, Plant};
use super::generate::Generator;
use super::reply::Allowed;
use super::shrink;
use crate::peer::{Peer, SocketPeer};
use crate::server::{Launch, Server};
use std::collections::BTreeMap;

/// What is to be compared, and how long.
pub struct Plan {
    pub left: Launch,
    pub right: Launch,
    pub flags: Vec<String>,
    pub seed: u64,
    pub commands: u64,
    /// Plays this epoch only.
    pub only: Option<u64>,
    /// Rows that are not generated.
    pub without: Vec<String>,
    /// Spoils one batch in so many.
    pub plant_every: Option<usize>,
    /// Stops after so many epochs that failed.
    pub faults_max: usize,
}

#[derive(Default)]
pub struct Report {
    pub commands: u64,
    pub epochs: u64,
    pub cells: Cells,
    pub used: BTreeMap<Allowed, u64>,
    /// By epoch: the message, and the smallest epoch that shows it as a script.
    pub failures: Vec<(u64, String, String)>,
    /// Epochs that failed once and not again on fresh servers.
    pub unrepeatable: Vec<(u64, String)>,
    pub planted: u64,
    pub caught: u64,
    pub planted_kinds: BTreeMap<&'static str, u64>,
}

const EPOCH_COMMANDS: usize = 1000;

pub struct Campaign {
    pub plan: Plan,
}

/// The two servers of a run, and a client of each.
pub struct Servers {
    left: SocketPeer,
    right: SocketPeer,
    processes: [Server; 2],
}

impl Servers {
    pub fn start(plan: &Plan) -> Result<Servers, String> {
        let left = plan.left.start(&plan.flags)?;
        let right = plan.right.start(&plan.flags)?;
        let mut servers = Servers {
            left: SocketPeer::new(left.address.clone()),
            right: SocketPeer::new(right.address.clone()),
            processes: [left, right],
        };
        // A cas is a small number at first: leave those behind that requests name out of the blue.
        for peer in [&mut servers.left, &mut servers.right] {
            let conn = peer.open();
            peer.send(conn, &b"set a 0 0 1 noreply\r\nx\r\n".repeat(200));
            peer.send(conn, b"quit\r\n");
            let mut nothing = Vec::new();
            peer.receive(conn, &mut nothing, std::time::Duration::from_secs(5));
            peer.close(conn);
        }
        Ok(servers)
    }

    pub fn pair(&mut self) -> Pair<'_> {
        Pair::new(&mut self.left, &mut self.right)
    }

    pub fn crashed(&mut self) -> Option<&'static str> {
        let [left, right] = &mut self.processes;
        match (left.is_running(), right.is_running()) {
            (true, true) => None,
            (false, _) => Some("the left server has ended"),
            _ => Some("the right server has ended"),
        }
    }
}

impl Campaign {
    /// Plays epochs until there are enough commands; prints a line now and then.
    pub fn run(&self) -> Result<Report, String> {
        let mut report = Report::default();
        let mut epoch = self.plan.only.unwrap_or(0);
        while report.commands < self.plan.commands && report.failures.len() < self.plan.faults_max {
            epoch = self.run_servers(epoch, &mut report)?;
            if self.plan.only.is_some() {
                break;
            }
        }
        Ok(report)
    }

    /// Plays epochs on one pair of servers, up to the first that fails; says which is next.
    fn run_servers(&self, first: u64, report: &mut Report) -> Result<u64, String> {
        let mut servers = Servers::start(&self.plan)?;
        let mut pair = servers.pair();
        pair.plant = self.plan.plant_every.map(|every| Plant::new(every, self.plan.seed ^ first));
        let mut epoch = first;
        let mut failed = None;
        while failed.is_none() && report.commands < self.plan.commands {
            let batches = self.epoch(epoch);
            let before = pair.plant.as_ref().map_or(0, |plant| plant.planted);
            report.commands += batches.iter().map(|batch| batch.commands.len() as u64).sum::<u64>();
            report.epochs += 1;
            let result = pair.play(&batches);
            let planted = pair.plant.as_ref().map_or(0, |plant| plant.planted) - before;
            match result {
                Err(_) if planted > 0 => report.caught += 1,
                Err(fault) => failed = Some((batches, fault)),
                Ok(()) => {}
            }
            report.planted += planted;
            epoch += 1;
            if self.plan.only.is_some() {
                break;
            }
        }
        report.cells.merge(&pair.cells);
        for (allowed, count) in &pair.comparer.used {
            *report.used.entry(*allowed).or_default() += count;
        }
        for (kind, count) in pair.plant.iter().flat_map(|plant| &plant.kinds) {
            *report.planted_kinds.entry(kind).or_default() += count;
        }
        let crashed = servers.crashed();
        drop(servers);
        if let Some((batches, fault)) = failed {
            self.hunt(epoch - 1, batches, fault, crashed, report)?;
        }
        Ok(epoch)
    }

    fn hunt(
        &self,
        epoch: u64,
        mut batches: Vec<super::command::Batch>,
        fault: Fault,
        crashed: Option<&str>,
        report: &mut Report,
    ) -> Result<(), String> {
        let mut what = format!("epoch {epoch}, batch {}: {}", fault.batch, fault.what);
        if let Some(crashed) = crashed {
            what.push_str(&format!(" ({crashed})"));
        }
        println!("{what}");
        batches.truncate(fault.batch + 2);
        match shrink::smallest(&self.plan, batches)? {
            Some((script, smallest)) => {
                println!("# {what}\n# smallest: {smallest}\n{script}");
                report.failures.push((epoch, what, script));
            }
            None => {
                println!("not seen again on fresh servers");
                report.unrepeatable.push((epoch, what));
            }
        }
        Ok(())
    }

    fn epoch(&self, number: u64) -> Vec<super::command::Batch> {
        // Two neighbours' random numbers have nothing in common after one step of the generator.
        let seed = self.plan.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number;
        Generator::new(seed, &self.plan.without).epoch(EPOCH_COMMANDS)
    }
}
