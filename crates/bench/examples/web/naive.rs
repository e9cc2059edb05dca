//! ElMem's rival "Naive" (§V.B.4): of n servers x retire, and the hottest (n - x) / n of the items of each go to where their keys belong
//! then, whatever is there.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use mbal_elastic::pool::{Plan, Resize};
use mbal_pool::{Move, Pace, Stream, survey};
use mbal_routing::ketama::{Dialect, Ring, RingServer};

use crate::Args;

fn dial(server: &RingServer) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((&server.host[..], server.port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(Box::new(stream))
}

pub fn naive(args: &Args) -> Result<(), String> {
    let old = &args.servers;
    let kept: Vec<usize> =
        (0..old.len()).filter(|&server| !args.retire.contains(&old[server])).collect();
    let new: Vec<RingServer> = kept.iter().map(|&server| old[server].clone()).collect();
    let ring = |servers: &[RingServer]| Ring::new(Dialect::Libmemcached, None, servers);
    let pace = Pace::new(None);
    let resize = Resize {
        old: ring(old),
        old_members: (0..old.len()).collect(),
        new: ring(&new),
        new_members: kept.clone(),
    };
    let fail = |failed: mbal_pool::Failed| failed.to_string();
    let members = survey(old, &dial, resize.old.hash(), &pace).map_err(fail)?;
    let mut plan = Plan { carried: vec![vec![]; old.len()], ..Plan::default() };
    for (source, member) in members.iter().enumerate() {
        if kept.contains(&source) {
            continue;
        }
        let items = member.listing.items();
        let hottest = items.len() * kept.len() / old.len();
        for (number, item) in items[..hottest].iter().enumerate().rev() {
            let destination = kept[resize.new.at(item.place)] as u16;
            plan.carried[source].push((number as u32, destination));
        }
    }
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    moving.carry(&plan).map_err(fail)?;
    println!("{} items, {} bytes", moving.counts.copied, moving.counts.bytes);
    Ok(())
}
