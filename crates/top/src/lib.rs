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
mod pages;
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
pub use pages::Page;
use pages::Pages;
use reading::Reading;
use screen::Palette;
use view::View;

/// How long a stop may go unnoticed.
const STEP: Duration = Duration::from_millis(50);

/// A server. `hint` is said behind why there is none.
pub fn run(args: &Args, hint: &str) -> ExitCode {
    ended(watch(args, hint))
}

/// A page of text every interval, made by `next`: what else may be watched. The first one has to be there.
pub fn run_pages(args: &Args, next: impl FnMut() -> Result<Page, String>) -> ExitCode {
    let stop = stop_signal();
    let shown = stop.and_then(|stop| look(args, &mut Pages::begin(next)?, &stop));
    ended(shown.map_err(|error| error.to_string()))
}

fn ended(shown: Result<(), String>) -> ExitCode {
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The terminal is what it was again.
            eprintln!("mbal top: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is watched: read again every interval, and shown.
pub(crate) trait Source {
    fn refresh(&mut self) -> io::Result<()>;
    fn draw(&self, frame: &mut ratatui::Frame<'_>);
    fn text(&self) -> String;
    /// One line, without its end.
    fn json(&self) -> String;
}

fn watch(args: &Args, hint: &str) -> Result<(), String> {
    let server = args.at.server();
    let dialer = args.access.open()?;
    let shown = stop_signal().and_then(|stop| {
        let connection = Connection::connect(&server, dialer)
            .map_err(|error| io::Error::new(error.kind(), format!("{error}{hint}")))?;
        let mut server = Watched { connection, before: None, view: None, palette: palette() };
        server.refresh()?;
        look(args, &mut server, &stop)
    });
    shown.map_err(|error| format!("{server}: {error}"))
}

fn palette() -> Palette {
    match std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        true => Palette::Plain,
        false => Palette::Colours,
    }
}

fn stop_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn look(args: &Args, source: &mut impl Source, stop: &AtomicBool) -> io::Result<()> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if args.once || args.json || dumb || !io::stdout().is_terminal() {
        return print(args, source, stop);
    }
    let mut terminal = ratatui::try_init()?;
    let shown = show(args, source, stop, &mut terminal);
    ratatui::restore();
    shown
}

/// A server, and what it told last.
struct Watched {
    connection: Connection,
    before: Option<(Instant, Reading)>,
    /// What has happened between the last two times; nothing yet, after the first.
    view: Option<View>,
    palette: Palette,
}

impl Source for Watched {
    fn refresh(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let reading = Reading::take(&mut self.connection)?;
        let before = self.before.replace((now, reading));
        let (_, reading) = self.before.as_ref().expect("just put there");
        self.view = before.map(|(then, before)| {
            View::between(&self.connection.name(), &before, reading, (now - then).as_secs_f64())
        });
        Ok(())
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        screen::draw(frame, self.view.as_ref(), self.palette);
    }

    fn text(&self) -> String {
        self.view.as_ref().map_or_else(String::new, screen::text)
    }

    fn json(&self) -> String {
        self.view.as_ref().map_or_else(String::new, json::of)
    }
}

/// Text or JSON, once or as long as somebody reads.
fn print(args: &Args, source: &mut impl Source, stop: &AtomicBool) -> io::Result<()> {
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
        source.refresh()?;
        let text = match args.json {
            true => source.json() + "\n",
            false => between.to_owned() + &source.text(),
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
    source: &mut impl Source,
    stop: &AtomicBool,
    terminal: &mut ratatui::DefaultTerminal,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| source.draw(frame))?;
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
                    terminal.draw(|frame| source.draw(frame))?;
                }
                _ => {}
            }
        }
        source.refresh()?;
    }
}
