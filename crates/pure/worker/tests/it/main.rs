//! The worker as its driver sees it: events in, actions out.

mod neighbours;
mod rig;

mod asked;
mod binary;
mod bounds;
mod copies;
mod datagrams;
mod discovery;
mod distances;
mod everywhere;
mod fields;
mod hints;
mod insights;
mod lease;
mod load;
mod maps;
mod moving;
mod orders;
mod peers;
mod room;
mod splits;
mod stats;
mod vectors;
mod verbose;
mod walks;
mod watch;
