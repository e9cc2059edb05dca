//! For tests: owners and connections change at random, so often that every request meets a change.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mbal_model::WorkerId;
use mbal_random::Random;
use mbal_reactor::{Letter, Mailbox};
use mbal_worker::{ConnId, Event, OrderId, Shared};

/// Plants the fault that the variable `MBAL_PLANTED` names, for the rounds of faults to find (`conformance/run-rounds`).
///
/// # Panics
/// If it names none of those that a server or a proxy can meet.
#[cfg(feature = "planted")]
pub(crate) fn plant_by_environment() {
    use mbal_model::planted::{Fault, plant_everywhere};
    let Ok(name) = std::env::var("MBAL_PLANTED") else { return };
    let all = [
        Fault::ClientKeepsLease,
        Fault::CopiesOutliveLeases,
        Fault::CopiesOutliveWrites,
        Fault::CountersAreOne,
        Fault::DoubtForgotten,
        Fault::ForgottenBeforeServed,
        Fault::FrozenIsServed,
        Fault::GoneBeforeTaken,
        Fault::HomeForgetsDrift,
        Fault::LeaseForgetsNewest,
        Fault::KeepsUnfinished,
        Fault::KernelAnswersOutliveWrites,
        Fault::KernelReadsUnsure,
        Fault::MarksAreRead,
        Fault::LeaseNotTaken,
        Fault::OldLeaseTaken,
        Fault::OlderCopyTaken,
        Fault::OlderFillTaken,
        Fault::PromisedInDoubt,
        Fault::PromisedInFlight,
        Fault::ReadAfterLease,
        Fault::RestartForgetsPromises,
        Fault::ServedBeforeGone,
        Fault::ShadowLeaseFromNow,
        Fault::TakenBackUnasked,
        Fault::ThawsWhatIsGone,
        Fault::WritesDoNotWait,
    ];
    let fault = all.into_iter().find(|fault| format!("{fault:?}") == name);
    plant_everywhere(fault.unwrap_or_else(|| panic!("MBAL_PLANTED={name}: it is one of {all:?}")));
}

/// Connections' names are small numbers; most tests have few.
const CONNS: u64 = 4;

/// Gives `per_second` orders, every other one to lend, until the process ends.
pub(crate) fn start(
    per_second: u32,
    server: &Arc<Shared>,
    workers: &Arc<[Mailbox<Letter>]>,
) -> std::io::Result<()> {
    let (server, workers) = (Arc::clone(server), Arc::clone(workers));
    thread::Builder::new().name("mbal-chaos".into()).spawn(move || {
        let (begin, mut given, mut random) = (Instant::now(), 0u64, Random::new(1));
        loop {
            let due = begin.elapsed().as_secs_f64() * f64::from(per_second);
            while (given as f64) < due {
                given += 1;
                let to = WorkerId(random.below(workers.len() as u64) as u16);
                let (at, event) = if given % 2 == 0 {
                    let prefixes = server.store.prefixes();
                    let cachelet = prefixes[random.below(prefixes.len() as u64) as usize];
                    let Some(at) = server.store.owner(cachelet) else { continue };
                    (at, Event::Lend { order: OrderId(0), cachelet, to, seen: u64::MAX })
                } else {
                    let at = WorkerId(random.below(workers.len() as u64) as u16);
                    let conn = ConnId(random.below(CONNS) as u32);
                    (at, Event::HandOver { order: OrderId(0), conn, to })
                };
                workers[usize::from(at.0)].post(Letter::Tell(event));
            }
            thread::sleep(Duration::from_millis(1));
        }
    })?;
    Ok(())
}
