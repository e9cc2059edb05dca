//! Configuration files: what processes make of them beside flags and the environment, and what is said of wrong ones.

use std::fs;
use std::process::{Command, Stdio};

mod running;

use running::heard::Heard;
use running::{Folder, MBAL, Running, page, told};

/// Exit code, and all that is said.
fn said(words: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(MBAL);
    command.args(words).stdin(Stdio::null()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ends by itself"), String::from_utf8(text).unwrap())
}

fn file(folder: &Folder, text: &str) -> String {
    let path = folder.path("mbal.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn settings(server: &Running) -> String {
    told(server.connect(), "stats settings\r\nquit\r\n")
}

#[test]
fn a_flag_outdoes_the_environment_that_outdoes_the_file() {
    let folder = Folder::new("layers");
    let path = file(
        &folder,
        "[serve]\nport = -1\nthreads = 1\nmemory-limit = 100\nconn-limit = 50\nverbose = 1\n\
         max-reqs-per-event = 7\ncontrol = \"off\"\nlisten = [\"127.0.0.1\"]\n[proxy]\nport = 1\n",
    );
    let variables = [("MBAL_MEMORY_LIMIT", "200"), ("MBAL_CONN_LIMIT", "60")];
    let mut command = Command::new(MBAL);
    command.args(["serve", "--config", &path, "-c", "70"]).envs(variables);
    let server = Running::of(&folder, &mut command).unwrap();
    let told = settings(&server);
    for line in [
        "STAT maxbytes 209715200\r\n",
        "STAT maxconns 70\r\n",
        "STAT reqs_per_event 7\r\n",
        "STAT num_threads 1\r\n",
        "STAT verbosity 1\r\n",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let words = ["config", "print", "serve", "--config", &path, "-c", "70"];
    let (code, printed) = said(&words, &variables);
    assert_eq!(code, 0, "{printed}");
    for (key, value, source) in [
        ("conn-limit", "70", "flag".to_owned()),
        ("memory-limit", "200", "environment: MBAL_MEMORY_LIMIT".into()),
        ("max-reqs-per-event", "7", format!("file: {path}:7")),
        ("listen", "[\"127.0.0.1\"]", format!("file: {path}:9")),
        ("verbose", "1", format!("file: {path}:6")),
        ("balance", "\"on\"", "default".into()),
    ] {
        let line = printed.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        let (said, from) = line.split_once("  # ").unwrap();
        assert_eq!((said.trim_end(), from), (&*format!("{key} = {value}"), &*source));
    }
    // What is printed is a file itself.
    let again = folder.path("again.toml");
    fs::write(&again, printed).unwrap();
    let (code, checked) = said_of_check(&again.display().to_string());
    assert_eq!(code, 0, "{checked}");
}

fn said_of_check(path: &str) -> (i32, String) {
    said(&["config", "check", path], &[])
}

#[test]
fn wrong_files_start_nothing_and_are_told_with_line_and_column() {
    let folder = Folder::new("wrong");
    for (text, told) in [
        (
            "[serve]\nmemory-limt = 5\n",
            ":2:1: [serve] has no key memory-limt; the nearest is memory-limit",
        ),
        ("[serve]\nport = \"x\"\n", ":2:8: port is a whole number, not a string"),
        ("[serve]\n\nport = 1 2\n", ":3:8: "),
        (
            "[serve]\nthreads = -5\n\n[proxi]\n",
            ":4:2: there is no section [proxi]; the nearest is [proxy]",
        ),
    ] {
        let path = file(&folder, text);
        let runs: [&[&str]; 4] = [
            &["config", "check", &path],
            &["serve", "--config", &path],
            &["coordinator", "--config", &path],
            &["config", "print", "--config", &path],
        ];
        for words in runs {
            let (code, said) = said(words, &[]);
            assert!(
                code == 78 && said.contains(&format!("{path}{told}")),
                "{words:?}: {code} {said}"
            );
        }
    }
    // What a flag's value or the others say against it.
    for (text, told) in [
        (
            "[serve]\nmemory-limit = 64\nmax-item-size = \"64m\"\n",
            "Cannot set item size limit higher than 1/2 of memory max.",
        ),
        ("[serve]\nthreads = 1\nepoch = \"never\"\n", ":3:1: --epoch never"),
        (
            "[serve]\ncluster = \"a\"\nserver-id = 1\ncoordinator = \"http://x:1\"\ncluster-secret = \"s\"\n",
            "cannot be used with",
        ),
        (
            "[serve]\ncoordinator = \"http://127.0.0.1:1\"\ncluster-secret = \"/nowhere/secret\"\n",
            ":3:1: --cluster-secret /nowhere/secret: No such file",
        ),
        ("[coordinator]\ncluster-name = \"a b\"\n", ":2:1: --cluster-name a b: letters"),
    ] {
        let path = file(&folder, text);
        let (code, said) = said_of_check(&path);
        assert!(code == 78 && said.contains(told), "{text}: {code} {said}");
    }
    // More may come by flags.
    let path = file(&folder, "[proxy]\nport = 5\n[serve]\nadvertise = \"a\"\n");
    let (code, said) = said_of_check(&path);
    assert!(code == 0 && said.contains("[proxy] needs more than the file says"), "{code} {said}");
}

#[test]
fn a_file_that_cannot_be_read_is_another_exit_code() {
    let folder = Folder::new("unread");
    let missing = folder.path("none.toml").display().to_string();
    let binary = folder.path("binary.toml");
    fs::write(&binary, [b'[', 0xff, 0xfe]).unwrap();
    let binary = binary.display().to_string();
    let directory = folder.0.display().to_string();
    for (path, why) in [
        (&missing, "No such file"),
        (&binary, "it is not text in UTF-8"),
        (&directory, "it is a folder"),
    ] {
        let (code, by_check) = said_of_check(path);
        assert!(code == 66 && by_check.contains(path) && by_check.contains(why), "{by_check}");
        let (code, by_serve) = said(&["serve"], &[("MBAL_CONFIG", path)]);
        assert!(code == 66 && by_serve.contains(why), "{by_serve}");
    }
    let (code, without) = said(&["config", "check"], &[]);
    assert!(code != 0 && without.contains("<file>"), "{without}");
}

#[test]
fn what_the_file_and_a_flag_say_against_each_other_is_told_with_its_place() {
    let folder = Folder::new("against");
    let path = file(&folder, "[coordinator]\n\netcd = [\"http://127.0.0.1:1\"]\n");
    let (code, said) = said(&["coordinator", "--config", &path, "--state", "x"], &[]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--state") && said.contains(&format!("etcd is in {path}:3")), "{said}");
}

#[test]
fn servers_of_up_read_the_section_of_servers_with_ports_of_their_own() {
    let folder = Folder::new("up");
    let metrics = running::free_ports(2)[0];
    let path = file(
        &folder,
        &format!(
            "[up]\nservers = 2\nport = 0\ncoordinator-port = 0\n\
             [serve]\nthreads = 1\ncontrol = \"off\"\nmetrics = \"127.0.0.1:{metrics}\"\nmemory-limit = 33\n"
        ),
    );
    let heard = Heard::start(&["up", "--config", &path]);
    heard.hear(&["2 servers, any of them for any client"]);
    for port in [metrics, metrics + 1] {
        let page = page(port);
        assert!(page.contains(&format!("mbal_memory_limit_bytes {}", 33 << 20)), "{page}");
    }
}

#[test]
fn the_name_memcached_takes_a_file_too() {
    let folder = Folder::new("named");
    let link = folder.path("memcached");
    std::os::unix::fs::symlink(MBAL, &link).unwrap();
    let path =
        file(&folder, "[serve]\nport = -1\nthreads = 1\nlisten = \"127.0.0.1\"\nconn-limit = 9\n");
    let mut command = Command::new(&link);
    command.env("MBAL_CONFIG", &path);
    let server = Running::of(&folder, &mut command).unwrap();
    assert!(settings(&server).contains("STAT maxconns 9\r\n"));
}
