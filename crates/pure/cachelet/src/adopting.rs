//! Items that go over to the other half of a cachelet that is split.

use crate::chunks::{Run, parts, runs};
use crate::item::Item;
use crate::items::Items;
use crate::kinds::Target;
use crate::memory::Offset;
use crate::records::as_it_is;
use crate::site::Site;
use crate::types::Full;

/// An item that has been taken in from another cachelet.
pub struct Adopted {
    pub offset: Offset,
    /// Chunks of the old item that did not go along.
    pub left: Vec<Offset>,
}

/// Bytes that [`Items::adopt`] has to copy of an item.
pub fn adoption_bytes(site: &Site, item: Item) -> usize {
    let shared = runs(site, item).into_iter().filter(|run| !run.is_alone);
    site.stride(item) as usize + shared.map(|run| run.bytes(site)).sum::<usize>()
}

impl Items {
    /// Takes in an item of another cachelet: a copy of its record, which the index is still to lead to. Of its chunks, those go along
    /// that have pages for themselves, with their pages; the others are copied. Readers that are in the old item still find all of
    /// its value. O(its chunks), and copies of the value's ends: mostly two pages.
    pub fn adopt(
        &mut self,
        site: &Site,
        parent: &mut Items,
        there: &Site,
        old: Offset,
    ) -> Result<Adopted, Full> {
        let item = site.item(old);
        let runs = runs(site, item);
        let mut copies = Vec::with_capacity(runs.len());
        let rewrite = as_it_is(site, old);
        let copied = self.copy_runs(site, item, &runs, rewrite.target.log, &mut copies);
        let offset = match copied.and_then(|()| self.copy_item(site, item, rewrite)) {
            Ok(offset) => offset,
            Err(full) => {
                copies.into_iter().for_each(|first| self.kill_chunks(site, first));
                return Err(full);
            }
        };
        let (mut next, mut left) = (0, Vec::new());
        for (run, first) in runs.into_iter().zip(copies).rev() {
            let new = if run.is_alone { run.chunks[0] } else { first };
            let mut last = site.item(new);
            if run.is_alone {
                last = site.item(*run.chunks.last().expect("a run has chunks"));
                parent.logs.hand_over_page(there, run.page, &mut self.logs, site);
            } else {
                while last.next_chunk() != 0 {
                    last = site.item(last.next_chunk());
                }
                left.extend(run.chunks);
            }
            // What followed before has the same bytes.
            last.set_next_chunk(next);
            next = new;
        }
        let (new, mut bytes) = (site.item(offset), 0);
        if let Some((value_bytes, _)) = item.chain() {
            new.set_chain(value_bytes, next);
            bytes = u64::from(value_bytes);
        }
        self.counts.born(new, bytes + site.stride(new));
        Ok(Adopted { offset, left })
    }

    /// The first chunk of each run's copy; 0 for a run that goes along.
    fn copy_runs(
        &mut self,
        site: &Site,
        old: Item,
        runs: &[Run],
        log: usize,
        copies: &mut Vec<Offset>,
    ) -> Result<(), Full> {
        let target = Target { log, deadline: old.deadline() };
        for run in runs {
            let mut first = 0;
            if !run.is_alone {
                let (parts, bytes) = (parts(site, run.chunks.iter().copied()), run.bytes(site));
                self.counts.copied(bytes);
                first = self.write_chunks(site, old.hash(), &parts, bytes, target, 0)?;
            }
            copies.push(first);
        }
        Ok(())
    }
}
