//! One line of a trace, to and from bytes.

use super::{Event, Field, Op, TraceErrorKind as Kind};

/// The event in `line`, without its line end.
pub(super) fn parse(line: &[u8]) -> Result<Event, Kind> {
    let mut fields = line.split(|&b| b == b',');
    let op = fields.next().unwrap_or_default();
    if !matches!(op, b"a" | b"r" | b"f") {
        return Err(Kind::UnknownOp);
    }
    let mut next = |field| fields.next().ok_or(Kind::MissingField(field));
    let id = number(next(Field::Id)?, Field::Id)?;
    let bytes = next(Field::Bytes)?;
    let stream = next(Field::Stream)?;
    let at_us = number(next(Field::Time)?, Field::Time)?;
    if fields.next().is_some() {
        return Err(Kind::ExtraField);
    }
    let op = match op {
        b"a" => {
            let bytes = number(bytes, Field::Bytes)?;
            let stream = number(stream, Field::Stream)?;
            let stream = u32::try_from(stream).map_err(|_| Kind::Overflow(Field::Stream))?;
            if bytes == 0 {
                return Err(Kind::ZeroBytes);
            }
            Op::Allocate { bytes, stream }
        }
        _ if !bytes.is_empty() => return Err(Kind::UnexpectedField(Field::Bytes)),
        _ if !stream.is_empty() => return Err(Kind::UnexpectedField(Field::Stream)),
        b"r" => Op::AskFree,
        _ => Op::Free,
    };
    Ok(Event { op, id, at_us })
}

fn number(digits: &[u8], field: Field) -> Result<u64, Kind> {
    if digits.is_empty() {
        return Err(Kind::MissingField(field));
    }
    let mut value = 0u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Kind::NotANumber(field));
        }
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit)))
            .ok_or(Kind::Overflow(field))?;
    }
    Ok(value)
}

/// Appends the line of `event`, with its line end.
pub(super) fn print(event: &Event, out: &mut Vec<u8>) {
    let (op, bytes, stream) = match event.op {
        Op::Allocate { bytes, stream } => (b'a', Some(bytes), Some(u64::from(stream))),
        Op::AskFree => (b'r', None, None),
        Op::Free => (b'f', None, None),
    };
    out.push(op);
    for field in [Some(event.id), bytes, stream, Some(event.at_us)] {
        out.push(b',');
        if let Some(value) = field {
            print_number(value, out);
        }
    }
    out.push(b'\n');
}

fn print_number(mut value: u64, out: &mut Vec<u8>) {
    let start = out.len();
    loop {
        out.push(b"0123456789"[(value % 10) as usize]);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out[start..].reverse();
}
