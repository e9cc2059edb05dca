//! What a client is told when the owner of its key cannot be reached: what a client of a memcached that is gone would see.
//! What reads has missed, what writes has failed, and nobody knows whether it was executed.

use std::borrow::Cow;

use mbal_model::Key;
use mbal_wire::{Binary, Command, Head, Request, Status};

use crate::commands::meta_reply::push_sent;
use crate::sessions::job::is_read;

/// What a client is told whose write did not reach the owner of its key, or got no answer: nobody knows whether it was
/// executed, and nobody repeats it.
pub const NO_ROUTE: &str = "SERVER_ERROR no route to owner";
pub(crate) const NO_ROUTE_LINE: &[u8] = b"SERVER_ERROR no route to owner\r\n";

/// The end of a `get` that has found nothing.
pub(crate) const END: &[u8] = b"END\r\n";

/// Told instead of a reply that will not come.
pub(crate) struct Lost {
    pub told: Cow<'static, [u8]>,
    /// It is a miss.
    pub missed: bool,
    /// The request changes nothing.
    pub reads: bool,
}

impl Lost {
    pub fn of(request: &Request<'_>, key: &Key<'_>) -> Lost {
        let reads = is_read(request);
        let missed = |told| Lost { told, missed: true, reads };
        match request {
            Request::Get(_) => missed(END.into()),
            Request::MetaGet(meta) if meta.flags.has(b'q') => missed(b"".into()),
            Request::MetaGet(meta) if !meta.flags.has(b'O') && !meta.flags.has(b'k') => {
                missed(b"EN\r\n".into())
            }
            Request::MetaGet(meta) => {
                let mut told = b"EN".to_vec();
                for word in meta.words() {
                    push_sent(&mut told, word, key.bytes(), meta.flags.has(b'b'));
                }
                told.extend_from_slice(b"\r\n");
                missed(told.into())
            }
            Request::Binary(Binary { frame, command }) => match command {
                Command::Get { with_value: true, .. } if frame.quiet => missed(b"".into()),
                Command::Get { with_value: true, with_key, key, .. } => {
                    let mut told = Vec::new();
                    match with_key {
                        true => {
                            let head = Head { key, ..Head::default() };
                            frame.push_head(&mut told, Status::NotFound, &head);
                        }
                        false => frame.push_error(&mut told, Status::NotFound),
                    }
                    missed(told.into())
                }
                _ => {
                    let mut told = Vec::new();
                    frame.push_error(&mut told, Status::TemporaryFailure);
                    Lost { told: told.into(), missed: false, reads }
                }
            },
            _ if request.noreply() => Lost { told: b"".into(), missed: false, reads },
            _ => Lost { told: NO_ROUTE_LINE.into(), missed: false, reads },
        }
    }
}
