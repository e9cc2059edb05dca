//! The cluster's document as a client reads it, and hints: what is understood is written as it was meant, and routes every hash.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_model::{Address, Cluster, ClusterView, Hint, ServerId};
use mbal_routing::Routes;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hint) = Hint::parse(bytes) {
        assert_eq!(Hint::parse(hint.to_string().as_bytes()), Some(hint));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(cluster) = Cluster::parse(text) {
        assert_eq!(Cluster::parse(&cluster.to_string()), Ok(cluster));
    }
    let Ok(view) = ClusterView::parse(text) else { return };
    assert_eq!(ClusterView::parse(&view.to_string()).as_ref(), Ok(&view));
    let at = Address { host: "10.0.0.9".into(), port: 1 };
    let mut routes = Routes::new(&view, &at);
    for top in 0..32u64 {
        let hash = top << 59;
        let owner = routes.route(hash).owner;
        assert!(routes.address(owner).is_some());
        routes.heed(hash, owner.server, Hint::Worker { version: view.version(), worker: owner.worker });
        assert_eq!(routes.route(hash).owner, owner);
    }
    assert!(!routes.learn(&view, Some(ServerId::NOBODY), &at));
});
