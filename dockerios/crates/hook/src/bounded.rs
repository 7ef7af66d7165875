//! Reading what others wrote. Invariant: what has no end, such as a device, ends in a refusal.

use std::io::{self, Read};

/// Everything that there is to read, when that is at most `most` bytes.
///
/// # Errors
/// What the system says; or `FileTooLarge`, with the bound, when there is more.
pub fn bounded(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // one more than may be there tells that there is more
    from.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("holds more than {most} bytes, which is the most that is read"),
        ));
    }
    Ok(bytes)
}
