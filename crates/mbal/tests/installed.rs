//! What `./install` leaves: units whose programs and settings are there, and which start a cluster as docs/how-to/several-hosts.md has it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

mod running;

use running::led::free_port;
use running::{Folder, Killed, MBAL, eventually, output_of};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn install(variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(Path::new(ROOT).join("install"));
    command.env_remove("PREFIX").env_remove("DESTDIR").env("PROGRAM", MBAL);
    for (name, folder) in variables {
        command.env(name, folder);
    }
    let output = command.stdin(Stdio::null()).output().expect("there is a bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What systemd would start for an installed unit.
struct Unit {
    words: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl Unit {
    /// Of a unit, or of a template's instance.
    fn read(prefix: &Path, name: &str, instance: Option<&str>) -> Unit {
        let text = fs::read_to_string(prefix.join("lib/systemd/system").join(name));
        let text = text.expect("the unit is installed").replace("%i", instance.unwrap_or("%i"));
        let of = |name: &'static str| {
            text.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('='))
        };
        let mut environment: BTreeMap<String, String> = BTreeMap::new();
        let mut take = |pair: &str| {
            if let Some((name, value)) = pair.split_once('=') {
                environment.insert(name.into(), value.into());
            }
        };
        of("Environment").flat_map(str::split_whitespace).for_each(&mut take);
        for file in of("EnvironmentFile") {
            let file = file.strip_prefix('-').expect("a host without such a file starts too");
            let lines = fs::read_to_string(file).unwrap_or_default();
            lines.lines().filter(|line| !line.starts_with('#')).for_each(&mut take);
        }
        let line = of("ExecStart").next().expect("it starts something");
        Unit { words: words(line), environment }
    }

    fn start(&self) -> Killed {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).env_clear().envs(&self.environment);
        command.env("MBAL_CONTROL", "off").current_dir("/").stdin(Stdio::null());
        Killed(command.stderr(Stdio::null()).spawn().expect("its program is there"))
    }
}

/// As systemd splits a command line: quotes hold words together, and `$$` is one sign.
fn words(line: &str) -> Vec<String> {
    let line = line.replace("$$", "$");
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn append(file: &Path, text: &str) {
    let mut file =
        fs::File::options().append(true).create(true).open(file).expect("a settings file");
    file.write_all(text.as_bytes()).expect("it can be written");
}

fn stores(port: u16, key: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut said = String::new();
    let request = format!("set {key} 0 0 1\r\nv\r\nget {key}\r\nquit\r\n");
    drop(stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut said)));
    said == format!("STORED\r\nVALUE {key} 0 1\r\nv\r\nEND\r\n")
}

/// The coordinator's unit, the server's, and an instance of the template: one cluster.
#[test]
fn installed_units_start_a_cluster_with_what_the_settings_files_say() {
    let folder = Folder::new("installed");
    let prefix = fs::canonicalize(&folder.0).expect("it is there");
    install(&[("PREFIX", &prefix)]);
    let settings = prefix.join("etc/mbal");
    for name in ["secret", "token"] {
        let file = settings.join(name);
        fs::write(&file, format!("{name} of sixteen bytes or more\n")).expect("it can be written");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    }
    let (at, server) = (free_port(), free_port());
    append(
        &settings.join("coordinator.env"),
        // Root's would be in /var/lib/mbal, which is the host's.
        &format!(
            "MBAL_COORDINATOR_LISTEN=127.0.0.1:{at}\nMBAL_SERVERS=2\nMBAL_COORDINATOR_STATE={}/state.json\n",
            prefix.display()
        ),
    );
    append(
        &settings.join("server.env"),
        &format!(
            "MBAL_COORDINATOR=http://127.0.0.1:{at}\nMBAL_LISTEN=127.0.0.1\nMBAL_UDP_PORT=0\nMBAL_PORT={server}\n\
             MBAL_WORKER_PORTS=0\nMBAL_LINK_PORT=0\n"
        ),
    );
    let _coordinator = Unit::read(&prefix, "mbal-coordinator.service", None).start();
    // An instance's port follows from its number, which is chosen by a port that is free.
    let instance = (1..=999).rev().find(|n| TcpListener::bind(("127.0.0.1", 11210 + n)).is_ok());
    let instance = instance.expect("one of them is free");
    let _server = Unit::read(&prefix, "mbal-server.service", None).start();
    let numbered = Unit::read(&prefix, "mbal@.service", Some(&instance.to_string()));
    let _numbered = numbered.start();
    eventually("the unit's server stores", || (0..20).all(|n| stores(server, &format!("k{n}"))));
    let port = 11210 + instance;
    eventually("the template's stores", || (0..20).all(|n| stores(port, &format!("k{n}"))));
    let url = format!("http://127.0.0.1:{at}");
    let token = settings.join("token");
    let token = token.to_str().expect("it is text");
    let mut said = String::new();
    eventually("both serve", || {
        let output = output_of(
            &prefix.join("bin/mbal"),
            &["cluster", "status", "--coordinator", &url, "--coordinator-token", token],
        );
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.matches("serving").count() == 2
    });
    assert!(said.contains(&format!("{instance} ")) && said.contains(&port.to_string()), "{said}");
    assert!(prefix.join("state.json").exists(), "its state is kept");
}

/// For a package: all of it under a folder that is not part of what the units say.
#[test]
fn a_package_has_the_same_files_where_they_belong_and_settings_stay() {
    let folder = Folder::new("packaged");
    let root = fs::canonicalize(&folder.0).expect("it is there");
    install(&[("DESTDIR", &root)]);
    let file = |name: &str| fs::read_to_string(root.join(name)).expect("it is installed");
    assert!(root.join("usr/local/bin/mbal").exists());
    for name in [
        "man/man1/mbal.1.gz",
        "man/man1/mbal-serve.1.gz",
        "bash-completion/completions/mbal",
        "zsh/site-functions/_mbal",
        "fish/vendor_completions.d/mbal.fish",
    ] {
        let size = fs::metadata(root.join("usr/local/share").join(name)).map(|file| file.len());
        assert!(size.is_ok_and(|bytes| bytes > 500), "{name}");
    }
    assert!(file("usr/local/lib/sysusers.d/mbal.conf").contains("u mbal "), "its user");
    for name in ["mbal-server", "mbal-coordinator", "mbal-proxy", "mbal@"] {
        let unit = file(&format!("usr/local/lib/systemd/system/{name}.service"));
        assert!(unit.contains("/usr/local/bin/mbal "), "{unit}");
        assert!(unit.contains("EnvironmentFile=-/etc/mbal/"), "{unit}");
    }
    append(&root.join("etc/mbal/server.env"), "MBAL_MEMORY_LIMIT=4096\n");
    install(&[("DESTDIR", &root), ("PREFIX", Path::new("/usr"))]);
    assert!(
        file("etc/mbal/server.env").ends_with("MBAL_MEMORY_LIMIT=4096\n"),
        "they are the host's"
    );
    let unit = file("usr/lib/systemd/system/mbal-server.service");
    assert!(unit.contains("ExecStart=/usr/bin/mbal serve\n"), "{unit}");
}

/// What the comments of a settings file show can be set, by the names that there are.
#[test]
fn settings_files_name_variables_that_the_program_has() {
    for (file, command) in [("server", "serve"), ("coordinator", "coordinator")] {
        let text = fs::read_to_string(format!("{ROOT}/systemd/{file}.env")).expect("it is there");
        let help = output_of(MBAL.as_ref(), &[command, "--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.strip_prefix("#MBAL_")?.split('=').next());
        for name in names {
            let flag = name.strip_prefix("COORDINATOR_").filter(|_| file == "coordinator");
            let flag = flag.unwrap_or(name).to_lowercase().replace('_', "-");
            assert!(help.contains(&format!("--{flag} ")), "{name} in {file}.env: no --{flag}");
        }
    }
}
