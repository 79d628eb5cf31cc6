//! A writer of traces.

use std::fmt;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Event, HEADER, line};

/// Lines are handed to the output in pieces of about this size.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes a trace, plain or gzip.
///
/// Lines are gathered in memory first. Where the output refuses them nothing is lost: the next
/// attempt goes on at the very byte where the last one stopped.
///
/// ```
/// use glake_core::trace::{Event, Op, Writer};
/// let mut writer = Writer::new(Vec::new());
/// writer.write(&Event { op: Op::Allocate { bytes: 512, stream: 0 }, id: 0, at_us: 3 })?;
/// assert_eq!(writer.finish()?, b"# glake-trace v1\na,0,512,0,3\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Writer<W: Write> {
    output: Option<Output<W>>,
    buffer: Vec<u8>,
}

enum Output<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
}

impl<W: Write> Writer<W> {
    /// A writer of plain text.
    pub fn new(output: W) -> Self {
        Self::over(Output::Plain(output))
    }

    /// A writer of gzip.
    pub fn gzip(output: W) -> Self {
        Self::over(Output::Gzip(GzEncoder::new(output, Compression::best())))
    }

    fn over(output: Output<W>) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + 128);
        buffer.extend_from_slice(HEADER.as_bytes());
        buffer.push(b'\n');
        Self { output: Some(output), buffer }
    }

    /// Appends a comment line; line ends in `text` become blanks.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn comment(&mut self, text: &str) -> io::Result<()> {
        self.make_room()?;
        self.buffer.extend_from_slice(b"# ");
        self.buffer.extend(text.bytes().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { b }));
        self.buffer.push(b'\n');
        Ok(())
    }

    /// Appends an event.
    ///
    /// # Errors
    /// That of the output, and then the event was not taken.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        self.make_room()?;
        self.push(event);
        Ok(())
    }

    /// Appends an event in memory, whatever the output says.
    pub(crate) fn push(&mut self, event: &Event) {
        line::print(event, &mut self.buffer);
    }

    /// Hands the lines to the output if there are many.
    pub(crate) fn make_room(&mut self) -> io::Result<()> {
        if self.buffer.len() < BUFFER_BYTES { Ok(()) } else { self.drain() }
    }

    pub(super) fn drain(&mut self) -> io::Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        let mut done = 0;
        let mut result = Ok(());
        while done < self.buffer.len() && result.is_ok() {
            match output.write(&self.buffer[done..]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        self.buffer.drain(..done);
        result
    }

    /// Writes what is left and returns the output.
    ///
    /// # Errors
    /// That of the output; the rest of the trace is lost then.
    pub fn finish(mut self) -> io::Result<W> {
        self.drain()?;
        match self.output.take() {
            Some(Output::Plain(mut output)) => output.flush().map(|()| output),
            Some(Output::Gzip(output)) => output.finish(),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(output) => output.write(bytes),
            Self::Gzip(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(output) => output.flush(),
            Self::Gzip(output) => output.flush(),
        }
    }
}

/// Writes what is left; errors are lost, use [`finish`](Writer::finish) to see them.
impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        let _ = self.drain();
    }
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("buffered_bytes", &self.buffer.len()).finish_non_exhaustive()
    }
}
