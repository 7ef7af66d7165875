//! What a person reads.
//!
//! Invariant: a reader who has seen enough (`| head`) ends nothing in disorder. `println!` would panic on a closed pipe,
//! in the middle of what has to be removed again; here the rest is left unsaid and the verb goes on to its own end.

use std::io::{self, Write};

use anyhow::{Context as _, Result};

/// Prints on standard output, as it is.
///
/// # Errors
/// When it cannot be written for another reason than that nobody reads any more, such as a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    write(&mut io::stdout().lock(), text.as_bytes())
}

/// Prints a line on standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Prints bytes that are no text on standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    write(&mut io::stdout().lock(), bytes)
}

/// Says something beside the answer, on standard error. That nobody hears it holds nothing up.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn write(out: &mut impl Write, bytes: &[u8]) -> Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ends(io::ErrorKind);

    impl Write for Ends {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(write(&mut Ends(io::ErrorKind::BrokenPipe), b"x").is_ok());
        let full = write(&mut Ends(io::ErrorKind::StorageFull), b"x").unwrap_err();
        assert!(format!("{full:#}").starts_with("standard output: "), "{full:#}");
    }
}
