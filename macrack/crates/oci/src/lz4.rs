//! LZ4 in the framing of Apple's Compression framework (`COMPRESSION_LZ4`), as Tart's disk layers use it.
//!
//! ```text
//!   bv41  raw size u32 LE  coded size u32 LE  LZ4 block     a compressed block
//!   bv4-  raw size u32 LE  raw bytes                        one that was stored
//!   bv4$                                                    the end
//! ```
//!
//! A compressed block may refer up to 64 KiB back into what earlier blocks decoded to.
//!
//! Invariants: the decoder never holds more than one block and the history, and never hands out more bytes
//! than it was told to expect: a small layer cannot become a large disk.

use lz4_flex::block::{compress_into_with_table, decompress_into_with_dict, get_maximum_output_size};

/// How far a block may refer back, in bytes (the window of LZ4).
pub const HISTORY: usize = 64 * 1024;
/// Raw bytes per block that [`Encoder`] writes.
pub const BLOCK: usize = 64 * 1024;
/// Largest block that is decoded, in bytes: bounds the memory that a lying size can ask for.
pub const MAX_BLOCK: usize = 64 << 20;

const COMPRESSED: &[u8; 4] = b"bv41";
const STORED: &[u8; 4] = b"bv4-";
const END: &[u8; 4] = b"bv4$";

/// What is wrong with a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lz4Error {
    /// No header of the framing stands where one must.
    #[error("not Apple's LZ4 framing: a block begins with {0:02x?}")]
    NotFramed([u8; 4]),
    /// A block says that it is larger than any that is decoded.
    #[error("a block claims {0} bytes, at most {MAX_BLOCK} are decoded")]
    BlockTooLarge(usize),
    /// The stream holds more than was announced.
    #[error("it decodes to more than the {0} bytes that were announced")]
    TooLong(u64),
    /// The stream holds less than was announced.
    #[error("it decodes to {found} bytes, {expected} were announced")]
    TooShort {
        /// Bytes announced.
        expected: u64,
        /// Bytes decoded.
        found: u64,
    },
    /// A block does not decode to what its header says.
    #[error("a block does not decode: {0}")]
    Broken(String),
    /// The stream ends in the middle.
    #[error("it ends in the middle of a block")]
    Truncated,
    /// There is more after the end.
    #[error("bytes follow its end")]
    Trailing,
}

/// Decodes a stream that comes in pieces.
pub struct Decoder {
    expected: u64,
    produced: u64,
    /// The start of a block that is not whole yet.
    pending: Vec<u8>,
    /// The last bytes that were decoded, [`HISTORY`] at most.
    history: Vec<u8>,
    out: Vec<u8>,
    ended: bool,
}

/// A block's header.
#[derive(Clone, Copy)]
struct Header {
    len: usize,
    raw: usize,
    coded: usize,
    stored: bool,
}

impl Decoder {
    /// A decoder of a stream that holds exactly `expected` raw bytes.
    pub fn new(expected: u64) -> Self {
        Decoder { expected, produced: 0, pending: Vec::new(), history: Vec::new(), out: Vec::new(), ended: false }
    }

    /// Takes the next piece; `sink` gets the raw bytes in order, a block at a time.
    ///
    /// # Errors
    /// When the stream is wrong, or what `sink` said.
    pub fn push<E: From<Lz4Error>>(
        &mut self,
        piece: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pending.extend_from_slice(piece);
        let mut pending = std::mem::take(&mut self.pending);
        let mut used = 0;
        while let Some(taken) = self.block(&pending[used..], sink)? {
            used += taken;
        }
        pending.drain(..used);
        self.pending = pending;
        Ok(())
    }

    /// Says whether everything that was announced has come.
    ///
    /// # Errors
    /// When the stream is not at its end, or held less.
    pub fn finish(self) -> Result<(), Lz4Error> {
        if !self.ended {
            return Err(Lz4Error::Truncated);
        }
        if self.produced != self.expected {
            return Err(Lz4Error::TooShort { expected: self.expected, found: self.produced });
        }
        Ok(())
    }

    /// Decodes the block at the start of `bytes`; its length, or `None` while it is not whole.
    fn block<E: From<Lz4Error>>(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if self.ended {
            return Err(Lz4Error::Trailing.into());
        }
        let Some(header) = self.header(bytes)? else { return Ok(None) };
        let Some(data) = bytes.get(header.len..header.len + header.coded) else { return Ok(None) };
        if header.raw > 0 {
            self.decode(data, header)?;
            sink(&self.out)?;
            self.remember();
            self.produced += header.raw as u64;
        }
        Ok(Some(header.len + header.coded))
    }

    fn header(&mut self, bytes: &[u8]) -> Result<Option<Header>, Lz4Error> {
        let Some(magic) = bytes.first_chunk::<4>() else { return Ok(None) };
        let number = |at: usize| {
            let found = bytes.get(at..at + 4)?.first_chunk::<4>()?;
            usize::try_from(u32::from_le_bytes(*found)).ok()
        };
        let header = match magic {
            END => {
                self.ended = true;
                return Ok(Some(Header { len: 4, raw: 0, coded: 0, stored: true }));
            }
            STORED => number(4).map(|raw| Header { len: 8, raw, coded: raw, stored: true }),
            COMPRESSED => match (number(4), number(8)) {
                (Some(raw), Some(coded)) => Some(Header { len: 12, raw, coded, stored: false }),
                _ => None,
            },
            other => return Err(Lz4Error::NotFramed(*other)),
        };
        let Some(header) = header else { return Ok(None) };
        if header.raw.max(header.coded) > MAX_BLOCK {
            return Err(Lz4Error::BlockTooLarge(header.raw.max(header.coded)));
        }
        if self.produced + header.raw as u64 > self.expected {
            return Err(Lz4Error::TooLong(self.expected));
        }
        Ok(Some(header))
    }

    fn decode(&mut self, data: &[u8], header: Header) -> Result<(), Lz4Error> {
        self.out.clear();
        if header.stored {
            self.out.extend_from_slice(data);
            return Ok(());
        }
        self.out.resize(header.raw, 0);
        let found = decompress_into_with_dict(data, &mut self.out, &self.history)
            .map_err(|error| Lz4Error::Broken(error.to_string()))?;
        if found != header.raw {
            return Err(Lz4Error::Broken(format!("{found} bytes came, its header says {}", header.raw)));
        }
        Ok(())
    }

    fn remember(&mut self) {
        let new = &self.out[self.out.len().saturating_sub(HISTORY)..];
        let kept = HISTORY - new.len();
        let old = self.history.len().saturating_sub(kept);
        self.history.drain(..old);
        self.history.extend_from_slice(new);
    }
}

/// Encodes raw bytes, a block at a time; each block stands for itself, so that every decoder takes it.
pub struct Encoder {
    out: Vec<u8>,
    pending: Vec<u8>,
    scratch: Vec<u8>,
    table: lz4_flex::block::CompressTable,
}

impl Default for Encoder {
    fn default() -> Self {
        Encoder {
            out: Vec::new(),
            pending: Vec::with_capacity(BLOCK),
            scratch: vec![0; get_maximum_output_size(BLOCK)],
            table: lz4_flex::block::CompressTable::default(),
        }
    }
}

impl Encoder {
    /// Takes more raw bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if !self.pending.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(BLOCK - self.pending.len()));
            self.pending.extend_from_slice(head);
            bytes = rest;
            if self.pending.len() < BLOCK {
                return;
            }
            let block = std::mem::take(&mut self.pending);
            self.block(&block);
            self.pending = block;
            self.pending.clear();
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        for block in blocks {
            self.block(block);
        }
        self.pending.extend_from_slice(rest);
    }

    /// The whole stream.
    pub fn finish(mut self) -> Vec<u8> {
        let block = std::mem::take(&mut self.pending);
        if !block.is_empty() {
            self.block(&block);
        }
        self.out.extend_from_slice(END);
        self.out
    }

    fn block(&mut self, raw: &[u8]) {
        // a block that does not shrink, or that the encoder has no room for, is stored
        let coded = compress_into_with_table(raw, &mut self.scratch, &mut self.table).ok().filter(|n| *n < raw.len());
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        match coded {
            Some(coded) => {
                self.out.extend_from_slice(COMPRESSED);
                self.out.extend_from_slice(&size(raw.len()));
                self.out.extend_from_slice(&size(coded));
                self.out.extend_from_slice(&self.scratch[..coded]);
            }
            None => {
                self.out.extend_from_slice(STORED);
                self.out.extend_from_slice(&size(raw.len()));
                self.out.extend_from_slice(raw);
            }
        }
    }
}

#[cfg(test)]
#[path = "lz4_tests.rs"]
mod tests;
