//! Stores a greeting, finds it, and says what the cluster looks like.
//!
//!     cargo run -p mbal-client --example hello -- 127.0.0.1:11211

use std::time::Duration;

use mbal_client::{Client, Error, Options, Store};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1).unwrap_or("127.0.0.1:11211".into());
    let client = Client::connect([server], Options::new()).await?;
    client.set("greeting", "hello", Store::ttl(Duration::from_secs(60))).await?;
    match client.get("greeting").await? {
        Some(value) => println!("{}", String::from_utf8_lossy(&value.bytes)),
        None => println!("gone already"),
    }
    println!("visits: {}", client.incr_or_create("visits", 1, 1, None).await?);
    println!("map {}", client.map_version());
    for (server, version) in client.version().await {
        match version {
            Ok(version) => println!("server {}: {version}", server.0),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}
