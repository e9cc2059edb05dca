//! The usual pattern: what the cache does not have is read from the store behind it, many keys at a time.
//!
//!     cargo run -p mbal-client --example look_aside -- 127.0.0.1:11211

use std::time::Duration;

use mbal_client::{Client, Error, Options, Store};

/// Stands for a database.
fn read_from_store(key: &str) -> String {
    format!("the row of {key}")
}

async fn rows(client: &Client, keys: &[String]) -> Result<Vec<String>, Error> {
    let mut rows = Vec::new();
    for (key, cached) in keys.iter().zip(client.get_many(keys).await?) {
        if let Some(value) = cached {
            rows.push(String::from_utf8_lossy(&value.bytes).into_owned());
            continue;
        }
        let row = read_from_store(key);
        // A cache that cannot be reached is no reason to fail.
        if let Err(error) = client.set(key, &row, Store::ttl(Duration::from_secs(300))).await {
            eprintln!("{key} is not cached: {error}");
        }
        rows.push(row);
    }
    Ok(rows)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1).unwrap_or("127.0.0.1:11211".into());
    let client = Client::connect([server], Options::new()).await?;
    let keys: Vec<String> = (0..1000).map(|number| format!("row:{number}")).collect();
    for round in 1..=2 {
        let hits = client.get_many(&keys).await?.iter().flatten().count();
        println!("round {round}: {hits} of {} are cached", keys.len());
        rows(&client, &keys).await?;
    }
    Ok(())
}
