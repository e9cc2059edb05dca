//! What has changed from map to map, for servers that follow an older one: a moved cachelet is a line, and not the whole map for each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_model::{Chain, Cluster, ServerId};

use crate::api::News;
use crate::state::{Member, State};

/// So much is kept of it.
const BYTES_MAX: usize = 1 << 20;

/// Lost with the process: then everybody gets the next map whole.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    newest: Option<Newest>,
    each: Chain<String>,
}

#[derive(Debug)]
struct Newest {
    document: Cluster,
    members: Arc<BTreeMap<ServerId, Member>>,
    /// Whoever follows this version has this document. If not, nobody knows what is new to whom.
    is_sole: bool,
}

impl Changes {
    /// After each change of the state: it may have another document.
    pub fn look_at(&mut self, state: &State) {
        let Some(map) = &state.map else { return };
        let known = self.newest.as_ref().map_or(0, |newest| newest.document.map.version());
        let has_known = map.version() == known;
        if has_known
            && self.newest.iter().all(|newest| Arc::ptr_eq(&newest.members, &state.members))
        {
            return;
        }
        let Some(document) = state.document() else { return };
        let is_sole = match &self.newest {
            Some(before) if has_known && before.document == document => before.is_sole,
            Some(before) if before.is_sole && known < map.version() => {
                let changes = document.changes_since(&before.document);
                self.each.push(known, changes, String::len, BYTES_MAX);
                true
            }
            before => {
                let is_next = before.is_some() && known < map.version();
                self.each.clear();
                is_next
            }
        };
        self.newest = Some(Newest { document, members: Arc::clone(&state.members), is_sole });
    }

    /// What a server is told that follows an older map: the changes, if it takes those, or the whole.
    pub fn told(
        &mut self,
        state: &State,
        version: u64,
        takes_changes: bool,
    ) -> (Option<String>, Vec<String>) {
        self.look_at(state);
        let newer = self.newest.iter().find(|newest| newest.document.map.version() > version);
        let Some(Newest { document, .. }) = newer else { return (None, Vec::new()) };
        match self.each.since(version).filter(|_| takes_changes) {
            Some(changes) => (None, changes.cloned().collect()),
            None => (Some(document.to_string()), Vec::new()),
        }
    }

    /// The state is an older one again.
    pub fn forget(&mut self) {
        *self = Changes::default();
    }
}

impl News {
    /// The newer map that these tell of, by one that is `followed`. An error: it has to be asked for the whole.
    pub fn newer(&self, followed: Option<&Cluster>) -> Result<Option<Cluster>, String> {
        if let Some(document) = &self.map {
            return Cluster::parse(document).map(Some);
        }
        let mut newer: Option<Cluster> = None;
        for changes in &self.changes {
            let before = newer.as_ref().or(followed).ok_or("changes of a map that nobody has")?;
            newer = Some(before.changed(changes)?);
        }
        Ok(newer)
    }
}
