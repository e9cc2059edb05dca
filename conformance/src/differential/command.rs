//! What is sent: commands in batches.

/// A piece of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// The cas of key number `key` that was seen `back` times before the latest; 1 where none was.
    Cas {
        key: usize,
        back: usize,
    },
}

/// One request, with what has to stand around it.
#[derive(Clone, Debug)]
pub struct Command {
    /// Row of the table.
    pub row: &'static str,
    pub key: Option<usize>,
    pub pieces: Vec<Piece>,
    /// Its number of replies cannot be told beforehand: a numbered miss follows it, to find its end.
    pub is_marked: bool,
    /// It may have left the parser inside a data block: no-ops follow, to fill the block.
    pub is_filled: bool,
    /// memcached treats it differently while earlier replies wait to be sent: `mn` goes before it.
    pub is_fenced: bool,
}

/// How a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a numbered miss, whose answer says that everything before it is answered.
    Sync,
    /// With end of file: the batch stops within a request.
    Finish,
    /// With nothing: its last line makes the server close.
    Closed,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub conn: usize,
    pub commands: Vec<Command>,
    /// Where the bytes are cut into writes, in bytes from the start.
    pub cuts: Vec<usize>,
    /// So many bytes of the first command go out before the next batch, the rest after it.
    pub held: usize,
    pub end: End,
}

/// A key that no command writes.
const ABSENT: &str = "~sync~";

/// memcached gives the cas of an `ms` that it refuses late to the next item that the connection stores, which would be older than
/// what others have stored since. This one takes it.
pub const HEIR: &[u8] = b"set ~heir~ 0 0 0 noreply\r\n\r\n";

/// More than any block that a broken command may leave open, in no-ops of 4 bytes.
const FILLERS: usize = 40;

impl Command {
    /// The request with everything around it; `number` is its place in the batch.
    pub fn pieces(&self, number: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.is_fenced {
            pieces.push(Piece::Bytes(b"mn\r\n".to_vec()));
        }
        pieces.extend(self.pieces.iter().cloned());
        if self.is_filled {
            pieces.push(Piece::Bytes(b"mn\r\n".repeat(FILLERS)));
        }
        if self.row == "ms" {
            pieces.push(Piece::Bytes(HEIR.to_vec()));
        }
        if self.is_marked {
            pieces.push(Piece::Bytes(format!("mg {ABSENT} OM{number}\r\n").into_bytes()));
        }
        pieces
    }

    /// The reply to the numbered miss behind command `number`.
    pub fn marker(number: usize) -> String {
        format!("EN OM{number}")
    }
}

/// The request that ends a batch, and its whole reply.
pub fn sync(number: u64) -> (Vec<u8>, Vec<u8>) {
    (format!("mg {ABSENT} OS{number}\r\n").into_bytes(), format!("EN OS{number}\r\n").into_bytes())
}
