//! A worker's links to other servers, from handshake to break: frames to events.

use std::os::fd::AsFd;

use mbal_link::{DEADLINES, Due, Gathering, MOMENT_BYTES, PeerClock, Waiting};
use mbal_model::ServerId;
use mbal_worker::{Action, Actions, Event, Ticket};

use super::EventLoop;
use super::link::{End, Link};
use super::links::{LINKS, UNUSED_NS_MAX};
use crate::letters::Linked;
use crate::output::{KEPT_BYTES_MAX, Output};
use crate::sys::{self, READABLE};

impl EventLoop {
    pub(super) fn link(
        &mut self,
        linked: Linked,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Linked { fd, tls, established, dialed, input } = linked;
        let server = ServerId(established.server);
        let links = self.links.as_mut().expect("who has a linker has links");
        links.last_serial = links.last_serial.wrapping_add(1);
        let timed = established.version >= DEADLINES;
        let end = match dialed {
            true => {
                let (waiting, gathering) = (Waiting::new(links.timeout_ns), Gathering::default());
                // By now: the reading was here before.
                let heard = self.clock.now_ns();
                let clock = timed.then(|| PeerClock::new(established.reading, heard));
                End::Dialed { server, waiting, gathering, clock }
            }
            false => {
                links.drop_accepted(server, established.worker);
                let (worker, serial) = (established.worker, links.last_serial);
                End::Accepted { server, worker, serial, heard: now, timed }
            }
        };
        let (sending, output) = (Vec::new(), Output::default());
        let mut link = Link { fd, tls, input: Vec::new(), sending, output, stalled: false, end };
        let free = links.all.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            links.all.push(None);
            links.all.len() - 1
        });
        let watched = self.epoll.add(link.fd.as_fd(), READABLE, LINKS + place as u64);
        if dialed {
            let up = Event::LinkUp { server, credits: established.credits };
            handle(now, up, &mut self.actions);
        }
        let went = watched.map_err(|error| error.to_string());
        let went = went.and_then(|()| self.take_link(&mut link, &input, handle));
        self.keep_link(place, link, went);
        if dialed && self.links().all[place].is_some() {
            // The handshake's reading may have been long on its way.
            self.links().ping(place);
        }
        self.settle(now, handle);
    }

    pub(super) fn serve_link(
        &mut self,
        place: usize,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let links = self.links.as_mut().expect("an event of a link");
        let Some(mut link) = links.all[place].take() else { return };
        let went = self.receive_link(place, &mut link, now, handle);
        self.keep_link(place, link, went);
        self.settle(now, handle);
    }

    fn keep_link(&mut self, place: usize, link: Link, went: Result<(), String>) {
        let links = self.links.as_mut().expect("it is a link");
        match went {
            Ok(()) => {
                if !link.sending.is_empty() && !links.unsent.contains(&place) {
                    links.unsent.push(place);
                }
                links.all[place] = Some(link);
            }
            Err(why) => links.end(self.worker, link, why),
        }
    }

    fn receive_link(
        &mut self,
        place: usize,
        link: &mut Link,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) -> Result<(), String> {
        if !link.output.is_empty() {
            link.flush()?;
            self.listen_to(place, link)?;
        }
        if matches!(link.end, End::Accepted { .. }) && (link.stalled || !link.output.is_empty()) {
            return Ok(());
        }
        let count = match sys::recv(link.fd.as_fd(), &mut self.buffer) {
            Ok(0) => return Err("it closed".into()),
            Ok(count) => count,
            Err(error) if sys::is_transient(&error) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        match &mut link.tls {
            None => {
                let buffer = std::mem::take(&mut self.buffer);
                let taken = self.take_link(link, &buffer[..count], handle);
                self.buffer = buffer;
                taken?;
            }
            Some(tls) => {
                let mut plain = std::mem::take(&mut self.plain);
                let mut cipher = std::mem::take(&mut self.cipher);
                let received = tls.receive(&self.buffer[..count], &mut plain, &mut cipher);
                link.output.push(&cipher);
                let taken = received.and_then(|()| self.take_link(link, &plain, handle));
                plain.clear();
                cipher.clear();
                (self.plain, self.cipher) = (plain, cipher);
                taken?;
                if !link.output.is_empty() {
                    link.flush()?;
                    self.listen_to(place, link)?;
                }
            }
        }
        match &mut link.end {
            End::Dialed { waiting, gathering, .. } => {
                waiting.heard(now);
                gathering.heard(now);
            }
            End::Accepted { heard, .. } => *heard = now,
        }
        Ok(())
    }

    /// Tells the worker of the frames in what was kept, and in `bytes`.
    fn take_link(
        &mut self,
        link: &mut Link,
        bytes: &[u8],
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) -> Result<(), String> {
        let max = self.links.as_ref().expect("it is a link").payload_bytes_max + MOMENT_BYTES;
        let clock = self.clock;
        let actions = &mut self.actions;
        let tell = |now: u64, event: Event<'_>| {
            let before = actions.list.len();
            handle(now, event, actions);
            let reply_bytes = |action: &Action| match action {
                Action::Answer { reply, .. } => reply.len(),
                _ => 0,
            };
            actions.list[before..].iter().map(reply_bytes).sum()
        };
        if link.input.is_empty() {
            let used = link.take(bytes, max, &clock, tell)?;
            link.input.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut input = std::mem::take(&mut link.input);
        input.extend_from_slice(bytes);
        let used = link.take(&input, max, &clock, tell)?;
        input.drain(..used);
        if input.is_empty() {
            input.shrink_to(KEPT_BYTES_MAX);
        }
        link.input = input;
        Ok(())
    }

    fn listen_to(&self, place: usize, link: &Link) -> Result<(), String> {
        let token = LINKS + place as u64;
        let changed = self.epoll.modify(link.fd.as_fd(), link.interest(), token);
        changed.map_err(|error| error.to_string())
    }

    /// The end of a wake-up: what is to be sent leaves, and what is due is done.
    pub(super) fn finish_links(
        &mut self,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        self.do_what_is_due(now, handle);
        self.go_on_with_stalled(now, handle);
        while let Some(place) = self.links().unsent.pop() {
            let Some(mut link) = self.links().all[place].take() else { continue };
            let gathers = link.gathers_until(now).is_some();
            if gathers || link.sending.is_empty() {
                self.links().all[place] = Some(link);
                if gathers {
                    self.links().gathering.push(place);
                }
                continue;
            }
            let had_output = !link.output.is_empty();
            let mut went = link.send(now);
            if went.is_ok() && had_output == link.output.is_empty() {
                went = self.listen_to(place, &link);
            }
            match went {
                Ok(()) => self.links().all[place] = Some(link),
                Err(why) => {
                    let worker = self.worker;
                    self.links().end(worker, link, why);
                    self.settle(now, handle);
                }
            }
        }
        let links = self.links();
        std::mem::swap(&mut links.unsent, &mut links.gathering);
    }

    fn do_what_is_due(&mut self, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        for place in 0..self.links().all.len() {
            let worker = self.worker;
            while let Some(Link { end: End::Dialed { server, waiting, .. }, input, .. }) =
                &mut self.links().all[place]
            {
                let server = *server;
                match waiting.due(now, !input.is_empty()) {
                    None => break,
                    Some(Due::Expired(ticket)) => {
                        let ticket = Ticket(ticket);
                        handle(now, Event::Unanswered { server, ticket }, &mut self.actions);
                    }
                    Some(Due::Ping) => self.links().ping(place),
                    Some(Due::Silent) => {
                        let link = self.links().all[place].take().expect("it was just there");
                        self.links().end(worker, link, "it does not answer".into());
                    }
                }
                self.settle(now, handle);
            }
        }
    }

    fn go_on_with_stalled(&mut self, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        for place in 0..self.links().all.len() {
            let can_go_on = |link: &&mut Link| link.can_go_on();
            if self.links().all[place].as_mut().filter(can_go_on).is_some() {
                let mut link = self.links().all[place].take().expect("it was just there");
                let went = self.take_link(&mut link, b"", handle);
                self.keep_link(place, link, went);
                self.settle(now, handle);
            }
        }
    }

    /// Once a second: servers of which nothing is heard are asked, and those that have not asked for long are forgotten.
    pub(super) fn ask_idle_links(
        &mut self,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Some(links) = &mut self.links else { return };
        for place in 0..links.all.len() {
            let Some(link) = &mut links.all[place] else { continue };
            match &mut link.end {
                End::Dialed { waiting, clock, .. } => {
                    // Clocks run apart.
                    if waiting.is_idle(now) || clock.is_some() {
                        links.ping(place);
                    }
                }
                End::Accepted { heard, .. } if *heard + UNUSED_NS_MAX <= now => {
                    let gone = links.all[place].take().and_then(|link| link.asker_gone());
                    links.news.extend(gone);
                }
                End::Accepted { .. } => {}
            }
        }
        self.settle(now, handle);
    }
}
