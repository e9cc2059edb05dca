//! The Grafana board of a server against a page of metrics: no panel asks for what no server tells.

use std::collections::BTreeMap;
use std::process::Command;

use crate::json::{Value, list, number, read, text};
use crate::served::Served;

const BOARD: &str = include_str!("../../../../deploy/grafana/server.json");
/// What Prometheus adds to every sample.
pub const ADDED: [&str; 2] = ["instance", "job"];
const COLUMNS: f64 = 24.0;

/// The labels of each metric on the page.
fn labels(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let inside = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let pairs = inside.map_or("", |(pairs, _)| pairs).split(',');
        let of = all.entry(name).or_default();
        of.extend(pairs.filter_map(|pair| Some(pair.split_once('=')?.0)));
    }
    all
}

/// The metrics of a query, each with the names of the labels that it asks for.
pub fn selectors(query: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = ["mbal_", "process_"].iter().filter_map(|start| rest.find(start)).min() {
        let from = &rest[at..];
        let end = from.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(from.len());
        let (name, behind) = from.split_at(end);
        let matchers = behind.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let matchers = matchers.map_or("", |(inside, _)| inside).split(',');
        found
            .push((name, matchers.filter_map(|one| Some(one.split_once(['=', '!'])?.0)).collect()));
        rest = behind;
    }
    found
}

/// What is summed by.
pub fn grouped(query: &str) -> impl Iterator<Item = &str> {
    let lists = query.split("by (").skip(1).filter_map(|list| Some(list.split_once(')')?.0));
    lists.flat_map(|list| list.split(',')).map(str::trim)
}

#[test]
fn every_query_of_the_board_is_of_metrics_that_there_are() {
    let server = Served::start("board", &["-t", "2"]);
    let page = server.page();
    let labels = labels(&page);
    let board = read(BOARD);
    let mut queries = queries(&board);
    for variable in list(&board["templating"]["list"]) {
        if let Some(query @ Value::Object(_)) = variable.get("query") {
            queries.push(text(&query["query"]));
        }
    }
    assert!(queries.len() > 10, "{queries:?}");
    for query in queries {
        let selectors = selectors(query);
        assert!(!selectors.is_empty(), "{query} asks for nothing of ours");
        for (metric, asked) in &selectors {
            let known = labels.get(metric).unwrap_or_else(|| panic!("no {metric}: {query}"));
            for label in asked.iter().copied().chain(grouped(query)) {
                assert!(known.contains(&label) || ADDED.contains(&label), "{label}: {query}");
            }
        }
    }
}

/// Rules are parsed as panels' queries are, once Grafana's own variables have a value.
#[test]
fn promtool_parses_every_query() {
    let board = read(BOARD);
    let queries = queries(&board);
    let quoted = |query: &&str| {
        let query = query.replace("$__rate_interval", "1m").replace("$__interval", "1m");
        format!("      - {{record: x, expr: '{}'}}\n", query.replace('\'', "''"))
    };
    let rules: String = queries.iter().map(quoted).collect();
    let (code, said) = checked_by_promtool("board", &rules);
    if code.is_none() {
        eprintln!("SKIPPED, NOT TESTED: no promtool");
        return;
    }
    let found = format!("  SUCCESS: {} rules found", queries.len());
    assert!(code == Some(0) && said.lines().any(|line| line == found), "{said}");
    // It does refuse what is no query.
    let (code, said) = checked_by_promtool("broken", &quoted(&"sum(rate(mbal_gets_total[1m])"));
    assert!(code == Some(1) && said.contains("could not parse expression"), "{said}");
}

/// What promtool says of a group of rules; no code where there is no promtool.
pub fn checked_by_promtool(name: &str, rules: &str) -> (Option<i32>, String) {
    let file = std::env::temp_dir().join(format!("mbal-{name}-{}.yml", std::process::id()));
    std::fs::write(&file, format!("groups:\n  - name: x\n    rules:\n{rules}")).unwrap();
    let output =
        Command::new("promtool").args(["check", "rules", "--lint=none"]).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let Ok(output) = output else { return (None, String::new()) };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), said)
}

/// The queries of the panels.
pub fn queries(board: &Value) -> Vec<&str> {
    let panels = list(&board["panels"]).iter();
    let targets = panels.filter_map(|panel| panel.get("targets")).flat_map(list);
    targets.map(|target| text(&target["expr"])).collect()
}

/// What no panel shows.
const LEFT_OUT: [&str; 7] = [
    // What items are made of: another panel shows pages by use, and how many items there are.
    "mbal_items_bytes",
    "mbal_items_stored_total",
    "mbal_cachelet_items",
    "mbal_connections_opened_total",
    "mbal_yields_total",
    "process_start_time_seconds",
    // Beside the part of the time in which a worker is busy.
    "mbal_worker_waiting_seconds_total",
];

#[test]
fn every_metric_is_on_the_board_or_left_out_on_purpose() {
    let server = Served::start("on-board", &["-t", "2"]);
    let page = server.page();
    let board = read(BOARD);
    let queries = queries(&board).join(" ");
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let shown = |family: &&str| {
        queries.contains(&format!("{family}{{")) || queries.contains(&format!("{family}_bucket"))
    };
    let (shown, rest): (Vec<&str>, Vec<&str>) = families.partition(shown);
    let rest: Vec<&str> = rest.into_iter().filter(|family| *family != "mbal_info").collect();
    let mut left_out = LEFT_OUT.to_vec();
    left_out.sort_unstable();
    let mut missing = rest;
    missing.sort_unstable();
    assert_eq!(missing, left_out, "shown: {shown:?}");
}

/// The properties that a panel overrides for one of its queries.
fn overridden<'a>(panel: &'a Value, query: &str) -> Vec<(&'a str, &'a Value)> {
    let overrides = list(&panel["fieldConfig"]["overrides"]).iter();
    let of_query = overrides.filter(|one| text(&one["matcher"]["options"]) == query);
    let properties = of_query.flat_map(|one| list(&one["properties"]));
    properties.map(|property| (text(&property["id"]), &property["value"])).collect()
}

/// The panel that asks for this metric, and the query's name.
fn asks<'a>(board: &'a Value, metric: &str) -> (&'a Value, &'a str) {
    let panels = list(&board["panels"]).iter();
    let mut all =
        panels.flat_map(|panel| list(&panel["targets"]).iter().map(move |one| (panel, one)));
    let found = all.find(|(_, target)| text(&target["expr"]).contains(metric));
    let (panel, target) = found.expect(metric);
    (panel, text(&target["refId"]))
}

#[test]
fn what_has_another_unit_has_an_axis_of_its_own_and_limits_are_not_stacked() {
    let board = read(BOARD);
    let (panel, _) = asks(&board, "mbal_cpu_seconds_total");
    assert_eq!(text(&panel["title"]), "Connections and CPU");
    for metric in ["mbal_connections{", "mbal_connections_limit{"] {
        let (same, query) = asks(&board, metric);
        assert_eq!((&same["id"], overridden(panel, query).len()), (&panel["id"], 0));
    }
    for (metric, label) in [("mbal_cpu_seconds_total", "cores"), ("mbal_balancer_loans", "loans")] {
        let (panel, query) = asks(&board, metric);
        let properties = overridden(panel, query);
        let text =
            |id| properties.iter().find(|(name, _)| *name == id).map(|(_, value)| text(value));
        assert_eq!(text("custom.axisPlacement"), Some("right"), "{metric}");
        assert_eq!(text("custom.axisLabel"), Some(label), "{metric}");
    }
    for metric in ["mbal_memory_limit_bytes", "process_resident_memory_bytes"] {
        let (panel, query) = asks(&board, metric);
        let properties = overridden(panel, query);
        let stacking = properties.iter().find(|(name, _)| *name == "custom.stacking").unwrap().1;
        assert_eq!(text(&stacking["mode"]), "none", "{metric}");
    }
}

#[test]
fn panels_have_titles_queries_and_places_of_their_own() {
    places_are_apart(&read(BOARD));
}

pub fn places_are_apart(board: &Value) {
    let panels = list(&board["panels"]);
    let at = |panel: &Value| ["x", "y", "w", "h"].map(|side| number(&panel["gridPos"][side]));
    for (index, panel) in panels.iter().enumerate() {
        assert!(!text(&panel["title"]).is_empty());
        let [x, y, w, h] = at(panel);
        assert!(x + w <= COLUMNS && w > 0.0 && h > 0.0, "{panel:?}");
        for other in &panels[..index] {
            let [x2, y2, w2, h2] = at(other);
            let apart = x + w <= x2 || x2 + w2 <= x || y + h <= y2 || y2 + h2 <= y;
            assert!(apart && panel["id"] != other["id"], "{panel:?} lies on {other:?}");
        }
        let mut references = Vec::new();
        for target in panel.get("targets").map_or(&[][..], list) {
            assert_eq!(text(&target["datasource"]["uid"]), "${source}");
            assert!(!references.contains(&text(&target["refId"])), "{panel:?}");
            references.push(text(&target["refId"]));
        }
    }
}
