//! What experiments and trace tests share: the traces of the data folder, streams with a
//! published shape, and where results go.

#![allow(dead_code, reason = "each experiment uses a part")]

pub mod traces;
pub mod wikipedia;

use std::path::{Path, PathBuf};

/// The project's root, from any crate of it.
pub fn root() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders
        .find(|folder| folder.join("Cargo.lock").exists())
        .expect("a crate of the project")
        .into()
}

/// Writes `docs/results/deciders/<name>`.
pub fn write_result(name: &str, text: &str) {
    let folder = root().join("docs/results/deciders");
    std::fs::create_dir_all(&folder).expect("the results folder can be made");
    std::fs::write(folder.join(name), text).expect("results can be written");
}
