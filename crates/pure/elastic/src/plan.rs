//! What travels when servers come or go, by size class and destination.

use crate::{Age, Pick, fuse};
use mbal_model::ServerId;

/// A class of item sizes; items of one class take each other's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(pub u8);

/// Everything that could be kept at one destination, of one size class.
///
/// When scaling in, the destination is a retained server and what arrives comes from retiring
/// ones; when scaling out, it is a new server, has nothing of its own, and what arrives comes from
/// existing ones. Ages are sorted, youngest first (ElMem, ICDCS 2018, §III.D).
#[derive(Clone, Debug)]
pub struct Inventory<'a> {
    pub destination: ServerId,
    pub class: SizeClass,
    /// Items of this class that fit there.
    pub room: usize,
    pub own: &'a [Age],
    pub arriving: Vec<(ServerId, &'a [Age])>,
}

/// What travels to one destination, of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub destination: ServerId,
    pub class: SizeClass,
    /// The destination's own items that stay; the older ones make room.
    pub own_kept: usize,
    /// In the order of the inventory: the first so many items, and the age of the last.
    pub carried: Vec<(ServerId, Pick)>,
}

/// The youngest items that fit a destination, wherever they are now.
///
/// Where ages are equal the destination's own stay, so that nothing travels in vain. FuseCache
/// when there is more than fits, O(k log² room); otherwise all travels.
pub fn plan_transfer(inventory: &Inventory) -> Transfer {
    let mut lists = vec![inventory.own];
    lists.extend(inventory.arriving.iter().map(|(_, ages)| ages));
    let picks = fuse(&lists, inventory.room);
    let sources = inventory.arriving.iter().map(|&(server, _)| server);
    Transfer {
        destination: inventory.destination,
        class: inventory.class,
        own_kept: picks[0].items,
        carried: sources.zip(picks[1..].iter().copied()).collect(),
    }
}

impl Transfer {
    /// Items that must travel.
    pub fn items(&self) -> usize {
        self.carried.iter().map(|(_, pick)| pick.items).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETAINED: ServerId = ServerId(1);
    const RETIRING: [ServerId; 2] = [ServerId(2), ServerId(3)];

    fn plan(own: &[Age], arriving: [&[Age]; 2], room: usize) -> Transfer {
        plan_transfer(&Inventory {
            destination: RETAINED,
            class: SizeClass(3),
            room,
            own,
            arriving: RETIRING.into_iter().zip(arriving).collect(),
        })
    }

    #[test]
    fn scaling_in_evicts_only_what_is_colder_than_what_comes() {
        let transfer = plan(&[1, 5, 90, 95], [&[2, 3, 94], &[91]], 5);
        assert_eq!((transfer.own_kept, transfer.items()), (3, 2));
        assert_eq!(transfer.carried[0], (RETIRING[0], Pick { items: 2, oldest: Some(3) }));
        assert_eq!(transfer.carried[1], (RETIRING[1], Pick { items: 0, oldest: None }));
    }

    #[test]
    fn scaling_out_fills_an_empty_server() {
        let transfer = plan(&[], [&[2, 3], &[1]], 100);
        assert_eq!((transfer.own_kept, transfer.items()), (0, 3));
    }

    #[test]
    fn equally_old_items_stay_where_they_are() {
        assert_eq!(plan(&[7, 7], [&[7, 7], &[7]], 2).items(), 0);
    }
}
