//! Makes a failing epoch small: fewer batches, fewer commands, fewer cuts, while it still fails.

use super::campaign::{Plan, Servers};
use super::command::Batch;
use super::epoch::Fault;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// A failure that takes longer to make small is printed as it is then.
const PATIENCE: Duration = Duration::from_secs(30);

/// The smallest failing epoch found, as a script, and how it fails; `None` when it does not fail again.
pub fn smallest(plan: &Plan, batches: Vec<Batch>) -> Result<Option<(String, String)>, String> {
    let deadline = Instant::now() + PATIENCE;
    // The same servers for all tries: an epoch begins with empty ones, and starting takes long.
    let servers = RefCell::new(Servers::start(plan)?);
    let play = |batches: &[Batch]| {
        let mut servers = servers.borrow_mut();
        let mut pair = servers.pair();
        pair.transcript = Some(String::new());
        let fault = pair.play(batches).err();
        let script = pair.transcript.take().unwrap_or_default();
        if servers.crashed().is_some() {
            *servers = Servers::start(plan)?;
        }
        Ok::<(Option<Fault>, String), String>((fault, script))
    };
    let fails = |batches: &[Batch]| play(batches).map(|(fault, _)| fault.is_some());
    let mut batches = batches;
    if !fails(&batches)? && !fails(&batches)? {
        return Ok(None);
    }
    batches = without_chunks(batches, deadline, &fails)?;
    loop {
        let before = count(&batches);
        for at in 0..batches.len() {
            let commands = batches[at].commands.clone();
            let fails_with = |commands: &[_]| {
                let mut fewer = batches.clone();
                fewer[at].commands = commands.to_vec();
                fails(&fewer)
            };
            let fewer = without_chunks(commands, deadline, &fails_with)?;
            batches[at].commands = fewer;
        }
        for at in 0..batches.len() {
            let mut plainer = batches.clone();
            plainer[at].cuts.clear();
            plainer[at].held = 0;
            if Instant::now() < deadline && fails(&plainer)? {
                batches = plainer;
            }
        }
        batches = without_chunks(batches, deadline, &fails)?;
        if count(&batches) == before || Instant::now() > deadline {
            break;
        }
    }
    let (fault, script) = play(&batches)?;
    let what = fault.map_or("it does not fail every time".to_string(), |fault| fault.what);
    Ok(Some((script, what)))
}

fn count(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.commands.len()).sum::<usize>() + batches.len()
}

/// Drops runs of `parts`, long ones first, as long as what is left fails.
fn without_chunks<T: Clone>(
    mut parts: Vec<T>,
    deadline: Instant,
    fails: &dyn Fn(&[T]) -> Result<bool, String>,
) -> Result<Vec<T>, String> {
    let mut chunk = parts.len().div_ceil(2);
    while chunk > 0 && parts.len() > 1 {
        let mut at = 0;
        while at < parts.len() && Instant::now() < deadline {
            let mut fewer = parts.clone();
            fewer.drain(at..(at + chunk).min(parts.len()));
            if !fewer.is_empty() && fails(&fewer)? {
                parts = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    Ok(parts)
}
