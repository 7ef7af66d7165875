//! Screens as PNG: drawn, small, and different for each stage. Nothing of Apple's is in them.

const WIDTH: usize = 320;
const HEIGHT: usize = 200;

struct Canvas(Vec<u8>);

impl Canvas {
    fn new(shade: u8) -> Self {
        Self(vec![shade; WIDTH * HEIGHT])
    }

    fn rectangle(mut self, left: usize, top: usize, width: usize, height: usize, shade: u8) -> Self {
        for row in top..(top + height).min(HEIGHT) {
            let (from, to) = (left.min(WIDTH), (left + width).min(WIDTH));
            self.0[row * WIDTH + from..row * WIDTH + to].fill(shade);
        }
        self
    }

    /// PNG (ISO/IEC 15948): 8-bit grey, no filter, stored deflate blocks.
    fn png(&self) -> Vec<u8> {
        let mut raw = Vec::with_capacity((WIDTH + 1) * HEIGHT);
        for row in self.0.chunks(WIDTH) {
            raw.push(0);
            raw.extend_from_slice(row);
        }
        let mut zlib = vec![0x78, 0x01];
        let blocks = raw.chunks(0xffff);
        let last = blocks.len().saturating_sub(1);
        for (at, block) in blocks.enumerate() {
            let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
            zlib.push(u8::from(at == last));
            zlib.extend_from_slice(&length.to_le_bytes());
            zlib.extend_from_slice(&(!length).to_le_bytes());
            zlib.extend_from_slice(block);
        }
        zlib.extend_from_slice(&adler(&raw).to_be_bytes());

        let mut header = Vec::new();
        header.extend_from_slice(&u32::try_from(WIDTH).unwrap_or(0).to_be_bytes());
        header.extend_from_slice(&u32::try_from(HEIGHT).unwrap_or(0).to_be_bytes());
        header.extend_from_slice(&[8, 0, 0, 0, 0]);
        let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
        for (name, content) in [(b"IHDR", &header), (b"IDAT", &zlib), (b"IEND", &Vec::new())] {
            png.extend_from_slice(&u32::try_from(content.len()).unwrap_or(0).to_be_bytes());
            let mut sum = crc32fast::Hasher::new();
            sum.update(name);
            sum.update(content);
            png.extend_from_slice(name);
            png.extend_from_slice(content);
            png.extend_from_slice(&sum.finalize().to_be_bytes());
        }
        png
    }
}

fn adler(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// A boot picker that waits: two disks, the first chosen.
pub(super) fn picker() -> Vec<u8> {
    let canvas = Canvas::new(40)
        .rectangle(84, 66, 68, 68, 220)
        .rectangle(90, 72, 56, 56, 90);
    canvas
        .rectangle(180, 72, 56, 56, 90)
        .rectangle(112, 150, 12, 12, 220)
        .png()
}

/// A bar that is half full.
pub(super) fn progress() -> Vec<u8> {
    Canvas::new(0)
        .rectangle(110, 120, 100, 4, 70)
        .rectangle(110, 120, 50, 4, 230)
        .png()
}

/// Somebody's picture and a field for a password.
pub(super) fn login() -> Vec<u8> {
    Canvas::new(120)
        .rectangle(140, 60, 40, 40, 200)
        .rectangle(115, 115, 90, 12, 240)
        .png()
}

/// A bar at the top, a row at the bottom, a window.
pub(super) fn desktop() -> Vec<u8> {
    let canvas = Canvas::new(150)
        .rectangle(0, 0, 320, 8, 235)
        .rectangle(60, 180, 200, 16, 210);
    canvas
        .rectangle(70, 40, 160, 100, 250)
        .rectangle(70, 40, 160, 10, 190)
        .png()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_png_with_right_sums_and_differ() {
        // Adler-32 of "Wikipedia", from its article
        assert_eq!(adler(b"Wikipedia"), 0x11E6_0398);
        let all = [picker(), progress(), login(), desktop()];
        for (at, png) in all.iter().enumerate() {
            assert!(png.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") && png.ends_with(b"IEND\xaeB`\x82"));
            assert!(all[..at].iter().all(|other| other != png));
        }
    }
}
