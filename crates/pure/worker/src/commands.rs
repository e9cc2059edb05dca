//! Commands on items that are here, and operators' commands: a request in, its reply appended.

pub(crate) mod admin;
pub(crate) mod binary;
pub(crate) mod change;
pub(crate) mod classic;
pub(crate) mod context;
pub(crate) mod discovery;
pub(crate) mod execute;
pub(crate) mod hints;
pub(crate) mod insights;
pub(crate) mod items;
pub(crate) mod login;
pub(crate) mod meta;
pub(crate) mod meta_reply;
pub(crate) mod meta_write;
pub(crate) mod stats;
pub(crate) mod stats_classes;
pub(crate) mod stats_cluster;
pub(crate) mod stats_settings;
pub(crate) mod tell;
pub(crate) mod turn;
pub(crate) mod walks;
