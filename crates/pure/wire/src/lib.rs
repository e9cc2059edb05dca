//! memcached's text, meta and binary protocols, and its datagrams: bytes to [`Request`], replies to bytes.
//!
//! Called by `worker`. Never allocates for a request, never looks at an item, never knows a
//! connection: what is left of the input, and what to skip of it, is the session's business.
//! Every reply is appended to a `Vec` that the caller reuses.

#![forbid(unsafe_code)]

mod admin;
mod base64;
mod binary;
mod binary_client;
mod class;
mod escaped;
mod framing;
mod line;
mod meta;
mod meta_key;
mod meta_request;
mod number;
mod peer;
mod printable;
mod reply;
mod request;
mod switching;
mod text;
mod udp;
mod words;

pub use admin::{CLASSES_MAX, full_name, streams};
pub use base64::{base64_decode, base64_encode};
pub use binary::{
    BINARY_HEAD_BYTES, BINARY_REQUEST, Binary, Command, Frame, Head, Status, opcode, parse_binary,
};
pub use binary_client::{BinaryReply, binary_delete, binary_request, push_binary_request};
pub use class::Class;
pub use escaped::{push_escaped, push_readable, unescaped};
pub use framing::{Framed, ReplyKind, Values, frame, lone_value, plain_value_bytes, value_length};
pub use line::{GET_LINE_BYTES_MAX, may_grow, parse};
pub use meta::{Meta, MetaFlags, opaque_too_long};
pub use meta_key::{is_meta_key, push_meta_key};
pub use number::{parse_u64, push_i64, push_u64, word_i32, word_u32, word_u64};
pub use peer::{Gone, HOPS_MAX, PeerRequest, next_value};
pub use printable::{is_printable, printable, push_printable};
pub use reply::{
    ItemHead, MetaHead, MetaStatus, NotAReply, REPLY_LINE_BYTES_MAX, VALUE_BYTES_MAX, ValueHead,
    is_error, is_error_reply, push_line, push_value, reply_block, reply_line,
};
pub use request::{
    Admin, Chunk, ClassSet, DISCOVERY_KEY, Direction, Get, Limits, Login, Parsed, Request,
    Shutdown, Storage, Tune, Verb, Walk,
};
pub use switching::{
    SWITCH, SWITCH_AT_WORK, SWITCH_IN_DOUBT, SWITCH_KEYS_MAX, SWITCH_LINE_BYTES_MAX, SwitchLine,
    SwitchOrder, SwitchReply, SwitchSession, SwitchStep, SwitchWritten,
};
pub use udp::{DATAGRAM_BYTES_MAX, datagrams, parse_datagram};
pub use words::{LINE_BYTES_MAX, Tokens, next_word, words_of};
