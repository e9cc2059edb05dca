//! What is on its way over a link: deadlines of requests, and whether the other side is still there.

use std::collections::VecDeque;

/// The requests on one link, and when something was last heard of the other side.
#[derive(Debug)]
pub struct Waiting {
    timeout_ns: u64,
    /// In the order in which they were sent, so in that of their deadlines and tickets.
    requests: VecDeque<Request>,
    /// When the first thing was sent that should have been heard of and has not been.
    silent_since: Option<u64>,
    pinged: bool,
}

#[derive(Debug)]
struct Request {
    ticket: u64,
    deadline: u64,
    over: bool,
}

/// What has come due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This request gets no answer any more.
    Expired(u64),
    /// Ask whether the other side is there.
    Ping,
    /// It is not: the link has to go.
    Silent,
}

impl Waiting {
    pub fn new(timeout_ns: u64) -> Waiting {
        Waiting { timeout_ns, requests: VecDeque::new(), silent_since: None, pinged: false }
    }

    /// Tickets count up.
    pub fn sent(&mut self, ticket: u64, now: u64) {
        let last = self.requests.back().map_or(0, |last| last.ticket);
        assert!(last < ticket, "tickets count up");
        let deadline = now + self.timeout_ns;
        self.requests.push_back(Request { ticket, deadline, over: false });
        self.silent_since.get_or_insert(now);
    }

    /// Requests that may still be answered; about, since some are over whose places are not free yet.
    pub fn unanswered(&self) -> usize {
        self.requests.len()
    }

    /// Which request a reply answers, by the last 32 bits of its ticket; `None` if it comes too late, or nobody asked.
    pub fn answered(&mut self, wire_ticket: u32) -> Option<u64> {
        let first = self.requests.front()?.ticket;
        let ticket = first + u64::from(wire_ticket.wrapping_sub(first as u32));
        let at = self.requests.binary_search_by_key(&ticket, |request| request.ticket).ok()?;
        let was_over = std::mem::replace(&mut self.requests[at].over, true);
        self.forget_those_over();
        (!was_over).then_some(ticket)
    }

    /// Something arrived, whatever it was. After [`Waiting::answered`].
    pub fn heard(&mut self, now: u64) {
        self.pinged = false;
        self.silent_since = (!self.requests.is_empty()).then_some(now);
    }

    /// A second without requests may hide that the other side has gone: true if it is to be asked.
    pub fn is_idle(&mut self, now: u64) -> bool {
        let is_idle = self.silent_since.is_none();
        if is_idle {
            self.silent_since = Some(now);
            self.pinged = true;
        }
        is_idle
    }

    /// When to look again.
    pub fn next(&self, receives: bool) -> Option<u64> {
        let wait = if self.pinged { self.timeout_ns } else { self.timeout_ns / 2 };
        let silence = self.silent_since.map(|since| since + wait);
        let request = self.requests.front().filter(|_| !receives);
        let request = request.map(|request| request.deadline);
        [silence, request].into_iter().flatten().min()
    }

    /// One thing after the other, until there is none left. While a reply is being received those behind it are not late: the other side has
    /// sent them, or will, and what has come of this one says that it lives.
    pub fn due(&mut self, now: u64, receives: bool) -> Option<Due> {
        let silent_since = self.silent_since?;
        if silent_since + self.timeout_ns <= now {
            return Some(Due::Silent);
        }
        if silent_since + self.timeout_ns / 2 <= now && !self.pinged {
            self.pinged = true;
            return Some(Due::Ping);
        }
        if receives {
            return None;
        }
        let first = self.requests.front_mut().filter(|first| first.deadline <= now)?;
        let ticket = first.ticket;
        first.over = true;
        self.forget_those_over();
        Some(Due::Expired(ticket))
    }

    fn forget_those_over(&mut self) {
        while self.requests.front().is_some_and(|first| first.over) {
            self.requests.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 1000;

    #[test]
    fn a_reply_is_taken_once_in_whatever_order_and_not_too_late() {
        let mut waiting = Waiting::new(TIMEOUT);
        let high = u64::from(u32::MAX);
        for ticket in [high - 1, high, high + 1, high + 5] {
            waiting.sent(ticket, 0);
        }
        assert_eq!(waiting.answered(0), Some(high + 1));
        assert_eq!(waiting.answered(0), None);
        assert_eq!(waiting.answered(u32::MAX - 1), Some(high - 1));
        assert_eq!(waiting.answered(2), None);
        waiting.heard(900);
        assert_eq!(waiting.due(999, false), None);
        assert_eq!(waiting.due(1000, false), Some(Due::Expired(high)));
        assert_eq!(waiting.due(1000, false), Some(Due::Expired(high + 5)));
        assert_eq!(waiting.due(1000, false), None);
        assert_eq!(waiting.answered(u32::MAX), None);
    }

    #[test]
    fn silence_is_asked_about_at_half_time_and_ends_the_link() {
        let mut waiting = Waiting::new(TIMEOUT);
        assert_eq!((waiting.next(false), waiting.due(u64::MAX, false)), (None, None));
        waiting.sent(1, 100);
        waiting.sent(2, 400);
        assert_eq!((waiting.next(false), waiting.due(599, false)), (Some(600), None));
        assert_eq!(waiting.due(600, false), Some(Due::Ping));
        assert_eq!((waiting.next(false), waiting.due(1099, false)), (Some(1100), None));
        assert_eq!(waiting.due(1100, false), Some(Due::Silent));
    }

    #[test]
    fn one_slow_request_does_not_end_the_link() {
        let mut waiting = Waiting::new(TIMEOUT);
        waiting.sent(1, 0);
        assert_eq!(waiting.due(500, false), Some(Due::Ping));
        waiting.heard(700);
        assert_eq!(
            (waiting.next(false), waiting.due(1000, false)),
            (Some(1000), Some(Due::Expired(1)))
        );
        assert_eq!(waiting.due(1000, false), None);
    }

    #[test]
    fn what_stands_behind_a_reply_that_is_being_received_is_not_late() {
        let mut waiting = Waiting::new(TIMEOUT);
        waiting.sent(1, 0);
        waiting.heard(900);
        assert_eq!((waiting.next(true), waiting.due(1000, true)), (Some(1400), None));
        // The rest of it does not come.
        assert_eq!(waiting.due(1400, true), Some(Due::Ping));
        assert_eq!((waiting.due(1899, true), waiting.due(1900, true)), (None, Some(Due::Silent)));
        waiting.heard(1899);
        assert_eq!(waiting.due(1899, false), Some(Due::Expired(1)));
    }

    #[test]
    fn an_idle_link_is_asked_whether_it_lives() {
        let mut waiting = Waiting::new(TIMEOUT);
        assert!(waiting.is_idle(0) && !waiting.is_idle(10));
        assert_eq!(waiting.next(false), Some(1000));
        waiting.heard(20);
        assert_eq!(waiting.next(false), None);
        assert!(waiting.is_idle(1000));
        assert_eq!(waiting.due(2000, false), Some(Due::Silent));
    }
}
