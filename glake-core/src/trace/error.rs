//! Why a trace could not be read.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a trace could not be read: the file, the line, the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct TraceError(Box<Located>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {kind}", Name(path.as_deref()))]
struct Located {
    path: Option<Box<Path>>,
    line: u64,
    #[source]
    kind: TraceErrorKind,
}

const _: () = assert!(size_of::<TraceError>() <= 32);

impl TraceError {
    pub(super) fn new(path: Option<&Path>, line: u64, kind: TraceErrorKind) -> Self {
        Self(Box::new(Located { path: path.map(Into::into), line, kind }))
    }

    /// The file, if the trace was opened by path.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The line, counted from 1; 0 if the file could not be opened.
    #[must_use]
    pub const fn line(&self) -> u64 {
        self.0.line
    }

    /// The reason.
    #[must_use]
    pub const fn kind(&self) -> TraceErrorKind {
        self.0.kind
    }
}

struct Name<'a>(Option<&'a Path>);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => path.display().fmt(f),
            None => f.write_str("trace"),
        }
    }
}

/// A field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The id of the object.
    Id,
    /// Its size in bytes.
    Bytes,
    /// Its stream.
    Stream,
    /// The time in microseconds.
    Time,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "id",
            Self::Bytes => "bytes",
            Self::Stream => "stream",
            Self::Time => "microseconds",
        })
    }
}

/// The reason why a line, or a file, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The file could not be opened or read, or its gzip stream is damaged.
    #[error("it cannot be read: {0}")]
    Io(io::ErrorKind),
    /// The header names a version that this reader does not know.
    #[error("the header names another version than `glake-trace v1`")]
    UnknownVersion,
    /// The line is longer than any event.
    #[error("the line is too long for an event")]
    LineTooLong,
    /// The line does not start with `a`, `r` or `f`.
    #[error("the operation is none of `a`, `r`, `f`")]
    UnknownOp,
    /// A field is missing or empty.
    #[error("the field `{0}` is missing")]
    MissingField(Field),
    /// A field is not empty where it must be.
    #[error("the field `{0}` must be empty in a free")]
    UnexpectedField(Field),
    /// There are more than five fields.
    #[error("there are more than five fields")]
    ExtraField,
    /// A field is not a decimal number.
    #[error("the field `{0}` is not a decimal number")]
    NotANumber(Field),
    /// A field is a number that is too large.
    #[error("the number in the field `{0}` is too large")]
    Overflow(Field),
    /// An allocation of nothing.
    #[error("an allocation of zero bytes")]
    ZeroBytes,
    /// A free of an object that was never allocated.
    #[error("a free of object {0}, which was never allocated")]
    UnknownId(u64),
    /// A free of an object whose free was asked for, or is complete, already.
    #[error("object {0} is freed a second time")]
    DoubleFree(u64),
    /// An allocation under the id of a live object.
    #[error("object {0} is allocated a second time while it lives")]
    DuplicateId(u64),
}
