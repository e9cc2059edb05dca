//! What simulations of proxies share: memcacheds of few commands, histories of keys against which reads are held, and links.

#![allow(dead_code, reason = "each simulation uses some of it")]

pub mod history;
pub mod links;
pub mod memcached;
