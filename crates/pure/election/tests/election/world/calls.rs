//! Calls on their way to etcd and back, and what goes wrong with them.

use super::*;

impl World {
    pub(super) fn call(&mut self, host: usize, lane: Lane, call: Call) {
        self.calls_ever += 1;
        let number = self.calls_ever;
        self.hosts[host].waits[lane as usize] = Some(number);
        let patience = ANSWERS_WITHIN[lane as usize] as f64 / self.hosts[host].rate;
        self.sim.after(patience as u64, Event::Late { host, number, lane });
        let is_cut = self.sim.now < self.hosts[host].cut_until
            || lane == Lane::Save && self.sim.now < self.hosts[host].saves_hang_until;
        let is_away = self.sim.now < self.etcd_away_until;
        if is_away && self.sim.random.below(2) == 0 {
            let back = match lane {
                Lane::Election => Back::Told(Response::Nothing),
                Lane::Save => Back::Settled(SaveResponse::NotExecuted),
            };
            return self.sim.after(300, Event::Back { host, number, back });
        }
        let is_trouble = self.sim.now < TROUBLE;
        if is_away || is_cut || is_trouble && self.sim.random.below(50) == 0 {
            return;
        }
        // A client of HTTP asks again by itself when a connection breaks.
        if is_trouble && self.sim.random.below(40) == 0 {
            let when = self.sim.now + self.delay();
            self.sim
                .at(when, Event::Arrives { host, number, call: call.clone(), is_answered: false });
        }
        let is_answered = !is_trouble || self.sim.random.below(40) != 0;
        let delay = self.delay();
        self.sim.after(delay, Event::Arrives { host, number, call, is_answered });
    }

    fn delay(&mut self) -> u64 {
        let most = match self.sim.now < self.slow_until {
            true => self.sim.one_of(&[50_000, 350_000, 650_000, 4 * SECOND]),
            false => 5_000,
        };
        200 + self.sim.random.below(most)
    }

    pub(super) fn arrives(
        &mut self,
        host: usize,
        number: u64,
        call: Call,
        is_answered: bool,
    ) -> Result<(), Failed> {
        if self.sim.now < self.etcd_away_until {
            return Ok(());
        }
        let mut when = self.sim.now + self.delay();
        let back = match call {
            Call::Ask(question) => {
                let luck = self.sim.random.below(2) == 0;
                let (before, now) = (self.etcd.term(), self.etcd_now());
                let (answer, is_removed) =
                    match self.etcd.ask(now, question, &format!("host {host}"), luck) {
                        Answered::Now(answer) => (answer, false),
                        Answered::At(time, answer) => {
                            self.sim.met.count("lease renewed that was being revoked");
                            when += ((time - now).as_micros() as f64 / self.etcd_rate) as u64 + 1;
                            (answer, true)
                        }
                    };
                if let (Response::Renewed { raft_term, .. }, false) = (&answer, is_removed) {
                    if *raft_term < self.etcd.raft_term() {
                        self.sim.met.count("lease renewed by a replaced leader of etcd");
                    }
                }
                let after = self.etcd.term();
                if matches!(question, Request::Campaign { .. }) && after != before {
                    if self.etcd.leaders_ever() > 1 {
                        self.sim.met.count("another leads after the first");
                    }
                    if !is_answered {
                        self.sim.met.count("campaign unanswered");
                    }
                }
                Back::Told(answer)
            }
            Call::Save(fence, value) => {
                let answer = self.etcd.save(fence, value)?;
                let is_written = matches!(answer, SaveResponse::Written(_));
                if is_written && self.given_up.contains(&value.id) {
                    self.sim.met.count("save executed after its caller gave up");
                }
                Back::Settled(answer)
            }
        };
        if is_answered {
            self.sim.at(when, Event::Back { host, number, back });
        }
        Ok(())
    }

    /// Something goes wrong, for a while.
    pub(super) fn trouble(&mut self) {
        if TROUBLE < self.sim.now {
            return;
        }
        let host = self.sim.random.below(HOSTS as u64) as usize;
        let until = self.sim.now + self.sim.random.below(6 * SECOND);
        match self.sim.random.below(7) {
            0 => {
                if self.hosts[host].installed.is_some() {
                    self.sim.met.count("stopped while leading");
                }
                self.hosts[host].stopped_until = until;
            }
            1 => self.hosts[host].cut_until = until,
            2 => {
                self.sim.met.count("saves hang");
                self.hosts[host].saves_hang_until = until + 10 * SECOND;
            }
            3 => {
                self.sim.met.count("etcd away");
                self.etcd_away_until = until;
            }
            4 => self.slow_until = until,
            _ => {
                let now = self.etcd_now();
                self.etcd.change_leader(now);
            }
        }
        let gap = self.sim.random.below(2 * SECOND);
        self.sim.after(gap, Event::Trouble);
    }
}
