//! Sets of CPUs, as Linux writes them.

use std::fmt;
use std::str::FromStr;

/// CPUs by their numbers. Written and read as Linux does: `0-15,32-47`, and nothing for none.
///
/// Kept as ranges: its size is that of the text.
///
/// ```
/// use glake_multipath::topology::CpuSet;
///
/// let cpus: CpuSet = "0-2,8".parse()?;
/// assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
/// assert!(cpus.contains(8) && !cpus.contains(3));
/// # Ok::<(), glake_multipath::topology::CpuSetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// First and last of each range, ascending, with a gap between any two.
    ranges: Vec<(u32, u32)>,
}

impl CpuSet {
    fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = next.0 <= before.1.saturating_add(1);
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        Self { ranges }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `cpu` is one of them.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self::of(cpus.into_iter().map(|cpu| (cpu, cpu)).collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let range = (number(first)?, number(last)?);
            if range.0 <= range.1 { Ok(range) } else { Err(CpuSetError) }
        };
        Ok(Self::of(text.split(',').map(range).collect::<Result<_, _>>()?))
    }
}

/// Digits, and nothing else.
fn number(text: &str) -> Result<u32, CpuSetError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().ok_or(CpuSetError)
}

/// A text is no [`CpuSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of CPUs: write numbers and ranges between commas, as in 0-15,32")]
pub struct CpuSetError;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_read_as_it_is_written(cpus in btree_set(0u32..200, 0..100)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.len(), cpus.len() as u64);
            prop_assert!((0..201).all(|cpu| set.contains(cpu) == cpus.contains(&cpu)));
            let read: CpuSet = set.to_string().parse().unwrap();
            prop_assert_eq!(read.iter().collect::<BTreeSet<_>>(), cpus);
            prop_assert_eq!(read, set);
        }

        #[test]
        fn ranges_in_any_order_may_overlap(ranges in prop::collection::vec((0u32..99, 0u32..9), 1..9)) {
            let text: Vec<_> = ranges.iter().map(|(first, n)| format!("{first}-{}", first + n)).collect();
            let cpus: BTreeSet<_> = ranges.iter().flat_map(|(first, n)| *first..=first + n).collect();
            let set: CpuSet = text.join(",").parse().unwrap();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,\\- ]{0,24}") {
            if let Ok(set) = text.parse::<CpuSet>() {
                prop_assert_eq!(set.to_string().parse(), Ok(set));
            }
        }
    }

    #[test]
    fn sets_are_written_as_linux_does() {
        let text = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>().to_string();
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[3]), "3");
        assert_eq!(text(&[9, 1, 0, 2, 10, 2]), "0-2,9-10");
    }

    #[test]
    fn a_long_range_is_as_small_as_its_text() {
        let all: CpuSet = "0-4294967295".parse().unwrap();
        assert_eq!((all.len(), all.contains(u32::MAX)), (1 << 32, true));
        assert_eq!(all.to_string(), "0-4294967295");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            [",", "0,", ",0", "-", "1-", "-1", "2-1", "0-1-2", "+1", "0 1", "0x1", "4294967296", "0-7:2/4"]
        {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuSetError), "{text:?}");
        }
    }
}
