//! `mbal top`: what a server does now, in a terminal, as text or as JSON.
//!
//! Called by the `mbal` binary. Knows a server only by what its ordinary port tells: `stats` and its
//! topics, and of stock memcached `stats` and `watch`. Never asks for a key's value.
//!
//! ```text
//!   Connection ──stats, stats hot, ...──► Reading ─┬─ two of them ─► View ─┬─► screen (ratatui)
//!              ──watch, a moment long──►           │                       ├─► the same as text
//!                                                  └─ half a second apart  └─► JSON
//! ```

#![forbid(unsafe_code)]

mod args;
mod connection;
mod json;
mod reading;
mod screen;
mod view;
mod watched;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use args::Args;
use connection::Connection;
use mbal_dial::{Dialer, ServerName};
use reading::Reading;
use screen::Palette;
use view::View;

/// How long a stop may go unnoticed.
const STEP: Duration = Duration::from_millis(50);

pub fn run(args: Args) -> ExitCode {
    match watch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The terminal is what it was again.
            eprintln!("mbal top: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(args: &Args) -> Result<(), String> {
    let server = args.at.server();
    let dialer = args.access.open()?;
    let at_server = |error| format!("{server}: {error}");
    look(args, &server, dialer).map_err(at_server)
}

fn look(args: &Args, server: &ServerName, dialer: Dialer) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut server = Watched { connection: Connection::connect(server, dialer)?, before: None };
    server.read()?;
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if args.once || args.json || dumb || !io::stdout().is_terminal() {
        return print(args, &mut server, &stop);
    }
    let mut terminal = ratatui::try_init()?;
    let shown = show(args, &mut server, &stop, &mut terminal);
    ratatui::restore();
    shown
}

/// A server, and what it told last.
struct Watched {
    connection: Connection,
    before: Option<(Instant, Reading)>,
}

impl Watched {
    /// What has happened since the last time; nothing yet, the first time.
    fn read(&mut self) -> io::Result<Option<View>> {
        let now = Instant::now();
        let reading = Reading::take(&mut self.connection)?;
        let before = self.before.replace((now, reading));
        let (_, reading) = self.before.as_ref().expect("just put there");
        Ok(before.map(|(then, before)| {
            View::between(&self.connection.name(), &before, reading, (now - then).as_secs_f64())
        }))
    }
}

/// Text or JSON, once or as long as somebody reads.
fn print(args: &Args, server: &mut Watched, stop: &AtomicBool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut between = "";
    loop {
        let due = Instant::now() + args.interval;
        while Instant::now() < due {
            if stop.load(Relaxed) {
                return Ok(());
            }
            thread::sleep(STEP.min(due.saturating_duration_since(Instant::now())));
        }
        let view = server.read()?.expect("it was read before");
        let text = match args.json {
            true => json::of(&view) + "\n",
            false => between.to_owned() + &screen::text(&view),
        };
        between = "\n";
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        if args.once {
            return Ok(());
        }
    }
}

fn show(
    args: &Args,
    server: &mut Watched,
    stop: &AtomicBool,
    terminal: &mut ratatui::DefaultTerminal,
) -> io::Result<()> {
    let palette = if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        Palette::Plain
    } else {
        Palette::Colours
    };
    let mut view = None;
    loop {
        terminal.draw(|frame| screen::draw(frame, view.as_ref(), palette))?;
        let due = Instant::now() + args.interval;
        while Instant::now() < due {
            if stop.load(Relaxed) {
                return Ok(());
            }
            if !event::poll(STEP.min(due.saturating_duration_since(Instant::now())))? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    _ => {}
                },
                Event::Resize(..) => {
                    terminal.draw(|frame| screen::draw(frame, view.as_ref(), palette))?;
                }
                _ => {}
            }
        }
        view = server.read()?;
    }
}
