//! What requests do, for those who count them.

use crate::binary::Command;
use crate::request::{Admin, Request};

/// What a request does, whatever its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Get,
    Set,
    Touch,
    Delete,
    Arithmetic,
    Flush,
    /// What needs no upstream, or is refused.
    Other,
}

impl Class {
    pub const ALL: [Class; 7] = [
        Class::Get,
        Class::Set,
        Class::Touch,
        Class::Delete,
        Class::Arithmetic,
        Class::Flush,
        Class::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Class::Get => "get",
            Class::Set => "set",
            Class::Touch => "touch",
            Class::Delete => "delete",
            Class::Arithmetic => "arithmetic",
            Class::Flush => "flush",
            Class::Other => "other",
        }
    }

    #[inline]
    pub fn of(request: &Request<'_>) -> Class {
        match request {
            Request::Get(_) | Request::MetaGet(_) => Class::Get,
            Request::Store(_) | Request::MetaSet(..) | Request::TooLarge { .. } => Class::Set,
            Request::Touch { .. } => Class::Touch,
            Request::Delete { .. } | Request::MetaDelete(_) => Class::Delete,
            Request::Arithmetic { .. } | Request::MetaArithmetic(_) => Class::Arithmetic,
            Request::Admin { command: Admin::FlushAll { .. }, .. } => Class::Flush,
            Request::Binary(binary) => match binary.command {
                Command::Get { with_value: false, touch: Some(_), .. } => Class::Touch,
                Command::Get { .. } => Class::Get,
                Command::Store(_) | Command::TooLarge { .. } => Class::Set,
                Command::Delete { .. } => Class::Delete,
                Command::Arithmetic { .. } => Class::Arithmetic,
                _ => Class::Other,
            },
            _ => Class::Other,
        }
    }
}
