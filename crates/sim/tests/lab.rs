//! `mbal-lab` from a shell: what it prints, refuses, and leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_mbal-lab");

fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("mbal-lab-{test}-{}", std::process::id()));
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn output_of(arguments: &[&str], within: &Path) -> Output {
    Command::new(LAB).args(arguments).current_dir(within).output().unwrap()
}

fn said(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn plots_without_anything_to_draw_are_an_error() {
    let folder = folder("plots");
    let path = folder.display().to_string();
    let output = output_of(&["model", "plots", "--out", &path], &folder);
    assert_eq!((output.status.code(), said(&output.stdout)), (Some(1), ""));
    let last = said(&output.stderr).lines().last().unwrap().to_owned();
    assert_eq!(last, format!("mbal-lab: {path}: nothing to draw, no experiment has left its CSV"));
    let output = output_of(&["model", "plots"], &folder);
    let told = (output.status.code(), said(&output.stderr));
    assert_eq!(told, (Some(1), "mbal-lab: plots: --out DIR says where the CSV is\n"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_model_writes_nothing_where_no_folder_is_named() {
    let folder = folder("model");
    let model = ["model", "size", "--servers", "2", "--workers", "2", "--epochs", "1"];
    let output = output_of(&model, &folder);
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output.stdout).starts_with("# size\nservers,workers,cachelets,"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let output = output_of(&[&model[..], &["--out", "figures"]].concat(), &folder);
    assert!(output.status.success(), "{output:?}");
    let left = fs::read_dir(folder.join("figures")).unwrap();
    let left: Vec<String> =
        left.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, ["size.csv"]);
    fs::remove_dir_all(folder).unwrap();
}
