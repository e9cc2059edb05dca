//! What a key has been, by true time: the order in which its homes have executed writes.

/// One state of a key. Its place in the history is its value.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// When the next one began.
    pub to: Option<u64>,
    pub is_there: bool,
    /// When it dies at its home.
    pub dies: Option<u64>,
    pub flush_number: u32,
    /// A `flush_all` of a higher number was done on all servers at this time.
    pub flushed: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Truth {
    states: Vec<State>,
    /// Its home has died or has evicted it: the next request at a home ends the state.
    pub is_lost: bool,
}

impl Truth {
    pub fn new() -> Truth {
        let nothing =
            State { to: None, is_there: false, dies: None, flush_number: 0, flushed: None };
        Truth { states: vec![nothing], is_lost: false }
    }

    pub fn at(&self, place: usize) -> State {
        self.states[place]
    }

    pub fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// A home executes a write; the place of the new state.
    pub fn is_written(
        &mut self,
        now: u64,
        is_there: bool,
        dies: Option<u64>,
        flush_number: u32,
    ) -> usize {
        self.is_lost = false;
        self.states.last_mut().expect("there is a first").to = Some(now);
        self.states.push(State { to: None, is_there, dies, flush_number, flushed: None });
        self.last()
    }

    /// A home tells somebody that nothing is there.
    pub fn is_missed(&mut self, now: u64) -> usize {
        if self.states[self.last()].is_there {
            return self.is_written(now, false, None, u32::MAX);
        }
        self.is_lost = false;
        self.last()
    }

    /// It moves to a home with another clock. Who has asked the other one may be told of it still.
    pub fn dies_at(&mut self, dies: Option<u64>) {
        let last = self.states.last_mut().expect("there is a first");
        last.dies = last.dies.max(dies);
    }

    /// A `flush_all` has been done by all servers.
    pub fn is_flushed(&mut self, now: u64, number: u32) {
        let older = |state: &&mut State| state.flush_number < number && state.flushed.is_none();
        self.states.iter_mut().rev().take(200).filter(older).for_each(|state| {
            state.flushed = Some(now);
        });
    }
}
