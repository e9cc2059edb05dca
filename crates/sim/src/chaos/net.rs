//! The network between servers, and between each and the coordinator: how long something takes, and which way is silent.

use super::history::Micros;
use super::world::World;

/// Which ways are silent, and until when. The coordinator's host comes after the servers.
pub struct Net {
    until: Vec<Vec<Micros>>,
}

impl Net {
    pub fn new(servers: usize) -> Net {
        Net { until: vec![vec![0; servers + 1]; servers + 1] }
    }
}

impl World {
    /// When a call or its answer arrives that is sent now.
    pub fn arrives(&mut self, from: usize, to: usize) -> Micros {
        let longest = self.profile.call_delay;
        let delay = self.dice.skewed(1..=longest);
        (self.now + delay).max(self.net.until[from][to] + 1)
    }

    /// The same of what goes over a link.
    pub fn arrives_by_link(&mut self, from: usize, to: usize) -> Micros {
        let longest = self.profile.link_delay;
        let delay = self.dice.skewed(1..=longest);
        (self.now + delay).max(self.net.until[from][to])
    }

    pub fn is_silent(&self, from: usize, to: usize) -> bool {
        self.now < self.net.until[from][to]
    }

    /// Nothing goes this way for a while; what is sent comes later, as TCP sends it again.
    pub fn silence(&mut self, from: usize, to: usize, until: Micros) {
        let silent = &mut self.net.until[from][to];
        *silent = until.max(*silent);
    }

    pub fn end_silences(&mut self) {
        self.net.until.iter_mut().for_each(|ways| ways.fill(0));
    }
}
