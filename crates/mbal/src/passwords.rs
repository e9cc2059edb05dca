//! Where memcached, built with SASL, is told to look for names and passwords.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// `MEMCACHED_SASL_PWDB`, or `sasldb_path` of the configuration that `SASL_CONF_PATH` names (a file,
/// or a folder with `memcached.conf`). A file that another program wrote for Cyrus SASL is a
/// database, and admits nobody here.
pub fn sasl_file() -> Option<PathBuf> {
    if let Some(file) = env::var_os("MEMCACHED_SASL_PWDB") {
        return Some(file.into());
    }
    let conf = PathBuf::from(env::var_os("SASL_CONF_PATH")?);
    let conf = if conf.is_dir() { conf.join("memcached.conf") } else { conf };
    in_configuration(&fs::read_to_string(conf).ok()?)
}

fn in_configuration(text: &str) -> Option<PathBuf> {
    let mut values = text.lines().filter_map(|line| line.trim().strip_prefix("sasldb_path:"));
    values.next_back().map(|path| Path::new(path.trim()).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_named_in_the_configuration() {
        let text = "mech_list: plain\nsasldb_path: /tmp/users\n";
        assert_eq!(in_configuration(text), Some(PathBuf::from("/tmp/users")));
        assert_eq!(in_configuration("mech_list: plain\n"), None);
    }
}
