//! `mbal top` in a terminal, which is a pair of pseudo-terminals that this test reads.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::running::{MBAL, eventually};
use crate::served::Served;

const ALTERNATE_SCREEN: &str = "\u{1b}[?1049h";
const OWN_SCREEN: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

struct Terminal {
    keyboard: File,
    /// Kept open, so that the terminal outlives the program.
    line: OwnedFd,
    program: Child,
    shown: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// Runs top on 80 columns by 24 lines, in a session of its own.
    fn top(server: &Served, environment: &[(&str, &str)]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let keyboard = File::from(master);
        size(&keyboard, 80, 24);
        let stdio = || Stdio::from(line.try_clone().unwrap());
        let program = Command::new("setsid")
            .args(["--ctty", MBAL, "top", &format!("127.0.0.1:{}", server.port)])
            .args(["--interval", "0.1"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(environment.iter().copied())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let mut screen = keyboard.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&shown);
        let reader = spawn(move || {
            let mut bytes = [0; 4096];
            // When nobody has the terminal open any more, reading fails. What is shown is ASCII.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                *read.lock().unwrap() += std::str::from_utf8(&bytes[..count]).unwrap();
            }
        });
        Terminal { keyboard, line, program, shown, reader }
    }

    /// Waits for the first whole screen.
    fn shows(self) -> Terminal {
        eventually("a screen is shown", || self.shown.lock().unwrap().contains("neighbours'"));
        self
    }

    /// Its keys come one by one and unseen while the program has the terminal.
    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// All that was shown, and the exit code, once the program has ended and left the terminal as it was.
    fn ended(mut self) -> (String, Option<i32>) {
        let code = self.program.wait().unwrap().code();
        let raw = self.is_raw();
        drop((self.line, self.keyboard));
        self.reader.join().unwrap();
        let shown = self.shown.lock().unwrap().clone();
        assert!(!raw, "the terminal is as it was: {shown:?}");
        (shown, code)
    }
}

fn size(terminal: &File, columns: u16, lines: u16) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

fn check_end(shown: &str) {
    let begin = shown.find(ALTERNATE_SCREEN).expect("a screen of its own");
    let end = shown.rfind(OWN_SCREEN).expect("the old screen again");
    assert!(begin < end && shown.rfind(CURSOR).is_some_and(|at| at > begin), "{shown:?}");
}

#[test]
fn q_and_ctrl_c_end_it_and_leave_the_terminal_as_it_was() {
    let server = Served::start("keys", &["-t", "1"]);
    for key in ["q", "\u{3}", "\u{1b}"] {
        let mut terminal = Terminal::top(&server, &[]).shows();
        assert!(terminal.is_raw());
        terminal.keyboard.write_all(key.as_bytes()).unwrap();
        let (shown, code) = terminal.ended();
        assert_eq!(code, Some(0), "{key:?}: {shown:?}");
        check_end(&shown);
    }
}

#[test]
fn a_server_that_is_lost_ends_it_with_a_word_on_the_old_screen() {
    let mut server = Served::start("gone", &["-t", "1"]);
    let terminal = Terminal::top(&server, &[]).shows();
    server.child.kill().unwrap();
    let (shown, code) = terminal.ended();
    assert_eq!(code, Some(1), "{shown:?}");
    check_end(&shown);
    let said = shown.rfind(OWN_SCREEN).map(|at| &shown[at..]).unwrap();
    assert!(said.contains(&format!("mbal top: 127.0.0.1:{}: ", server.port)), "{said:?}");
}

#[test]
fn a_terminal_that_changes_its_size_is_filled_anew() {
    let server = Served::start("resized", &["-t", "1"]);
    let mut terminal = Terminal::top(&server, &[]).shows();
    for (columns, lines) in [(20, 5), (1, 1), (200, 50)] {
        let before = terminal.shown.lock().unwrap().len();
        size(&terminal.keyboard, columns, lines);
        eventually("it is drawn anew", || terminal.shown.lock().unwrap().len() > before);
        assert!(terminal.program.try_wait().unwrap().is_none(), "{columns} by {lines}");
    }
    terminal.keyboard.write_all(b"q").unwrap();
    let (shown, code) = terminal.ended();
    assert_eq!(code, Some(0), "{shown:?}");
}

#[test]
fn without_colours_none_is_sent_and_a_dumb_terminal_gets_lines() {
    let server = Served::start("plain", &["-t", "1"]);
    let mut terminal = Terminal::top(&server, &[("NO_COLOR", "1")]).shows();
    terminal.keyboard.write_all(b"q").unwrap();
    let (shown, _) = terminal.ended();
    assert!(!shown.contains("38;") && !shown.contains("48;"), "{shown:?}");

    let dumb = Terminal::top(&server, &[("TERM", "dumb")]).shows();
    crate::running::signals::send(dumb.program.id(), "INT");
    let (shown, code) = dumb.ended();
    assert_eq!(code, Some(0));
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}
