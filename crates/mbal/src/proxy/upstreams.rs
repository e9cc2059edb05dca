//! Where `mbal proxy` learns which upstreams it has.

use std::fs;
use std::path::Path;

use mbal_proxy::RingServer;

/// `HOST:PORT[:WEIGHT][ NAME]` a line; `#` begins a remark.
pub fn of_file(path: &Path) -> Result<Vec<RingServer>, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|why| format!("{shown}: {why}"))?;
    parse(&text).map_err(|why| format!("{shown}: {why}"))
}

fn parse(text: &str) -> Result<Vec<RingServer>, String> {
    let mut servers = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            servers.push(line.parse().map_err(|why| format!("line {number}: {why}"))?);
        }
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_a_line() {
        let servers = parse("# pool\n10.0.0.1:11211\n\n  cache2:11212:3 two # second\n[::1]:5\n");
        let expected = ["10.0.0.1:11211", "cache2:11212:3 two", "[::1]:5"];
        let expected = expected.map(|one| one.parse::<RingServer>().expect("a server"));
        assert_eq!(servers.as_deref(), Ok(&expected[..]));
        let wrong = parse("a:1\nb:x\n");
        assert_eq!(wrong, Err("line 2: \"b:x\" is not HOST:PORT or HOST:PORT:WEIGHT".into()));
    }
}
