//! A view as one JSON object on one line.

use mbal_output::quoted;

use crate::reading::Kind;
use crate::view::View;

pub fn of(view: &View) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(","));
    let number = |number: Option<f64>| number.map_or("null".into(), |number| number.to_string());
    let workers = view.workers.iter().enumerate().map(|(id, worker)| {
        let (busy, requests, neighbour) = (worker.busy, worker.requests, worker.neighbour);
        format!(
            r#"{{"worker":{id},"busy":{busy:.4},"requests_per_second":{requests:.1},"neighbour":{neighbour:.4}}}"#
        )
    });
    let cachelets = view.cachelets.iter().map(|one| {
        format!(
            r#"{{"cachelet":"{}","owner":{},"items":{},"bytes":{},"requests":{},"rate":{},"share":{}}}"#,
            one.cachelet, one.owner, one.items, one.bytes, one.requests, one.rate, one.share
        )
    });
    let keys = view.keys.iter().map(|one| {
        let copied = one.copied.as_ref().map(|copied| {
            format!(r#","state":{},"copies":{}"#, quoted(&copied.state), copied.copies)
        });
        format!(
            r#"{{"key":{},"rate":{},"reads":{},"writes":{},"value_bytes":{}{}}}"#,
            quoted(&one.key),
            one.reads + one.writes,
            one.reads,
            one.writes,
            one.value_bytes.map_or("null".into(), |bytes| bytes.to_string()),
            copied.unwrap_or_default()
        )
    });
    let totals = view.totals.iter().map(|(name, value)| format!("{}:{value}", quoted(name)));
    let fields = [
        ("server", quoted(&view.server)),
        ("version", quoted(&view.version)),
        ("mbal", (view.kind != Kind::Memcached).to_string()),
        ("kind", quoted(view.kind.name())),
        ("uptime", view.uptime.to_string()),
        ("requests_per_second", format!("{:.1}", view.requests)),
        ("gets_per_second", format!("{:.1}", view.gets)),
        ("sets_per_second", format!("{:.1}", view.sets)),
        ("evictions_per_second", format!("{:.1}", view.evictions)),
        ("hit_ratio", number(view.hit_ratio)),
        ("p50_us", number(view.p50_p99_us.map(|[p50, _]| p50))),
        ("p99_us", number(view.p50_p99_us.map(|[_, p99]| p99))),
        ("connections", view.connections.to_string()),
        ("items", view.items.to_string()),
        ("bytes", view.bytes.to_string()),
        ("limit_bytes", view.limit_bytes.to_string()),
        ("workers", list(workers.collect())),
        ("hottest_cachelets", list(cachelets.collect())),
        ("hottest_keys", list(keys.collect())),
        ("totals", format!("{{{}}}", totals.collect::<Vec<_>>().join(","))),
        ("timed", view.timed.to_string()),
    ];
    let fields = fields.iter().map(|(name, value)| format!("{}:{value}", quoted(name)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{Copied, Key};

    #[test]
    fn what_others_named_is_quoted() {
        let key = |key: &str| Key {
            key: key.into(),
            reads: 2,
            writes: 1,
            value_bytes: Some(3),
            copied: None,
        };
        let copied = Some(Copied { state: "hot".into(), copies: 2 });
        let keys = vec![key("a\"b\\\t"), Key { copied, ..key("c") }];
        let view = View { keys, totals: vec![("cmd_get", 7)], ..View::default() };
        let json = of(&view);
        for part in [
            r#""hottest_keys":[{"key":"a\"b\\\u0009","rate":3,"reads":2,"writes":1,"value_bytes":3},"#,
            r#",{"key":"c","rate":3,"reads":2,"writes":1,"value_bytes":3,"state":"hot","copies":2}]"#,
            r#""totals":{"cmd_get":7}"#,
            r#""hit_ratio":null"#,
            r#""workers":[]"#,
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
    }
}
