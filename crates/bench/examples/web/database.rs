//! As much of PostgreSQL's protocol as look-aside needs: simple queries over its unix socket.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::values;

/// Rows of one insert.
const ROWS: u32 = 1000;

pub struct Database {
    stream: BufReader<UnixStream>,
}

/// Columns of each row, as text.
type Rows = Vec<Vec<Vec<u8>>>;

impl Database {
    pub fn open(folder: &Path) -> Result<Database, String> {
        let path = folder.join(".s.PGSQL.5432");
        let stream = UnixStream::connect(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut database = Database { stream: BufReader::new(stream) };
        let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        let length = (body.len() as u32 + 4).to_be_bytes();
        let hello = [&length[..], body].concat();
        database.stream.get_mut().write_all(&hello).map_err(|e| e.to_string())?;
        database.answers()?;
        Ok(database)
    }

    pub fn query(&mut self, text: &str) -> Result<Rows, String> {
        let mut packet = vec![b'Q'];
        packet.extend_from_slice(&(text.len() as u32 + 5).to_be_bytes());
        packet.extend_from_slice(text.as_bytes());
        packet.push(0);
        self.stream.get_mut().write_all(&packet).map_err(|e| e.to_string())?;
        self.answers()
    }

    /// Everything up to "ready for query".
    fn answers(&mut self) -> Result<Rows, String> {
        let (mut rows, mut failed) = (Vec::new(), None);
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head).map_err(|e| format!("PostgreSQL: {e}"))?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).map_err(|e| format!("PostgreSQL: {e}"))?;
            match head[0] {
                b'D' => rows.push(columns(&body)),
                b'E' => failed = Some(String::from_utf8_lossy(&body).replace('\0', " ")),
                b'Z' => return failed.map_or(Ok(rows), Err),
                b'R' if body[..4] != [0; 4] => return Err("PostgreSQL wants a password".into()),
                _ => {}
            }
        }
    }

    /// Version and padding of each key.
    pub fn read(&mut self, keys: &[u32]) -> Result<BTreeMap<u32, (u64, Vec<u8>)>, String> {
        let list: Vec<String> = keys.iter().map(u32::to_string).collect();
        let query =
            format!("SELECT k, version, padding FROM items WHERE k IN ({})", list.join(","));
        self.query(&query)?
            .into_iter()
            .map(|mut row| {
                let padding = row.pop().ok_or("a row without columns")?;
                Ok((number(&row[0])? as u32, (number(&row[1])?, padding)))
            })
            .collect()
    }

    /// Changes a value; its new version.
    pub fn update(&mut self, key: u32) -> Result<u64, String> {
        let query =
            format!("UPDATE items SET version = version + 1 WHERE k = {key} RETURNING version");
        let rows = self.query(&query)?;
        number(rows.first().and_then(|row| row.first()).ok_or("no such row")?)
    }
}

fn columns(row: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &row[2..];
    let mut columns = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length).max(0) as usize;
        columns.push(after[..length].to_vec());
        rest = &after[length..];
    }
    columns
}

fn number(text: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|_| format!("PostgreSQL: {text:?} is no number"))
}

pub fn fill(folder: &Path, keys: u32) -> Result<(), String> {
    let mut database = Database::open(folder)?;
    database.query("DROP TABLE IF EXISTS items")?;
    database.query(
        "CREATE TABLE items (k integer PRIMARY KEY, version bigint NOT NULL, padding text NOT NULL) WITH (fillfactor = 80)",
    )?;
    for first in (0..keys).step_by(ROWS as usize) {
        let rows: Vec<String> = (first..keys.min(first + ROWS))
            .map(|key| format!("({key},1,repeat('x',{}))", values::bytes(key)))
            .collect();
        database.query(&format!("INSERT INTO items VALUES {}", rows.join(",")))?;
    }
    database.query("VACUUM ANALYZE items")?;
    Ok(())
}
