use std::io::{self, Write};

use proptest::prelude::*;

use super::TraceErrorKind as Kind;
use super::*;

fn read(text: &[u8]) -> Vec<Result<Event, (u64, Kind)>> {
    decode(text).unwrap().map(|event| event.map_err(|e| (e.line(), e.kind()))).collect()
}

#[test]
fn malformed_lines_give_line_and_reason() {
    let cases: &[(&str, Kind)] = &[
        ("x,0,1,0,1", Kind::UnknownOp),
        (",0,1,0,1", Kind::UnknownOp),
        ("a", Kind::MissingField(Field::Id)),
        ("a,1", Kind::MissingField(Field::Bytes)),
        ("a,1,512", Kind::MissingField(Field::Stream)),
        ("a,1,512,0", Kind::MissingField(Field::Time)),
        ("a,1,512,0,", Kind::MissingField(Field::Time)),
        ("a,1,,0,1", Kind::MissingField(Field::Bytes)),
        ("a,1,512,0,1,2", Kind::ExtraField),
        ("a,1,-5,0,1", Kind::NotANumber(Field::Bytes)),
        ("a,0x1,5,0,1", Kind::NotANumber(Field::Id)),
        ("a,1,18446744073709551616,0,1", Kind::Overflow(Field::Bytes)),
        ("a,1,512,4294967296,1", Kind::Overflow(Field::Stream)),
        ("a,1,0,0,1", Kind::ZeroBytes),
        ("f,0,512,,1", Kind::UnexpectedField(Field::Bytes)),
        ("r,0,,0,1", Kind::UnexpectedField(Field::Stream)),
        ("f,9,,,1", Kind::UnknownId(9)),
        ("r,9,,,1", Kind::UnknownId(9)),
        ("a,0,512,0,1", Kind::DuplicateId(0)),
    ];
    for (line, kind) in cases {
        let text = format!("# glake-trace v1\na,0,512,0,0\n{line}\nf,0,,,9\n");
        let events = read(text.as_bytes());
        assert_eq!(events.len(), 3, "{line}");
        assert_eq!(events[1], Err((3, *kind)), "{line}");
        assert!(events[2].is_ok(), "the reader goes on behind {line}");
    }
}

#[test]
fn an_object_is_freed_once() {
    let asked_twice = read(b"a,0,1,0,0\nr,0,,,1\nr,0,,,2\nf,0,,,3\n");
    assert_eq!(asked_twice[2], Err((3, Kind::DoubleFree(0))));
    assert!(asked_twice[3].is_ok());
    let freed_twice = read(b"a,0,1,0,0\nf,0,,,1\nf,0,,,2\nr,0,,,2\na,0,1,0,3\n");
    assert_eq!(freed_twice[2], Err((3, Kind::DoubleFree(0))));
    assert_eq!(freed_twice[3], Err((4, Kind::DoubleFree(0))));
    assert!(freed_twice[4].is_ok(), "an id may be used again");
}

#[test]
fn comments_blank_lines_and_line_ends_are_skipped() {
    assert!(read(b"").is_empty());
    assert_eq!(read(b"# glake-trace v1\r\n\r\n# x\na,0,1,0,0\r\n\nf,0,,,1").len(), 2);
    assert_eq!(read(b"a,0,1,0,0\n# glake-trace v9\n").len(), 1, "only the first line is a header");
    assert_eq!(read(b"# glake-trace v2\n"), [Err((1, Kind::UnknownVersion))]);
}

#[test]
fn a_long_line_is_refused_and_skipped() {
    let mut text = vec![b'9'; 100_000];
    text.extend_from_slice(b"\na,0,1,0,0\n");
    let events = read(&text);
    assert_eq!(events[0], Err((1, Kind::LineTooLong)));
    assert!(events[1].is_ok());
}

#[test]
fn errors_name_the_file() {
    let missing = open("no/such/trace").unwrap_err();
    assert_eq!(missing.to_string(), "no/such/trace:0: it cannot be read: entity not found");
    let error = Reader::new(&b"b"[..]).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "trace:1: the operation is none of `a`, `r`, `f`");
}

#[test]
fn damaged_gzip_ends_the_trace_with_an_error() {
    let mut writer = Writer::gzip(Vec::new());
    writer.comment("line\nend").unwrap();
    let mut packed = writer.finish().unwrap();
    packed.truncate(packed.len() - 4);
    let events = read(&packed);
    assert!(matches!(events[..], [Err((_, Kind::Io(_)))]));
}

/// Takes 7 bytes, fails, takes 7 bytes...
#[derive(Default)]
struct Flaky {
    taken: Vec<u8>,
    n_writes: usize,
}

impl Write for Flaky {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.n_writes += 1;
        if self.n_writes.is_multiple_of(2) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let n = bytes.len().min(7);
        self.taken.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failing_output_loses_no_byte() {
    let mut writer = Writer::new(Flaky::default());
    let mut n_refused = 0;
    for id in 0..5000 {
        let event = Event { op: Op::Allocate { bytes: 1, stream: 0 }, id, at_us: id };
        while writer.write(&event).is_err() {
            n_refused += 1;
        }
    }
    assert!(n_refused > 0);
    let output = loop {
        if writer.drain().is_ok() {
            break writer.finish().unwrap();
        }
    };
    let events = read(&output.taken);
    assert_eq!(events.len(), 5000);
    assert!(events.iter().zip(0..).all(|(event, id)| event.unwrap().id == id));
}

/// Programs whose events are in a legal order: each object is allocated, perhaps asked to be
/// freed, perhaps freed.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = (any::<u8>(), 1..=u64::MAX, any::<u32>(), any::<u64>());
    proptest::collection::vec(step, 0..200).prop_map(|steps| {
        let mut events = Vec::new();
        let mut live: Vec<(u64, bool)> = Vec::new();
        for (choice, bytes, stream, at_us) in steps {
            let n = live.len();
            let (op, id) = match choice % 4 {
                1 if n > 0 && !live[usize::from(choice) % n].1 => {
                    let object = &mut live[usize::from(choice) % n];
                    object.1 = true;
                    (Op::AskFree, object.0)
                }
                2 if n > 0 => (Op::Free, live.swap_remove(usize::from(choice) % n).0),
                _ => {
                    let id = at_us.rotate_left(7) ^ events.len() as u64;
                    if live.iter().any(|object| object.0 == id) {
                        continue;
                    }
                    live.push((id, false));
                    (Op::Allocate { bytes, stream }, id)
                }
            };
            events.push(Event { op, id, at_us });
        }
        events
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in events(), gzip in any::<bool>()) {
        let mut writer = if gzip { Writer::gzip(Vec::new()) } else { Writer::new(Vec::new()) };
        for event in &events {
            writer.write(event).unwrap();
        }
        let packed = writer.finish().unwrap();
        let read: Vec<Event> = decode(&packed[..]).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(read, events);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), magic in any::<bool>()) {
        let mut text = if magic { vec![0x1f, 0x8b, 8, 0] } else { Vec::new() };
        text.extend(bytes);
        let _ = read(&text);
    }

    #[test]
    fn nearly_right_lines_never_panic(lines in proptest::collection::vec("[arf#,]{1,2},?[0-9]{0,21},[0-9]{0,3},[0-9]{0,11},[0-9,]{0,5}", 0..50)) {
        let _ = read(lines.join("\n").as_bytes());
    }
}
