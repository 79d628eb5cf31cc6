//! A streaming reader of traces.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::{Event, HEADER, Op, TraceError, TraceErrorKind as Kind, line};

/// More than the longest event needs; garbage without line ends must not fill the memory.
const MAX_LINE_BYTES: usize = 4096;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BUFFER_BYTES: usize = 1 << 18;

/// The events of a trace, one by one.
///
/// Each item is an event or the reason why its line is refused; after a refused line the reader
/// goes on with the next, after an I/O error it ends. Ids are checked over the whole trace, which
/// takes some 20 bytes for each.
pub struct Reader<R> {
    input: R,
    path: Option<Box<Path>>,
    buffer: Vec<u8>,
    line: u64,
    objects: HashMap<u64, Object>,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Object {
    Live,
    FreeAsked,
    Freed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Reached,
}

/// Opens the trace at `path`, plain or gzip.
///
/// # Errors
/// [`Kind::Io`] if it cannot be opened or its first bytes cannot be read.
///
/// [`Kind::Io`]: super::TraceErrorKind::Io
pub fn open(path: impl AsRef<Path>) -> Result<Reader<Box<dyn BufRead>>, TraceError> {
    let path = path.as_ref();
    let failed = |error: io::Error| TraceError::new(Some(path), 0, Kind::Io(error.kind()));
    let file = File::open(path).map_err(failed)?;
    let mut reader = decode(BufReader::with_capacity(BUFFER_BYTES, file)).map_err(failed)?;
    reader.path = Some(path.into());
    Ok(reader)
}

/// A reader over `input`, which is unpacked if it starts with gzip's magic bytes.
///
/// # Errors
/// The error of the first read.
pub fn decode<'a>(mut input: impl BufRead + 'a) -> io::Result<Reader<Box<dyn BufRead + 'a>>> {
    let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
    input.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic)?;
    let is_gzip = magic == GZIP_MAGIC;
    let input = Cursor::new(magic).chain(input);
    Ok(Reader::new(if is_gzip {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(input)))
    } else {
        Box::new(input)
    }))
}

impl<R: BufRead> Reader<R> {
    /// A reader over `input`, which is plain text; see [`decode`] for gzip.
    pub fn new(input: R) -> Self {
        Self { input, path: None, buffer: Vec::new(), line: 0, objects: HashMap::new(), end: End::Open }
    }

    /// The line that was read last, counted from 1.
    #[must_use]
    pub const fn line(&self) -> u64 {
        self.line
    }

    /// Reads a line into the buffer, without its end. `None` at the end of the input.
    fn next_line(&mut self) -> Option<Result<(), Kind>> {
        self.buffer.clear();
        let read = self.input.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut self.buffer);
        self.line += 1;
        match read {
            Err(error) => {
                self.end = End::Reached;
                return Some(Err(Kind::Io(error.kind())));
            }
            Ok(0) => {
                self.end = End::Reached;
                return None;
            }
            Ok(MAX_LINE_BYTES) if self.buffer.last() != Some(&b'\n') => {
                let skipped = self.input.skip_until(b'\n');
                return Some(Err(skipped.map_or_else(|e| Kind::Io(e.kind()), |_| Kind::LineTooLong)));
            }
            Ok(_) => {}
        }
        while self.buffer.last().is_some_and(u8::is_ascii_whitespace) {
            self.buffer.pop();
        }
        Some(Ok(()))
    }

    /// The event in the buffer; `None` for a comment or a blank line.
    fn event(&mut self) -> Option<Result<Event, Kind>> {
        match self.buffer.first() {
            None => None,
            Some(b'#') => self.header().err().map(Err),
            Some(_) => Some(line::parse(&self.buffer).and_then(|event| self.admit(event))),
        }
    }

    /// Refuses another version; a trace may also come without a header.
    fn header(&self) -> Result<(), Kind> {
        let name = &HEADER.as_bytes()[..HEADER.len() - 1];
        if self.line == 1 && self.buffer.starts_with(name) && self.buffer != HEADER.as_bytes() {
            return Err(Kind::UnknownVersion);
        }
        Ok(())
    }

    /// Keeps track of which objects live.
    fn admit(&mut self, event: Event) -> Result<Event, Kind> {
        let id = event.id;
        match (event.op, self.objects.entry(id)) {
            (Op::Allocate { .. }, Entry::Vacant(entry)) => {
                entry.insert(Object::Live);
            }
            (_, Entry::Vacant(_)) => return Err(Kind::UnknownId(id)),
            (op, Entry::Occupied(mut entry)) => {
                let next = match (op, entry.get()) {
                    (Op::Allocate { .. }, Object::Freed) => Object::Live,
                    (Op::Allocate { .. }, _) => return Err(Kind::DuplicateId(id)),
                    (Op::AskFree, Object::Live) => Object::FreeAsked,
                    (Op::Free, Object::Live | Object::FreeAsked) => Object::Freed,
                    (Op::AskFree, _) | (Op::Free, Object::Freed) => return Err(Kind::DoubleFree(id)),
                };
                entry.insert(next);
            }
        }
        Ok(event)
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.end == End::Open {
            let event = match self.next_line()? {
                Ok(()) => self.event(),
                Err(kind) => Some(Err(kind)),
            };
            if let Some(event) = event {
                return Some(event.map_err(|kind| TraceError::new(self.path.as_deref(), self.line, kind)));
            }
        }
        None
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("line", &self.line)
            .field("n_objects", &self.objects.len())
            .finish_non_exhaustive()
    }
}
