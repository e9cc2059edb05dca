//! Patience.

/// Opens and closes only after its condition held `patience` epochs in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    open: bool,
    streak: u32,
}

impl Gate {
    pub fn step(&mut self, enter: bool, leave: bool, patience: u32) -> bool {
        let wants_change = if self.open { leave } else { enter };
        self.streak = if wants_change { self.streak + 1 } else { 0 };
        if self.streak >= patience {
            self.open = !self.open;
            self.streak = 0;
        }
        self.open
    }
}
