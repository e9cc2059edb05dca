//! Commands to a load that is under way: a file appears, is obeyed, and goes.
//!
//!   list SERVER,...        clients have this list
//!   secondary SERVER,...   likewise; what those miss is looked for at the list before (CacheScale)
//!   pause, resume          of updates

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use mbal_routing::ketama::RingServer;

use crate::load::World;
use crate::routing::Routing;

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Obeys until the load is over. Nothing is under way while the list changes; a cluster's map changes at any moment.
pub fn obey(world: &World, file: Option<&Path>) {
    let mut looks = 0;
    while !world.over.load(SeqCst) {
        thread::sleep(LOOK_EVERY);
        looks += 1;
        if world.args.mbal && looks % 5 == 0 {
            if let Some(routing) = Routing::map(&world.args.servers) {
                *world.routing.write().expect("no thread panics") = Arc::new(routing);
            }
        }
        let Some(text) = file.and_then(|file| fs::read_to_string(file).ok()) else { continue };
        let (word, list) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let servers: Vec<RingServer> =
            list.split(',').filter_map(|server| server.parse().ok()).collect();
        match word {
            "pause" => {
                world.updates.store(false, SeqCst);
                // Those under way are over when this can be had.
                drop(world.under_way.write().expect("no thread panics"));
            }
            "resume" => world.updates.store(true, SeqCst),
            "list" | "secondary" => {
                let _nothing = world.under_way.write().expect("no thread panics");
                let mut routing = world.routing.write().expect("no thread panics");
                *routing = Arc::new(match word {
                    "list" => Routing::of(&servers),
                    _ => routing.with_secondary(&servers),
                });
            }
            word => eprintln!("web: no command {word:?}"),
        }
        eprintln!("web: {:.1} s: {}", world.now(), text.trim());
        if let Some(file) = file {
            drop(fs::remove_file(file));
        }
    }
}
