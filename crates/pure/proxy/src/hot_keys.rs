//! Keys that are hot: which they are, what is known of their values, and who reads which copy.

use mbal_model::{Instant, Key};

use crate::control::Control;
use crate::expect::Expect;
use crate::hot::{HotTable, Left};
use crate::inflight::Who;
use crate::kernel::KernelTable;
use crate::ledger::Ledger;
use crate::settings::Settings;
use crate::stats::Copies;
use crate::upstreams::Upstreams;
use mbal_wire::ReplyKind;

pub(crate) struct HotKeys {
    /// Keys get copies; from the start on.
    control: Option<Control>,
    pub table: HotTable,
    /// Answers of the kernel's.
    pub kernel: Option<KernelTable>,
    /// Copies that are not read any more, on their way to be deleted.
    left: Vec<Left>,
}

impl HotKeys {
    pub fn new(seed: u64) -> HotKeys {
        HotKeys { control: None, table: HotTable::new(seed), kernel: None, left: Vec::new() }
    }

    pub fn start(&mut self, settings: &Settings, now: Instant) {
        let control = |replication| Control::new(replication, settings.seed, now);
        self.control = settings.replication.map(control);
    }

    #[inline]
    pub fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    #[inline]
    pub fn observe(&mut self, key: &[u8], hash: u64) {
        if let Some(control) = &mut self.control {
            control.observe(key, hash);
        }
    }

    /// The kernel has seen a read of this key, one of as many as the proxy looks at.
    pub fn sampled(&mut self, key: &[u8]) {
        if let (Some(control), Some(key)) = (&mut self.control, Key::new(key)) {
            control.count(key.bytes(), key.hash());
        }
    }

    pub fn stats(&self) -> Option<Copies> {
        let control = self.control.as_ref()?;
        Some(Copies { threshold: control.threshold_per_second(), ..self.table.tell() })
    }

    /// The end of an interval: what is hot now of the keys that this proxy coordinates. False: it is not over.
    pub fn end_interval(
        &mut self,
        is_own: impl Fn(u64) -> bool,
        servers: usize,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> bool {
        let Some(control) = self.control.as_mut().filter(|at| at.ends_at <= ledger.now) else {
            return false;
        };
        let mut hot = control.decide(servers, ledger.now);
        hot.retain(|(hash, ..)| is_own(*hash));
        let is_hot = |hash| hot.iter().any(|(other, ..)| *other == hash);
        self.table.retain(is_hot, &mut self.left);
        for (hash, key, wanted) in &hot {
            self.table.want(*hash, key, *wanted, &mut self.left);
        }
        self.delete_left(upstreams, ledger);
        upstreams.begin_interval();
        if let Some(kernel) = &mut self.kernel {
            kernel.decided(&hot);
        }
        true
    }

    /// A key may have changed: no copy of it is read any more.
    pub fn end_copies(
        &mut self,
        hash: u64,
        key: &[u8],
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) {
        self.table.write(hash, key, &mut self.left);
        self.delete_left(upstreams, ledger);
    }

    /// What is known of any key may be wrong.
    pub fn end_all(&mut self, upstreams: &mut Upstreams, ledger: &mut Ledger) {
        self.table.end_all(&mut self.left);
        if let Some(kernel) = &mut self.kernel {
            kernel.must_forget_all();
        }
        self.delete_left(upstreams, ledger);
    }

    /// Frees the memory of copies that are not read any more.
    fn delete_left(&mut self, upstreams: &mut Upstreams, ledger: &mut Ledger) {
        for (conn, name) in std::mem::take(&mut self.left) {
            let conn = conn as usize;
            if !upstreams.conn(conn).is_up() || upstreams.admit(conn, ledger).is_err() {
                continue;
            }
            let (parts, shape) =
                ([b"delete ", &name[..], b"\r\n"], (ReplyKind::Line, Expect::Deleted));
            upstreams.ask_own(conn, &parts, shape, Who::Nobody, ledger.now);
        }
    }
}
