//! What servers cost, from a file of the operator's.
//!
//! ```toml
//! currency = "EUR"
//! server = 0.08      # one, an hour
//! gigabyte = 0.004   # of a server's memory, an hour
//! ```

use std::path::Path;

use toml::de::{DeTable, DeValue};

/// Files beyond are not read: somebody named the wrong one.
const BYTES_MAX: u64 = 64 << 10;
const GIGABYTE: f64 = 1e9;

#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    pub currency: String,
    /// Of one server, and of a gigabyte (10^9 bytes) of its memory, an hour.
    server: f64,
    gigabyte: f64,
}

impl Prices {
    /// # Errors
    /// A file that cannot be read, or says something else, in words that name it.
    pub fn of(path: &Path) -> Result<Prices, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let bytes = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
        if bytes > BYTES_MAX {
            return Err(failed(format!("{bytes} bytes are no file of prices")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        Prices::parse(&text).map_err(failed)
    }

    pub fn parse(text: &str) -> Result<Prices, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let mut prices = Prices { currency: String::new(), server: 0.0, gigabyte: 0.0 };
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            match (name, value.get_ref()) {
                ("currency", DeValue::String(text)) => prices.currency = text.to_string(),
                ("server", value) => prices.server = price(name, value)?,
                ("gigabyte", value) => prices.gigabyte = price(name, value)?,
                ("currency", _) => return Err("currency is not a text".into()),
                _ => return Err(format!("{name} is not known: currency, server, gigabyte are")),
            }
        }
        if prices.server + prices.gigabyte == 0.0 {
            return Err("it has no price: server = 0.08, gigabyte = 0.004, each an hour".into());
        }
        Ok(prices)
    }

    /// Of so many servers of so many bytes, an hour.
    pub fn hour(&self, servers: usize, server_bytes: u64) -> f64 {
        servers as f64 * (self.server + self.gigabyte * server_bytes as f64 / GIGABYTE)
    }
}

fn price(name: &str, value: &DeValue) -> Result<f64, String> {
    let number = match value {
        DeValue::Integer(number) => number.as_str().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    };
    let is_price = |number: &f64| number.is_finite() && *number >= 0.0;
    number.filter(is_price).ok_or_else(|| format!("{name} is not a price: a number, an hour"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_costs_itself_and_its_memory() {
        let text = "currency = 'EUR'\nserver = 1 # an hour\ngigabyte = 0.5\n";
        let prices = Prices::parse(text).expect("prices");
        assert_eq!((prices.currency.as_str(), prices.hour(3, 4_000_000_000)), ("EUR", 9.0));
        assert_eq!(Prices::parse("server = 2.5").expect("one").hour(2, 1 << 40), 5.0);
    }

    #[test]
    fn what_is_no_price_is_named() {
        for (text, why) in [
            ("", "no price"),
            ("server = 'x'", "server is not a price"),
            ("gigabyte = -1", "gigabyte is not a price"),
            ("server = nan", "server is not a price"),
            ("sever = 1", "sever is not known"),
            ("currency = 7", "currency is not a text"),
            ("server = ", ""),
        ] {
            let error = Prices::parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Prices::of(Path::new("/nowhere/prices")).expect_err("no such file");
        assert!(error.starts_with("/nowhere/prices: "), "{error}");
    }
}
