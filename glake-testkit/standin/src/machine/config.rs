//! How the stand-in is set up: the environment says.

/// When work runs that was enqueued on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At once.
    Immediate,
    /// When somebody waits for it, or says so.
    Manual,
    /// As `Manual`, and when its stream was worked with, or an event of it asked for, so often since.
    Lag(u64),
}

/// The call of a function that is to fail, counted from now, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) nth: u64,
    pub(crate) code: u32,
}

/// What the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) n_devices: usize,
    /// Of each device.
    pub(crate) memory_bytes: u64,
    pub(crate) completion: Completion,
    pub(crate) failures: Vec<Failure>,
}

const MOST_DEVICES: usize = 8;
const MEMORY_BYTES: u64 = 8 << 30;

impl Config {
    #[allow(clippy::disallowed_methods, reason = "a driver is set up by its environment, like the real one")]
    pub(crate) fn from_environment() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// What cannot be read is as if it were not there.
    fn from_lookup(look: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| look(name).and_then(|value| value.parse().ok());
        let completion = look("GLAKE_STANDIN_COMPLETION").and_then(|value| completion(&value));
        let failures = look("GLAKE_STANDIN_FAIL").unwrap_or_default();
        Self {
            n_devices: number("GLAKE_STANDIN_DEVICES")
                .map_or(2, |n| usize::try_from(n).unwrap_or(0))
                .min(MOST_DEVICES),
            memory_bytes: number("GLAKE_STANDIN_MEMORY").unwrap_or(MEMORY_BYTES),
            completion: completion.unwrap_or(Completion::Immediate),
            failures: failures.split(',').filter_map(failure).collect(),
        }
    }
}

/// `immediate`, `manual`, or `lag:N`.
fn completion(text: &str) -> Option<Completion> {
    match text {
        "immediate" => Some(Completion::Immediate),
        "manual" => Some(Completion::Manual),
        lag => Some(Completion::Lag(lag.strip_prefix("lag:")?.parse().ok()?)),
    }
}

/// `function:n:code`.
fn failure(text: &str) -> Option<Failure> {
    let mut parts = text.trim().split(':');
    let name = parts.next()?.to_owned();
    let nth = parts.next()?.parse().ok()?;
    Some(Failure { name, nth, code: parts.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read() {
        let of = |pairs: &'static [(&str, &str)]| {
            Config::from_lookup(|name| Some(pairs.iter().find(|pair| pair.0 == name)?.1.to_owned()))
        };
        let default = of(&[]);
        assert_eq!((default.n_devices, default.memory_bytes), (2, 8 << 30));
        assert_eq!((default.completion, default.failures), (Completion::Immediate, vec![]));
        let set = of(&[
            ("GLAKE_STANDIN_DEVICES", "5"),
            ("GLAKE_STANDIN_MEMORY", "1048576"),
            ("GLAKE_STANDIN_COMPLETION", "lag:7"),
            ("GLAKE_STANDIN_FAIL", "cuMemMap:3:2, cuInit:1:999,nonsense"),
        ]);
        assert_eq!((set.n_devices, set.memory_bytes, set.completion), (5, 1 << 20, Completion::Lag(7)));
        let failure = |name: &str, nth, code| Failure { name: name.to_owned(), nth, code };
        assert_eq!(set.failures, [failure("cuMemMap", 3, 2), failure("cuInit", 1, 999)]);
    }
}
