//! Who may use the server: `-Y` (text, a first `set`) and `-S` (binary, SASL PLAIN).

use mbal_wire::{Binary, Command, Frame, Login, Request, Status};

use crate::commands::context::Context;
use crate::commands::turn::Turn;
use crate::sessions::session::Session;

pub(crate) fn log_in(turn: &mut Turn<'_>, request: &Request<'_>, session: &mut Session) {
    match request {
        Request::Login { user, password } => {
            let line: &[u8] = if admits(&turn.on, user, password) {
                session.login = Login::Done;
                b"STORED"
            } else {
                b"CLIENT_ERROR authentication failure"
            };
            turn.line(line);
        }
        Request::Binary(Binary { frame, command }) => {
            if let Command::Authenticate { mechanism, credentials, step } = command {
                authenticate(turn, frame, mechanism, credentials, *step, session);
            }
        }
        _ => unreachable!("nothing else logs in"),
    }
}

/// PLAIN in one request, or with its credentials in a second one.
fn authenticate(
    turn: &mut Turn<'_>,
    frame: &Frame,
    mechanism: &[u8],
    credentials: &[u8],
    step: bool,
    session: &mut Session,
) {
    session.login = Login::Needed;
    let begun = std::mem::replace(&mut session.login_begun, false);
    let plain = mechanism.eq_ignore_ascii_case(b"PLAIN") && (begun || !step);
    if plain && credentials.is_empty() && !step {
        session.login_begun = true;
        return frame.push(turn.out, Status::AuthContinue, b"", 0);
    }
    let parts: Vec<&[u8]> = credentials.split(|byte| *byte == 0).collect();
    // Whom to act as, who one is, and the password.
    let admitted = match parts[..] {
        [_, user, password] if plain && !user.is_empty() => admits(&turn.on, user, password),
        _ => {
            turn.on.counters.auth_cmds.add(1);
            turn.on.counters.auth_errors.add(1);
            false
        }
    };
    if admitted {
        session.login = Login::Done;
        frame.push(turn.out, Status::Success, b"Authenticated", 0);
    } else {
        frame.push_error(turn.out, Status::AuthError);
    }
}

fn admits(on: &Context<'_>, user: &[u8], password: &[u8]) -> bool {
    let authenticator = on.shared.authenticator.as_ref();
    let admitted = authenticator.is_some_and(|admits| admits(user, password));
    on.counters.auth_cmds.add(1);
    on.counters.auth_errors.add(u64::from(!admitted));
    admitted
}
