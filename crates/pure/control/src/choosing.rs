//! What servers have told of their items, for `mbal_elastic`; and what that has chosen, for the state.

use mbal_elastic::{
    ClassSample, Cut, Resize, ServerSample, SizeClass, plan_for, plan_resize, score,
};
use mbal_model::ServerId;

use crate::Inventory;
use crate::api::{AgesReport, ClassAges, Retiring, ScaleCut, ScalePlan};

/// Who retires, and what travels. For a thread that may take some milliseconds: no transaction.
pub fn choose(inventory: &Inventory) -> ScalePlan {
    let servers: Vec<ServerSample> =
        inventory.servers.iter().map(|(id, report)| sample(*id, report)).collect();
    if inventory.count == 0 {
        return ScalePlan::default();
    }
    let resize = match inventory.named.is_empty() {
        true => plan_resize(&servers, inventory.count),
        false => plan_for(&servers, &inventory.named),
    };
    let of = |id: &ServerId| servers.iter().find(|one| one.server == *id);
    let of_it = |id: &ServerId| match of(id) {
        Some(own) => retiring(own, &resize),
        // It was named, and has not told what it has.
        None => Retiring { server: id.0, ..Retiring::default() },
    };
    let retiring = resize.retiring.iter().map(of_it).collect();
    ScalePlan {
        retiring,
        // Who has the map counts them.
        nodes: 0,
        staying_bytes: resize.staying_bytes,
        kept_bytes: resize.kept_bytes,
        cuts: resize.cuts.iter().flat_map(told).collect(),
    }
}

/// Of a store's memory that holds items while others arrive: the rest is in pages that are being filled or cleaned. With more in the plan
/// what has just been used makes room for what comes (servers of 16 MB lost 6 of 100 such items).
const HELD: f64 = 0.84;

fn sample(server: ServerId, report: &AgesReport) -> ServerSample {
    let class = |class: &ClassAges| {
        // Whatever a heartbeat says, lists are sorted.
        let mut ages = class.ages.clone();
        ages.sort_unstable();
        let (items, bytes) = (class.items, class.bytes);
        ClassSample { class: SizeClass(class.class), items, bytes, ages }
    };
    ServerSample {
        server,
        memory_bytes: (report.memory_bytes as f64 * HELD) as u64,
        used_bytes: report.used_bytes,
        classes: report.classes.iter().map(class).collect(),
    }
}

fn retiring(own: &ServerSample, resize: &Resize) -> Retiring {
    let bytes = own.classes.iter().map(|class| class.bytes).sum::<u64>();
    let of_it = |cut: &Cut| {
        let class = own.classes.iter().find(|class| class.class == cut.class)?;
        let (_, kept) = cut.carried.iter().find(|(server, _)| *server == own.server)?;
        Some(kept.items as f64 * class.bytes as f64 / class.items.max(1) as f64)
    };
    let carried = match resize.cuts.is_empty() {
        true => bytes as f64,
        false => resize.cuts.iter().filter_map(of_it).sum(),
    };
    Retiring {
        server: own.server.0,
        score: score(own) as u64,
        bytes,
        carried_bytes: carried as u64,
    }
}

fn told(cut: &Cut) -> impl Iterator<Item = ScaleCut> {
    cut.carried.iter().map(|(from, carried)| ScaleCut {
        server: cut.destination.0,
        class: cut.class.0,
        kept_items: cut.own.items,
        kept_younger_than: cut.own.younger_than,
        kept_tied: cut.own.tied,
        from: from.0,
        carried_items: carried.items,
        carried_younger_than: carried.younger_than,
        carried_tied: carried.tied,
    })
}
