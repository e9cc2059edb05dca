//! All boards and alerts of `deploy` against the metrics of real processes: a server of a cluster, its coordinator, a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use crate::board::{ADDED, checked_by_promtool, grouped, queries, selectors};
use crate::json::{Value, list, read, text};
use crate::running::led::{self, Coordinator, arguments};
use crate::running::{self, Folder, MBAL, Running, eventually, page};

const BOARDS: [(&str, &str); 4] = [
    ("server", include_str!("../../../../deploy/grafana/server.json")),
    ("cluster", include_str!("../../../../deploy/grafana/cluster.json")),
    ("coordinator", include_str!("../../../../deploy/grafana/coordinator.json")),
    ("proxy", include_str!("../../../../deploy/grafana/proxy.json")),
];
const RULES: &str = include_str!("../../../../deploy/prometheus/mbal.rules.yml");
const RULES_TEST: &str = include_str!("../../../../deploy/prometheus/mbal.rules.test.yml");
const RUNBOOKS: &str = include_str!("../../../../docs/reference/alerts.md");
/// A proxy of a build with the feature xdp has more, which no board shows.
const OF_PROXIES: &str = "mbal_proxy_";
const OF_COORDINATORS: &str = "mbal_coordinator_";
/// Labels whose values are words of a fixed list, so that a query can be wrong about them.
const WORDS: [&str; 9] =
    ["state", "mode", "command", "result", "cause", "use", "route", "which", "class"];
/// On no board: what others tell better.
const LEFT_OUT: [&str; 1] = ["mbal_proxy_connections_opened_total"];

/// What real processes tell: by metric, its labels and their values.
struct Told {
    samples: BTreeMap<String, BTreeSet<(String, String)>>,
    families: BTreeSet<String>,
}

impl Told {
    fn by_all() -> Told {
        let folder = led::folder("watched");
        let coordinator = Coordinator::start(&folder, led::free_port(), 1);
        let secret = folder.path("secret").display().to_string();
        let mut words = arguments(&coordinator.url, &secret);
        words.extend(["--metrics", "127.0.0.1:0"]);
        let server = Running::serve(&folder, &words);
        fs::remove_file(folder.path("ports")).unwrap();
        eventually("it serves", || led::stores(&server));
        let other = Running::serve(&folder, &["-p", "-1", "-t", "1", "--control", "off"]);
        fs::remove_file(folder.path("ports")).unwrap();
        let upstreams = format!("127.0.0.1:{},127.0.0.1:{}", server.port, other.port);
        let proxied = ["proxy", "-p", "-1", "--metrics", "127.0.0.1:0", "--upstream", &upstreams];
        let words = [&proxied[..], &["--imbalance-target", "1.2", "--interval", "100ms"]].concat();
        let proxy = Running::start(&folder, MBAL.as_ref(), &words);
        let many = "get a\r\n".repeat(2000) + "quit\r\n";
        let of_coordinator = || {
            let answer = ureq::get(&format!("{}/metrics", coordinator.url)).call();
            answer.ok().and_then(|answer| answer.into_string().ok()).unwrap_or_default()
        };
        let mut pages = vec![page(server.metrics)];
        eventually("the proxy tells its threshold", || {
            running::told(proxy.connect(), &many);
            let told = page(proxy.metrics);
            let is_whole = told.contains("mbal_proxy_hot_threshold ");
            pages.truncate(1);
            pages.push(told);
            is_whole
        });
        eventually("the coordinator tells of its server", || {
            let told = of_coordinator();
            let is_whole = told.contains("mbal_coordinator_servers{state=\"serving\"} 1");
            pages.truncate(2);
            pages.push(told);
            is_whole
        });
        Told::of(&pages)
    }

    fn of(pages: &[String]) -> Told {
        let mut told = Told { samples: BTreeMap::new(), families: BTreeSet::new() };
        for line in pages.iter().flat_map(|page| page.lines()) {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                told.families.extend(family.split(' ').next().map(str::to_owned));
            }
            if line.starts_with('#') {
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap().to_owned();
            let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
            let labels = inside.map_or("", |(labels, _)| labels).split("\",");
            let pairs = labels.filter_map(|pair| pair.split_once("=\""));
            let pairs =
                pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()));
            told.samples.entry(name).or_default().extend(pairs);
        }
        told
    }

    /// What a query asks for that nobody tells.
    fn missing(&self, query: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for (metric, asked) in selectors(query) {
            let Some(labels) = self.samples.get(metric) else {
                missing.push(format!("{metric} of {query}"));
                continue;
            };
            let is_known = |label: &str| {
                ADDED.contains(&label) || labels.iter().any(|(known, _)| known == label)
            };
            let all = asked.into_iter().chain(grouped(query));
            // A sum over two metrics may be by a label that one of them has.
            let elsewhere = |label: &str| {
                let others =
                    selectors(query).into_iter().filter_map(|(other, _)| self.samples.get(other));
                others.flatten().any(|(known, _)| known == label)
            };
            missing.extend(
                all.filter(|label| !is_known(label) && !elsewhere(label))
                    .map(|label| format!("{label} of {metric} in {query}")),
            );
        }
        for (label, value) in words(query) {
            let mut all = self.samples.values().flatten();
            if !all.any(|(known, told)| known == label && told == value) {
                missing.push(format!("{label}={value:?} in {query}"));
            }
        }
        missing
    }
}

/// The matchers of a query that name one word of a list.
fn words(query: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for label in WORDS {
        for (at, _) in query.match_indices(label) {
            let before = query[..at].chars().next_back();
            let rest = query[at + label.len()..].trim_start_matches('!');
            let value = rest.strip_prefix("=\"").and_then(|rest| rest.split_once('"'));
            if before.is_some_and(|before| "{,".contains(before)) {
                found.extend(value.map(|(value, _)| (label, value)));
            }
        }
    }
    found
}

fn all_queries(board: &Value) -> Vec<String> {
    let variables = list(&board["templating"]["list"]).iter();
    let variables = variables.filter_map(|variable| match variable.get("query") {
        Some(query @ Value::Object(_)) => Some(text(&query["query"]).to_owned()),
        _ => None,
    });
    queries(board).into_iter().map(str::to_owned).chain(variables).collect()
}

/// Each rule: its fields by name.
fn rules() -> Vec<Yaml> {
    let documents = YamlLoader::load_from_str(RULES).expect("it is YAML");
    let groups = documents[0]["groups"].as_vec().expect("it has groups").clone();
    groups.iter().flat_map(|group| group["rules"].as_vec().expect("rules").clone()).collect()
}

#[test]
fn boards_and_alerts_ask_for_what_processes_tell() {
    let told = Told::by_all();
    let mut missing = Vec::new();
    let mut shown = String::new();
    for (name, board) in BOARDS {
        let queries = all_queries(&read(board));
        assert!(queries.len() > 10, "{name}: {queries:?}");
        for query in queries {
            missing.extend(told.missing(&query).into_iter().map(|why| format!("{name}: {why}")));
            shown += &(query + "\n");
        }
    }
    for rule in rules() {
        let query = rule["expr"].as_str().expect("a rule has an expression");
        missing.extend(told.missing(query).into_iter().map(|why| format!("rules: {why}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
    // A query that is wrong is found.
    for wrong in [
        "sum(mbal_commands)",
        "mbal_items{colour=\"red\"}",
        "mbal_coordinator_servers{state=\"asleep\"}",
    ] {
        assert_eq!(told.missing(wrong).len(), 1, "{wrong}");
    }
    let is_shown = |family: &&String| {
        let names = ["{", " ", "_bucket", "_count"].map(|end| format!("{family}{end}"));
        names.iter().any(|name| shown.contains(name.as_str()))
            || shown.contains(&format!("({family},"))
    };
    let ours = told
        .families
        .iter()
        .filter(|name| name.starts_with(OF_PROXIES) || name.starts_with(OF_COORDINATORS));
    let hidden: Vec<&String> = ours.filter(|family| !is_shown(family)).collect();
    assert_eq!(hidden, LEFT_OUT);
}

#[test]
fn every_alert_has_a_runbook_a_severity_and_a_test() {
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = rule["alert"].as_str().expect("it has a name");
        assert!(names.insert(name.to_owned()), "{name} stands twice");
        let severity = rule["labels"]["severity"].as_str().expect(name);
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let link = rule["annotations"]["runbook_url"].as_str().expect(name);
        assert_eq!(link, format!("docs/reference/alerts.md#{}", name.to_lowercase()));
        let section = RUNBOOKS.split(&format!("### {name}\n")).nth(1).expect(name);
        let section = section.split("\n#").next().unwrap();
        for part in ["- **Means**: ", "- **Look at**: ", "- **Do**: "] {
            assert!(section.contains(part), "{name}: {part}");
        }
        let fires = format!("alertname: {name}\n        exp_alerts:");
        assert!(RULES_TEST.contains(&fires), "{name} fires in no test");
    }
    let told = RUNBOOKS.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned);
    assert_eq!(told.collect::<BTreeSet<_>>(), names);
}

#[test]
fn boards_are_found_by_names_of_their_own() {
    let of = |field: &str| BOARDS.map(|(_, board)| text(&read(board)[field]).to_owned());
    for field in ["uid", "title"] {
        assert_eq!(BTreeSet::from(of(field)).len(), BOARDS.len(), "{field}");
    }
    for (name, board) in BOARDS {
        let board = read(board);
        let sources = list(&board["templating"]["list"]).iter();
        assert_eq!(sources.filter(|one| text(&one["type"]) == "datasource").count(), 1, "{name}");
        crate::board::places_are_apart(&board);
    }
}

#[test]
fn promtool_takes_all_queries_and_rules() {
    let quoted = |query: &String| {
        let query = query.replace("$__rate_interval", "1m").replace("$__interval", "1m");
        format!("      - {{record: x, expr: '{}'}}\n", query.replace('\'', "''"))
    };
    let boards = BOARDS.map(|(_, board)| read(board));
    let all: Vec<String> =
        boards.iter().flat_map(|board| queries(board)).map(str::to_owned).collect();
    let (code, said) = checked_by_promtool("boards", &all.iter().map(quoted).collect::<String>());
    if code.is_none() {
        eprintln!("SKIPPED, NOT TESTED: no promtool");
        return;
    }
    let found = format!("  SUCCESS: {} rules found", all.len());
    assert!(code == Some(0) && said.contains(&found), "{said}");
    let folder = Folder::new("rules");
    fs::write(folder.path("mbal.rules.yml"), RULES).unwrap();
    fs::write(folder.path("mbal.rules.test.yml"), RULES_TEST).unwrap();
    for words in [["check", "rules", "mbal.rules.yml"], ["test", "rules", "mbal.rules.test.yml"]] {
        let output = Command::new("promtool").args(words).current_dir(&folder.0).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("SUCCESS"), "{words:?}: {said}");
    }
}
